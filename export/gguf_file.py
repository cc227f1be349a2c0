"""Reads a llama-family GGUF file: its key-value pairs and its weights, as float32."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from export.metadata import Metadata
from export.model import Model
from runtime.errors import BuildError, BundleError
from runtime.manifest import Geometry

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What one GGUF file holds."""

    metadata: Metadata
    model: Model

    @property
    def licence(self) -> str:
        """The licence that the file names, or "unknown"."""
        return self.metadata.text("general.license", "unknown")


def read(path: Path) -> GgufFile:
    """Read a GGUF file of the llama architecture.

    The rows of q and k, which such files store with the two halves of each rotary pair side by
    side, come back in half-split order. Raises BuildError for a file that is not GGUF, another
    architecture, a setting of the llama architecture that the graphs do not compute (it is never
    ignored), tensors that are missing, unexpected, of another shape or of an unknown block type.
    """
    pairs, stored = _open(path)
    metadata = Metadata(path, pairs)
    architecture = metadata.text("general.architecture")
    if architecture != "llama":
        raise BuildError(
            f"{path} holds a model of architecture {architecture!r}; only 'llama' works."
        )
    _refuse_unknown_settings(metadata)
    geometry = _geometry(metadata, vocabulary=len(metadata.texts("tokenizer.ggml.tokens")))
    if geometry.layers > len(stored):
        raise BuildError(f"{path} names {geometry.layers} layers and holds {len(stored)} tensors.")
    shapes = _shapes(geometry)
    if "output.weight" in stored:
        shapes["output.weight"] = ("head", (geometry.vocabulary, geometry.hidden))
    _compare_names(path, stored, shapes)
    weights = {name: _unpack(path, stored[key], shape) for key, (name, shape) in shapes.items()}
    for layer in range(geometry.layers):
        for name in (f"layers.{layer}.q", f"layers.{layer}.k"):
            weights[name] = half_split_rows(weights[name], geometry.head_size)
    return GgufFile(metadata, Model(geometry, weights))


def half_split_rows(matrix: Array, head_size: int) -> Array:
    """Reorder rows [heads * head_size, in] from interleaved rotary pairs to half-split ones.

    Within each head, row 2 * i + j of the file becomes row j * head_size / 2 + i.
    """
    pairs = matrix.reshape(-1, head_size // 2, 2, matrix.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(matrix.shape)


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's key-value pairs, and its tensors by name with their data mapped, not yet read."""
    if not path.is_file():
        raise BuildError(f"{path} is not a file.")
    try:
        reader = gguf.GGUFReader(path)
        pairs = {key: field.contents() for key, field in reader.fields.items()}
        return pairs, {tensor.name: tensor for tensor in reader.tensors}
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
        detail = str(error.args[0]) if error.args else type(error).__name__
        raise BuildError(f"{path} is not a GGUF file that can be read: {detail}.") from error


def _refuse_unknown_settings(metadata: Metadata) -> None:
    """Refuse every llama.* key that would change what the model computes and is not computed."""
    known = {
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.attention.value_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.rope.freq_base",
        "llama.rope.dimension_count",
        "llama.vocab_size",
    }
    harmless: dict[str, tuple[Any, ...]] = {
        "llama.attention.causal": (True,),
        "llama.attention.sliding_window": (0,),
        "llama.expert_count": (0,),
        "llama.expert_used_count": (0,),
        "llama.rope.scale_linear": (1.0,),
        "llama.rope.scaling.factor": (1.0,),
        "llama.rope.scaling.type": ("none",),
        "llama.use_parallel_residual": (False,),
    }
    for key, value in metadata.pairs.items():
        if key.startswith("llama.") and key not in known and value not in harmless.get(key, ()):
            raise BuildError(
                f"{metadata.path} sets {key} to {value!r}, which the graphs do not compute; "
                "use a model without it."
            )


def _geometry(metadata: Metadata, *, vocabulary: int) -> Geometry:
    hidden = metadata.integer("llama.embedding_length")
    heads = metadata.integer("llama.attention.head_count")
    if heads < 1 or ("llama.attention.key_length" not in metadata.pairs and hidden % heads):
        raise BuildError(f"{metadata.path}: {hidden} columns cannot be shared by {heads} heads.")
    head_size = metadata.integer("llama.attention.key_length", hidden // heads)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if metadata.integer(key, head_size) != head_size:
            raise BuildError(
                f"{metadata.path}: {key} is {metadata.integer(key)} where the head size is "
                f"{head_size}; only equal ones work."
            )
    try:
        return Geometry(
            layers=metadata.integer("llama.block_count"),
            hidden=hidden,
            intermediate=metadata.integer("llama.feed_forward_length"),
            heads=heads,
            kv_heads=metadata.integer("llama.attention.head_count_kv", heads),
            head_size=head_size,
            vocabulary=vocabulary,
            context=metadata.integer("llama.context_length"),
            rope_base=metadata.number("llama.rope.freq_base", 10000.0),
            norm_epsilon=metadata.number("llama.attention.layer_norm_rms_epsilon"),
        )
    except BundleError as error:
        raise BuildError(f"{metadata.path}: {error}") from error


def _shapes(geometry: Geometry) -> dict[str, tuple[str, tuple[int, ...]]]:
    """For each tensor that the file must hold: its name in the model and its shape."""
    hidden, intermediate = geometry.hidden, geometry.intermediate
    query, key = geometry.heads * geometry.head_size, geometry.kv_heads * geometry.head_size
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("embedding", (geometry.vocabulary, hidden)),
        "output_norm.weight": ("norm", (hidden,)),
    }
    for layer in range(geometry.layers):
        for stored, name, shape in (
            ("attn_norm", "attention_norm", (hidden,)),
            ("attn_q", "q", (query, hidden)),
            ("attn_k", "k", (key, hidden)),
            ("attn_v", "v", (key, hidden)),
            ("attn_output", "o", (hidden, query)),
            ("ffn_norm", "feed_forward_norm", (hidden,)),
            ("ffn_gate", "gate", (intermediate, hidden)),
            ("ffn_up", "up", (intermediate, hidden)),
            ("ffn_down", "down", (hidden, intermediate)),
        ):
            shapes[f"blk.{layer}.{stored}.weight"] = (f"layers.{layer}.{name}", shape)
    return shapes


def _compare_names(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise BuildError(
            f"{path} lacks the tensor {missing[0]} ({len(missing)} in all are missing)."
        )
    unknown = sorted(set(stored) - set(wanted))
    if unknown:
        why = "scales the rotary frequencies" if "rope_freqs" in unknown[0] else "is not known"
        raise BuildError(
            f"{path} holds the tensor {unknown[0]}, which {why}: "
            "the graphs would compute another model without it."
        )


def _unpack(path: Path, tensor: Any, shape: tuple[int, ...]) -> Array:
    """One tensor as float32 in the order of numpy, which is the reverse of the file's."""
    found = tuple(int(size) for size in reversed(tensor.shape))
    if found != shape:
        raise BuildError(f"{path}: {tensor.name} has the shape {found}, not {shape}.")
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except (NotImplementedError, ValueError) as error:
        kind = tensor.tensor_type.name
        raise BuildError(
            f"{path}: {tensor.name} has the block type {kind}, which cannot be unpacked."
        ) from error
    array = np.array(values, dtype=np.float32, order="C").reshape(shape)
    if not np.isfinite(array).all():
        raise BuildError(f"{path}: {tensor.name} holds numbers that are not finite.")
    return array
