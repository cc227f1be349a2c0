"""Each family's graphs, in every form, compute what the numpy forward pass does."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export import gguf_file, reference
from export.graph import PORTABLE_ROWS, build_graphs, graph_file, portable_context
from export.model import Model
from runtime.fused import FusedSession
from runtime.manifest import Flavour, Precision
from runtime.portable import PortableSession
from tests import blocks, tiny
from tests.graphs import as_stored

Array = NDArray[np.float32]
# Short texts: where float32's rounding tips a step of int8, all rows behind it differ.
TEXTS = np.random.default_rng(3).integers(0, len(tiny.vocabulary()), (8, 5))


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """One model of each family, read from its file."""
    return read(tiny.FAMILIES[request.param], tmp_path_factory.mktemp("gguf"))


def read(family: tiny.Family, folder: Path) -> Model:
    path = folder / "tiny.gguf"
    return gguf_file.read(
        tiny.write_gguf(path, weights=family.weights(), pairs=family.pairs())
    ).model


def graph_logits(
    model: Model, flavour: Flavour, precision: Precision, folder: Path, *, inexact: bool = False
) -> Array:
    """The logits of all tokens of TEXTS."""
    build_graphs(model, precision, folder, flavours=[flavour], inexact=inexact)
    session: FusedSession | PortableSession
    if flavour != "portable":
        session = FusedSession(folder / graph_file(flavour), model.geometry, threads=1)
    else:
        graphs = {rows: folder / graph_file(flavour, rows=rows) for rows in PORTABLE_ROWS}
        slots = portable_context(model)
        session = PortableSession(graphs, model.geometry, slots=slots, threads=1)
    return np.concatenate([session.extend(text, num_logits=len(text)).copy() for text in TEXTS])


def reference_logits(model: Model) -> Array:
    return np.concatenate(reference.logits_of_texts(model, TEXTS.tolist()))


def lost(found: Array, wanted: Array) -> Array:
    """Differences as shares of the wanted logits' range."""
    difference: Array = np.abs(found - wanted) / np.ptp(wanted)
    return difference


@pytest.mark.parametrize("flavour", ["fused", "gpu", "portable"])
def test_fp32(model: Model, flavour: Flavour, tmp_path: Path) -> None:
    found = graph_logits(model, flavour, "fp32", tmp_path)
    assert np.abs(found - reference_logits(model)).max() < 1e-3


@pytest.mark.parametrize("flavour", ["fused", "portable"])
def test_fp16(model: Model, flavour: Flavour, tmp_path: Path) -> None:
    found = graph_logits(model, flavour, "fp16", tmp_path)
    assert lost(found, reference_logits(model)).max() < 1e-2


@pytest.mark.parametrize("flavour", ["fused", "portable"])
def test_int8(model: Model, flavour: Flavour, tmp_path: Path) -> None:
    found = graph_logits(model, flavour, "int8", tmp_path)
    assert lost(found, reference_logits(as_stored(model, "int8"))).max() < 1e-3


def test_int4(model: Model, tmp_path: Path) -> None:
    found = graph_logits(model, "fused", "int4", tmp_path)
    assert lost(found, reference_logits(as_stored(model, "int4"))).max() < 1e-4


def test_int4_as_a_draft(model: Model, tmp_path: Path) -> None:
    """Its rows are rounded to 8 bits, which costs more than the bound in places."""
    found = graph_logits(model, "fused", "int4", tmp_path, inexact=True)
    difference = lost(found, reference_logits(as_stored(model, "int4")))
    assert np.sqrt(np.mean(difference**2)) < 5e-3


def without(model: Model, names: Sequence[str]) -> Model:
    kept = {key: weight for key, weight in model.weights.items() if not key.endswith(tuple(names))}
    assert len(kept) < len(model.weights)
    return replace(model, weights=kept)


@pytest.mark.parametrize(
    ("family", "parts"),
    [
        ("llama", ["rope_factors"]),
        ("qwen2", ["q_bias", "k_bias", "v_bias"]),
        ("qwen3", ["q_norm", "k_norm"]),
    ],
)
def test_what_sets_a_family_apart_matters(family: str, parts: list[str], tmp_path: Path) -> None:
    """The bounds above would see it missing, by far."""
    model = read(tiny.FAMILIES[family], tmp_path)
    difference = lost(reference_logits(without(model, parts)), reference_logits(model))
    assert np.sqrt(np.mean(difference**2)) > 1e-2


@pytest.mark.parametrize("kind", gguf_file.BLOCK_TYPES)
def test_files_of_every_block_type(kind: str, tmp_path: Path) -> None:
    """All matrices are random blocks; the graph is held against the numbers of a plain decoder."""
    family = tiny.Family("qwen3", head_norms=True, hidden=256, intermediate=256, head_size=64)
    stored: dict[str, NDArray[Any]] = {
        name: blocks.random_rows(kind, *tensor.shape, seed=place) if tensor.ndim == 2 else tensor
        for place, (name, tensor) in enumerate(family.weights().items())
    }
    path = tiny.write_gguf(tmp_path / "t.gguf", weights=stored, pairs=family.pairs(), kind=kind)
    model = gguf_file.read(path).model
    for name, own in (("blk.1.ffn_down", "layers.1.down"), ("blk.0.attn_k", "layers.0.k")):
        rows = stored[f"{name}.weight"][:2]
        np.testing.assert_allclose(model.weights[own][:2], blocks.decode(kind, rows), atol=1e-6)
    found = graph_logits(model, "fused", "fp32", tmp_path)
    assert np.abs(found - reference_logits(model)).max() < 1e-3
    assert np.ptp(found) > 1
