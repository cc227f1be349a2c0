"""Graphs of the tiny model, sessions on them, and the model as a graph of a precision holds it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export import gguf_file
from export.graph import graph_file, portable_context, portable_rows
from export.model import Model
from runtime.fused import FusedSession
from runtime.manifest import Flavour, Precision
from runtime.portable import PortableSession
from tests import tiny
from tests.stored import blocks_back, columns_back

Array = NDArray[np.float32]
FP16_BOUND = 1e-2  # what float16 may cost, as a share of the logits' range
# What the order of sums, and in int8 the rounding of rows to two bytes, may cost.
BOUNDS = {"fp32": 1e-5, "fp16": FP16_BOUND, "int8": 1e-3, "int4": 1e-5}
TEXT = np.random.default_rng(3).integers(0, len(tiny.vocabulary()), 80)


def tiny_model(folder: Path, *, tied: bool = False) -> Model:
    """The tiny model, its head its own or the embedding."""
    path = folder / "tiny.gguf"
    return gguf_file.read(tiny.write_gguf(path, weights=tiny.tensors(tied=tied))).model


def fused(
    folder: Path, model: Model, *, flavour: Flavour = "fused", **settings: Any
) -> FusedSession:
    """A session on the fused graph in `folder`, or on the gpu graph."""
    settings = {"threads": 1} | settings
    file = graph_file(flavour, distilled=model.distilled)
    return FusedSession(folder / file, model.geometry, **settings)


def portable(folder: Path, model: Model, **settings: Any) -> PortableSession:
    """A session on the portable graphs in `folder`."""
    graphs = {
        rows: folder / graph_file("portable", rows=rows, distilled=model.distilled)
        for rows in portable_rows(model)
    }
    settings = {"threads": 1, "slots": portable_context(model)} | settings
    return PortableSession(graphs, model.geometry, **settings)


def logits(session: FusedSession | PortableSession, text: NDArray[np.int64]) -> Array:
    """The logits of every token of `text`, nothing of it cached before."""
    session.crop(0)
    return session.extend(text, num_logits=len(text)).copy()


def as_stored(model: Model, precision: Precision) -> Model:
    """The model with its matrices as graphs of `precision` hold them."""
    if precision not in ("int8", "int4"):
        return model
    back = columns_back if precision == "int8" else blocks_back
    weights: Mapping[str, Array] = {
        name: back(weight) if weight.ndim == 2 and name != "masks" else weight
        for name, weight in model.weights.items()
    }
    return replace(model, weights=weights)
