"""The families of models that GGUF files hold: one row for each, what sets them apart.

All are llama's decoder (Touvron et al. 2023). What converters write for each, and what llama.cpp
computes from it, decides what is known here; every other setting is refused, never ignored.
"""

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from export.metadata import Metadata
from runtime.errors import BuildError, BundleError
from runtime.manifest import Geometry

HEAD_STEP = 16  # GroupQueryAttention turns heads of such sizes only
MAX_CONTEXT = 1 << 20  # tokens; the longest of these families' models takes 1,010,000


@dataclass(frozen=True, slots=True)
class Family:
    """What one architecture's files hold.

    interleaved: q and k are stored with the two halves of each rotary pair side by side.
    biases: q, k and v have one; where it is False they may. head_norms: q and k have a norm.
    frequency_factors: the file may hold rope_freqs.weight. linear_scaling: whether a linear factor
    does nothing but stretch the positions.
    """

    interleaved: bool = False
    biases: bool = False
    head_norms: bool = False
    frequency_factors: bool = False
    linear_scaling: bool = True


FAMILIES: dict[str, Family] = {
    "llama": Family(interleaved=True, frequency_factors=True),
    # Scales attention too when its positions are stretched.
    "mistral3": Family(interleaved=True, frequency_factors=True, linear_scaling=False),
    "qwen2": Family(biases=True),
    "qwen3": Family(head_norms=True),
}

KNOWN = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.type",
    "vocab_size",
    # These say how a model was made, not what it computes.
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
)

HARMLESS: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.attn_factor": (1.0,),
    "use_parallel_residual": (False,),
}


def family_of(metadata: Metadata) -> Family:
    """The row of the file's architecture.

    Raises BuildError for another architecture, a setting that the graphs do not compute, and one
    part of a model that is split over several files.
    """
    architecture = metadata.architecture
    if architecture not in FAMILIES:
        raise BuildError(
            f"{metadata.path} holds a model of architecture {architecture!r}; "
            f"those that work are {', '.join(FAMILIES)}."
        )
    prefix = f"{architecture}."
    for key, value in metadata.pairs.items():
        name = key.removeprefix(prefix)
        if name == key or name in KNOWN or value in HARMLESS.get(name, ()):
            continue
        raise _not_computed(metadata, key)
    if metadata.integer("split.count", 1) > 1:
        raise BuildError(f"{metadata.path} is one part of a split model; join its parts first.")
    return FAMILIES[architecture]


