"""A gpu graph, here on the CPU provider: the fused graph's logits for any text and any tree."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from export import reference
from export.gpu import PRECISIONS
from export.graph import build_graphs, graph_file
from export.model import Model
from runtime import fused as fused_module
from runtime.branches import Branches
from runtime.errors import BuildError, ProviderError
from runtime.fused import FusedSession
from runtime.manifest import Precision
from tests import tiny
from tests.graphs import BOUNDS, TEXT, as_stored, fused, logits, tiny_model

Both = tuple[FusedSession, FusedSession]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module", params=PRECISIONS)
def folder(
    request: pytest.FixtureRequest, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Both graphs of one precision, named by it."""
    made: Path = tmp_path_factory.mktemp("graphs") / request.param
    made.mkdir()
    build_graphs(model, precision_of(made), made, flavours=("fused", "gpu"))
    return made


def precision_of(folder: Path) -> Precision:
    return next(each for each in PRECISIONS if each == folder.name)


@pytest.fixture
def both(folder: Path, model: Model) -> Both:
    """Sessions on the fused graph and on the gpu graph."""
    return fused(folder, model), fused(folder, model, flavour="gpu")


def bound(folder: Path) -> float:
    """What the order of sums may cost, in logits."""
    return 0.1 if folder.name == "fp16" else 1e-4


def test_the_graph_computes_what_the_reference_does(folder: Path, model: Model) -> None:
    precision = precision_of(folder)
    wanted = reference.logits(as_stored(model, precision), TEXT.tolist())
    found = logits(fused(folder, model, flavour="gpu"), TEXT)
    assert np.abs(found - wanted).max() < BOUNDS[precision] * np.ptp(wanted)


def test_a_text_in_any_calls_has_the_fused_graphs_logits(both: Both, folder: Path) -> None:
    plain, session = both
    wanted = plain.extend(TEXT[:40], num_logits=40).copy()
    for ends in ((40,), (1, 2, 3, 40), (7, 8, 30, 31, 40), (39, 40)):
        session.crop(0)
        start = 0
        for end in ends:
            found = session.extend(TEXT[:end], num_logits=end - start)
            np.testing.assert_allclose(found, wanted[start:end], rtol=0, atol=bound(folder))
            start = end


@pytest.mark.parametrize("cached", [0, 1, 4, 5])
def test_every_small_tree_has_the_logits_of_its_paths(
    cached: int, both: Both, folder: Path
) -> None:
    """All trees of up to three nodes behind five tokens; each row against its text as a chain."""
    plain, session = both
    text = TEXT[:5]
    for count in (1, 2, 3):
        for parents in itertools.product(*(range(len(text) + node) for node in range(count))):
            branches = Branches((7, 8, 9)[:count], parents)
            session.crop(0)
            if cached:
                session.extend(text[:cached])
            found = session.extend(text, branches=branches)
            assert len(found) == 1 + count
            for row, path in zip(found, paths(text.tolist(), branches), strict=True):
                wanted = plain.extend(np.array(path))[0]
                np.testing.assert_allclose(row, wanted, rtol=0, atol=bound(folder))


def paths(text: list[int], branches: Branches) -> list[list[int]]:
    """The text, and for each node the text that it ends."""
    found = [text]
    for token, parent in zip(branches.tokens, branches.parents, strict=True):
        before = text[: parent + 1] if parent < len(text) else found[parent - len(text) + 1]
        found.append([*before, token])
    return found


def test_nodes_are_forgotten_and_the_context_is_filled_to_its_end(
    folder: Path, model: Model
) -> None:
    plain, session = fused(folder, model), fused(folder, model, flavour="gpu", context=12)
    session.extend(TEXT[:9], branches=Branches((1, 2, 3), (2, 2, 9)))
    found = session.extend(TEXT[:12], num_logits=3)
    wanted = plain.extend(TEXT[:12], num_logits=3)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound(folder))
    session.crop(11)
    np.testing.assert_allclose(session.extend(TEXT[:12]), wanted[2:], rtol=0, atol=bound(folder))


def test_only_operators_that_every_runtime_reads(folder: Path) -> None:
    model = onnx.load(folder / graph_file("gpu"), load_external_data=False)
    assert model.ir_version == 8
    assert {entry.domain: entry.version for entry in model.opset_import} == {
        "": 17,
        "com.microsoft": 1,
    }
    assert {node.domain for node in model.graph.node} == {"", "com.microsoft"}
    assert not model.functions


def test_only_the_logits_that_are_asked_for_are_computed_and_brought(
    folder: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of a prompt's chunk, the proposal's of a round, nodes of a tree: no others."""
    brought: list[int] = []

    class Kept(fused_module._Call):  # where a call's arrays are bound
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            self.count = len(given[3])

        def binding(self, part: int) -> Any:
            brought.append(self.count)
            return super().binding(part)

    monkeypatch.setattr(fused_module, "_Call", Kept)
    monkeypatch.setattr(FusedSession, "chunk", 10)
    session = fused(folder, model, flavour="gpu")
    session.extend(TEXT[:35])
    assert brought == [1, 1, 1, 1], "four chunks"
    brought.clear()
    session.extend(TEXT[:40], num_logits=5)
    found = session.extend(TEXT[:43], num_logits=3, branches=Branches((5, 6, 7), (41, 43, 40)))
    assert brought == [5, 6] == [5, len(found)]
    graph = onnx.load(folder / graph_file("gpu"), load_external_data=False).graph
    gathers = [node for node in graph.node if "logits_rows" in node.input]
    assert len(gathers) == 1
    seen = set(gathers[0].output)
    products = 0
    for node in graph.node:
        if seen & set(node.input):
            seen |= set(node.output)
            products += node.op_type in ("MatMul", "Gemm", "MatMulNBits")
    assert products == 1, "the head alone comes after the choice of rows"
    assert "logits" in seen


def test_no_row_is_doubled_and_no_position_told(folder: Path) -> None:
    graph = onnx.load(folder / graph_file("gpu"), load_external_data=False).graph
    names = {value.name for value in graph.input}
    assert "places" in names
    assert not names & {"position_ids", "attention_rows", "attention_keep"}
    attention = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    assert len(attention) == tiny.LAYERS
    assert all(node.input[9] == "" for node in attention), "of WebGPU's operator it is ignored"
    gathered = {name for node in attention for name in node.input[7:9]}
    assert len(gathered) == 2, "one pair of tables for all layers"


def test_bytes_are_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no precision 'int8'; it has fp32, fp16, int4"):
        build_graphs(model, "int8", tmp_path, flavours=["gpu"])


def test_rows_that_do_not_fit_in_a_call_change_nothing(
    both: Both, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of up to four nodes, whose nodes lie between each other's."""
    known, found = both
    branches = Branches(tuple(range(30, 40)), (8, 3, 9, 10, 9, 8, 12, 14, 0, 15))
    wanted = known.extend(TEXT[:9], num_logits=2, branches=branches).copy()
    for widest in (4, 7, 18):
        monkeypatch.setattr(found, "_widest", None)
        found.crop(0)
        found.extend(TEXT[:6])
        monkeypatch.setattr(found, "_widest", widest)
        given = found.extend(TEXT[:9], num_logits=2, branches=branches)
        assert np.abs(given - wanted).max() < bound(folder)
        assert found.length == 9
    found.crop(6)
    monkeypatch.setattr(found, "_widest", 2)
    with pytest.raises(ProviderError, match="A call of 3 rows is more than CPU computes right"):
        found.extend(TEXT[:9], num_logits=2, branches=branches)
