"""The file of a distilled draft: what training changed of some of its target's layers, in 4 bits.

A safetensors file. Its metadata: format "mirror-draft-1"; layers "0,1,3", the target's layers that
the draft's began as; tokens_per_pass; target_sha256, of the file that the target was read from, if
the draft belongs to that one alone; more for readers. Its tensors, i counting the draft's layers:

    head_tokens [n] int32, ascending        norm [hidden] float32
    masks [tokens_per_pass - 1, hidden] float16, absent where a pass gives one token
    layers.{i}.attention_norm, layers.{i}.feed_forward_norm [hidden] float32
    layers.{i}.{q, k, v, o, gate, up, down} [out, in / 2] uint8, and
    layers.{i}.{…}.scale [out, in / 32] float16

The last two are what is added to the target's own matrix, as `export.change` packs it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from export.change import BLOCK, change_of, quantise_change
from export.model import Model
from export.trained import Tensors, check_target, read_tensors
from runtime.errors import BuildError
from runtime.manifest import MOST_TOKENS_PER_PASS

FORMAT = "mirror-draft-1"
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
NORMS = ("attention_norm", "feed_forward_norm")


def save(
    path: Path,
    draft: Model,
    target: Model,
    layers: Sequence[int],
    *,
    target_sha256: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write what sets `draft` apart from the `layers` of `target` that its own began as.

    target_sha256: of the file that the target was read from, if the draft is for that one alone.
    notes: more metadata, as "licence". The draft's embedding and head are the target's and are not
    written. Raises BuildError for a draft that such a file cannot hold.
    """
    _check_layers(layers, target, f"the draft for {path}")
    geometry = replace(target.geometry, layers=len(layers))
    if draft.geometry != geometry or draft.head_tokens is None:
        raise BuildError(f"The draft for {path} must have head_tokens and the sizes {geometry}.")
    tensors: Tensors = {
        "head_tokens": draft.head_tokens.astype(np.int32),
        "norm": draft.weights["norm"].astype(np.float32),
    }
    if "masks" in draft.weights:
        tensors["masks"] = draft.weights["masks"].astype(np.float16)
    for own, layer in enumerate(layers):
        for name in (name for name in draft.weights if name.startswith(f"layers.{own}.")):
            part = name.rpartition(".")[2]
            weight, began_as = draft.weights[name], target.weights[f"layers.{layer}.{part}"]
            if part in NORMS:
                tensors[name] = weight.astype(np.float32)
            elif part in MATRICES:
                tensors[name], tensors[f"{name}.scale"] = quantise_change(weight - began_as)
            elif not np.array_equal(weight, began_as):
                raise BuildError(f"A draft file holds no change of {name}: keep the target's.")
    _check_numbers(tensors, path)
    metadata = {
        **(notes or {}),
        "format": FORMAT,
        "layers": ",".join(map(str, layers)),
        "tokens_per_pass": str(draft.tokens_per_pass),
    }
    if target_sha256 is not None:
        metadata["target_sha256"] = target_sha256
    part_file = path.with_name(f"{path.name}.part")
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()},
        part_file,
        metadata,
    )
    part_file.replace(path)


def load(path: Path, target: Model, *, target_sha256: str) -> Model:
    """The draft of a file, which shares the embedding, the head and the angles of `target`.

    target_sha256: of the file that the target was read from. Raises BuildError for a file that is
    not sound, or that is for another target; OSError for one that cannot be read.
    """
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise BuildError(
            f"{path} is no draft file: its format is {metadata.get('format')!r:.80}, not "
            f"{FORMAT!r}. Train a draft with this version: python -m export distill"
        )
    check_target(metadata, target_sha256, path)
    layers = _layers(metadata, path)
    _check_layers(layers, target, str(path))
    passes = metadata.get("tokens_per_pass", "")
    if not re.fullmatch("[1-9][0-9]{0,5}", passes) or int(passes) > MOST_TOKENS_PER_PASS:
        raise BuildError(f"{path}: tokens_per_pass is {passes!r:.80}; train the draft again.")
    _check_tensors(tensors, _expected(target, len(layers), int(passes) - 1, tensors), path)
    _check_numbers(tensors, path)
    return _model(tensors, target, layers, path)