def geometry_of(metadata: Metadata) -> Geometry:
    """The model's sizes; BuildError, naming the key, for those that no model can have."""

    def integer(name: str, default: int | None = None) -> int:
        return metadata.integer(metadata.setting(name), default)

    hidden, heads = integer("embedding_length"), integer("attention.head_count")
    key_length = metadata.setting("attention.key_length")
    if heads < 1 or (key_length not in metadata.pairs and hidden % heads):
        raise BuildError(f"{metadata.path}: {hidden} columns cannot be shared by {heads} heads.")
    head_size = metadata.integer(key_length, hidden // heads)
    vocabulary = len(metadata.texts("tokenizer.ggml.tokens"))
    for name, wanted, why in (
        ("attention.value_length", head_size, "the head size"),
        ("rope.dimension_count", head_size, "the head size"),
        ("vocab_size", vocabulary, "the number of tokens"),
    ):
        if integer(name, wanted) != wanted:
            raise BuildError(
                f"{metadata.path}: {metadata.setting(name)} is {integer(name)} where {why} is "
                f"{wanted}; only equal ones work."
            )
    if head_size % HEAD_STEP:
        raise BuildError(
            f"{metadata.path}: the head size is {head_size}; only multiples of {HEAD_STEP} work."
        )
    context = integer("context_length")
    if not 1 < context <= MAX_CONTEXT:
        raise BuildError(
            f"{metadata.path}: {metadata.setting('context_length')} is {context}; "
            f"from 2 to {MAX_CONTEXT} tokens work."
        )
    try:
        return Geometry(
            layers=integer("block_count"),
            hidden=hidden,
            intermediate=integer("feed_forward_length"),
            heads=heads,
            kv_heads=integer("attention.head_count_kv", heads),
            head_size=head_size,
            vocabulary=vocabulary,
            context=context,
            rope_base=metadata.number(metadata.setting("rope.freq_base"), 10000.0),
            norm_epsilon=metadata.number(metadata.setting("attention.layer_norm_rms_epsilon")),
        )
    except BundleError as error:
        raise BuildError(f"{metadata.path}: {error}") from error


def position_stretch(metadata: Metadata, family: Family) -> float:
    """By what every position is divided before it turns q and k; 1 for most models.

    Raises BuildError for other kinds of scaling than "linear" and "none".
    """
    kind_key = metadata.setting("rope.scaling.type")
    kind = metadata.text(kind_key, "linear")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise _not_computed(metadata, kind_key)
    factor_key = metadata.setting("rope.scaling.factor")
    if factor_key not in metadata.pairs:
        factor_key = metadata.setting("rope.scale_linear")
    factor = metadata.number(factor_key, 1.0)
    if not (0 < factor < math.inf) or (factor != 1 and not family.linear_scaling):
        raise _not_computed(metadata, factor_key)
    return factor


def tensors_of(
    family: Family, geometry: Geometry, stored: Container[str]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """For each tensor that the file must hold: its name in the model and its shape.

    `stored` are the names in the file: they say which of the parts that may be absent are wanted.
    A bias in the first layer means three in every layer.
    """
    hidden, vocabulary = geometry.hidden, geometry.vocabulary
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("embedding", (vocabulary, hidden)),
        "output_norm.weight": ("norm", (hidden,)),
    }
    if "output.weight" in stored:
        wanted["output.weight"] = ("head", (vocabulary, hidden))
    if family.frequency_factors and "rope_freqs.weight" in stored:
        wanted["rope_freqs.weight"] = ("rope_factors", (geometry.head_size // 2,))
    parts = _layer_tensors(family, geometry)
    biases = [name for name in parts if name.endswith(".bias")]
    if not family.biases and not any(f"blk.0.{name}" in stored for name in biases):
        parts = {name: part for name, part in parts.items() if name not in biases}
    for layer in range(geometry.layers):
        for name, (own, shape) in parts.items():
            wanted[f"blk.{layer}.{name}"] = (f"layers.{layer}.{own}", shape)
    return wanted


def _layer_tensors(family: Family, geometry: Geometry) -> dict[str, tuple[str, tuple[int, ...]]]:
    hidden, intermediate, head_size = geometry.hidden, geometry.intermediate, geometry.head_size
    query, key = geometry.heads * head_size, geometry.kv_heads * head_size
    parts: dict[str, tuple[str, tuple[int, ...]]] = {
        "attn_norm.weight": ("attention_norm", (hidden,)),
        "attn_q.weight": ("q", (query, hidden)),
        "attn_k.weight": ("k", (key, hidden)),
        "attn_v.weight": ("v", (key, hidden)),
        "attn_q.bias": ("q_bias", (query,)),
        "attn_k.bias": ("k_bias", (key,)),
        "attn_v.bias": ("v_bias", (key,)),
        "attn_output.weight": ("o", (hidden, query)),
        "ffn_norm.weight": ("feed_forward_norm", (hidden,)),
        "ffn_gate.weight": ("gate", (intermediate, hidden)),
        "ffn_up.weight": ("up", (intermediate, hidden)),
        "ffn_down.weight": ("down", (hidden, intermediate)),
    }
    if family.head_norms:
        parts["attn_q_norm.weight"] = ("q_norm", (head_size,))
        parts["attn_k_norm.weight"] = ("k_norm", (head_size,))
    return parts


def _not_computed(metadata: Metadata, key: str) -> BuildError:
    return BuildError(
        f"{metadata.path} sets {key} to {metadata.pairs[key]!r:.60}, which the graphs do not "
        "compute; use a model without it."
    )
