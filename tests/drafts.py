"""A draft of the tiny model: some of its layers, changed at random, and mask tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from export import draft_file
from export.draft_file import MATRICES, NORMS
from export.model import Model
from tests import tiny

LAYERS = (1,)
HEADS = 40
TOKENS_PER_PASS = 3


def tiny_draft(
    target: Model,
    layers: Sequence[int] = LAYERS,
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    heads: int = HEADS,
) -> Model:
    """Layers of the target, each number of them changed by about a tenth of what they are."""
    noise = np.random.default_rng(5)

    def changed(weight: NDArray[np.float32]) -> NDArray[np.float32]:
        change = noise.standard_normal(weight.shape) * weight.std() / 10
        found: NDArray[np.float32] = (weight + change).astype(np.float32)
        return found

    weights = {name: it for name, it in target.weights.items() if not name.startswith("layers.")}
    weights["norm"] = changed(weights["norm"])
    if tokens_per_pass > 1:
        masks = noise.standard_normal((tokens_per_pass - 1, target.geometry.hidden)) / 8
        weights["masks"] = masks.astype(np.float16).astype(np.float32)
    for own, layer in enumerate(layers):
        for name, weight in target.weights.items():
            part = name.removeprefix(f"layers.{layer}.")
            if part != name:
                known = part in (*MATRICES, *NORMS)
                weights[f"layers.{own}.{part}"] = changed(weight) if known else weight
    ids = noise.choice(target.geometry.vocabulary, heads, replace=False)
    return Model(replace(target.geometry, layers=len(layers)), weights, np.sort(ids))


def write_lenses(path: Path, *layers: int, seed: int = 9) -> Path:
    """A file of random lenses of the tiny model."""
    noise = np.random.default_rng(seed)
    shape = (tiny.HIDDEN, tiny.HIDDEN)
    lenses = {f"layer.{layer}": noise.standard_normal(shape).astype(np.float16) for layer in layers}
    save_file(lenses, path)
    return path


def write_draft(path: Path, target: Model, *, target_sha256: str | None = None) -> Path:
    """The file of `tiny_draft`."""
    notes = {"licence": "MIT"}
    draft_file.save(
        path, tiny_draft(target), target, LAYERS, target_sha256=target_sha256, notes=notes
    )
    return path