def began_as(path: Path) -> list[int]:
    """The target's layers that the draft of a file began as; BuildError if it names none."""
    return _layers(read_tensors(path)[1], path)


def _layers(metadata: Mapping[str, str], path: Path) -> list[int]:
    text = metadata.get("layers", "")
    if not re.fullmatch("[0-9]{1,6}(,[0-9]{1,6})*", text):
        raise BuildError(f"{path} names no layers of its target: {text!r:.80}; train it again.")
    return [int(layer) for layer in text.split(",")]


def _check_layers(layers: Sequence[int], target: Model, what: str) -> None:
    count = target.geometry.layers
    ascending = list(layers) == sorted(set(layers))
    if not layers or not ascending or not 0 <= layers[0] <= layers[-1] < count:
        raise BuildError(
            f"The layers of {what} are {list(layers)!r:.80}: they must be some of the target's "
            f"{count}, 0 to {count - 1}, in ascending order. Take the draft of this target."
        )


def _expected(
    target: Model, layers: int, masks: int, tensors: Tensors
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and shape that each tensor must have; head_tokens may be as many as they like."""
    hidden = target.geometry.hidden
    heads = tensors["head_tokens"].size if "head_tokens" in tensors else 0
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "head_tokens": ("int32", (heads,)),
        "norm": ("float32", (hidden,)),
    }
    if masks:
        found["masks"] = ("float16", (masks, hidden))
    for layer in range(layers):
        found |= {f"layers.{layer}.{part}": ("float32", (hidden,)) for part in NORMS}
        for part in MATRICES:
            out, width = target.weights[f"layers.0.{part}"].shape
            if width % BLOCK:
                raise BuildError(
                    f"There can be no draft file for a target of {width} columns: {BLOCK} go "
                    "together. Build it without one: --draft model or none."
                )
            found[f"layers.{layer}.{part}"] = ("uint8", (out, width // 2))
            found[f"layers.{layer}.{part}.scale"] = ("float16", (out, width // BLOCK))
    return found


def _check_tensors(
    tensors: Tensors, expected: Mapping[str, tuple[str, tuple[int, ...]]], path: Path
) -> None:
    for what, names in (
        ("lacks", expected.keys() - tensors.keys()),
        ("has the unknown", tensors.keys() - expected.keys()),
    ):
        if names:
            raise BuildError(
                f"{path} {what} tensor {min(names)!r:.80} ({len(names)} in all); train it again."
            )
    for name, (kind, shape) in expected.items():
        found = tensors[name]
        if (found.dtype.name, found.shape) != (kind, shape):
            raise BuildError(
                f"{path}: {name} is {found.dtype.name} {list(found.shape)} where {kind} "
                f"{list(shape)} is needed. Was the draft trained for another target?"
            )


def _check_numbers(tensors: Tensors, path: Path) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise BuildError(f"{path}: {name} holds numbers that are not finite; train it again.")


def _model(tensors: Tensors, target: Model, layers: Sequence[int], path: Path) -> Model:
    """The draft of tensors that were checked, but for the ids of the head's tokens."""
    head_tokens = tensors["head_tokens"].astype(np.int64)
    known = (head_tokens >= 0) & (head_tokens < target.geometry.vocabulary)
    if not len(head_tokens) or not known.all() or (np.diff(head_tokens) <= 0).any():
        raise BuildError(
            f"{path}: head_tokens must be ids of the target's {target.geometry.vocabulary} tokens "
            "in ascending order; train the draft again."
        )
    weights = {
        name: weight for name, weight in target.weights.items() if not name.startswith("layers.")
    }
    for name in {"norm", "masks"} & tensors.keys():
        weights[name] = tensors[name].astype(np.float32)
    for own, layer in enumerate(layers):
        began_as = f"layers.{layer}."
        for name in (name for name in target.weights if name.startswith(began_as)):
            part = name.removeprefix(began_as)
            ours, weight = f"layers.{own}.{part}", target.weights[name]
            if part in NORMS:
                weight = tensors[ours]
            elif part in MATRICES:
                weight = weight + change_of(tensors[ours], tensors[f"{ours}.scale"])
            weights[ours] = weight
    return Model(replace(target.geometry, layers=len(layers)), weights, head_tokens)
