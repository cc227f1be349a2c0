"""The calls of a trial, and what is said of two answers; the process itself is in test_trial.py."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from export.__main__ import main as export_main
from export.gguf_file import read
from runtime.branches import Branches, Rows
from runtime.flavours import open_graph
from runtime.manifest import Manifest
from runtime.providers import Place
from runtime.trial import BOUND, Trial
from runtime.trial_child import CONTEXT, Call, _compared, answers, calls, difference
from tests.drafts import TOKENS_PER_PASS, write_draft


def fed(asked: list[Call]) -> list[tuple[int, int]]:
    """Of each call how many rows were cached before, and how many are fed, as a session does."""
    found, cached = [], np.zeros(0, np.int64)
    for call in asked:
        if call.fresh:
            cached = cached[:0]
        most = min(len(cached), len(call.text) - call.num_logits)
        same = [one == other for one, other in zip(cached[:most], call.text, strict=False)]
        kept = same.index(False) if False in same else most
        found.append((kept, len(call.text) - kept + len(call.branches)))
        cached = call.text
    return found


@pytest.mark.parametrize("vocabulary", [271, 49152, 151936])
def test_the_calls_are_of_many_kinds(vocabulary: int) -> None:
    asked = calls(vocabulary, (), few=False)
    # A tree at the start, a lone row after a cut, eight rows, a tree, a lone row behind it, forty
    # rows from an empty cache, and a lone row behind these.
    assert fed(asked) == [(0, 6), (2, 1), (3, 8), (11, 6), (13, 1), (0, 40), (40, 1)]
    assert fed(calls(vocabulary, (), few=True)) == [(0, 6), (2, 1)]
    for call in asked:
        assert 0 <= call.text.min() <= call.text.max() < vocabulary
        assert len(call.text) + len(call.branches) <= CONTEXT
    for call in asked[0], asked[3]:
        rows = call.branches.behind(len(call.text))
        assert (rows.positions != len(call.text) + np.arange(len(rows))).any()
    assert len({int(token) for call in asked for token in call.text}) > 40


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_drafts_masks_stand_behind_one_another(count: int) -> None:
    masks = range(300, 300 + count)
    for few in (False, True):
        for call in calls(300, masks, few=few):
            found = [token for token in call.branches.tokens if token >= 300]
            most = count if len(call.text) > 4 else 2
            assert found == (list(masks)[:most] if call.branches else [])
            rows = call.branches.behind(len(call.text))
            ends = rows.positions[len(rows) - len(found) :]
            assert ends.tolist() == list(range(len(call.text), len(call.text) + len(found)))


def test_two_answers_are_compared() -> None:
    known = np.array([[0, 1, 5], [0, -3, 2], [4, 4, 1]], np.float32)
    found = known.copy()
    equal = {"largest_difference": 0.0, "spread": 8.0, "rows": 3, "equal": 3}
    assert difference(known, found) == equal
    found[1] = [2.5, -3, 2]
    assert difference(known, found) == equal | {"largest_difference": 2.5, "equal": 2}
    found[2, 0] = np.nan
    assert difference(known, found)["largest_difference"] == np.inf
    known[0, 0] = np.nan
    assert difference(known, known)["spread"] == 0


def compared(bundle: Path, graph: str, *, role: str = "target") -> dict[str, float]:
    """What a child finds on the CPU provider."""
    asked = {"bundle": str(bundle), "role": role, "graph": graph, "threads": 1}
    return _compared(asked | {"place": Place("CPU").as_data()})


@pytest.mark.parametrize("graph", ["fused-int8", "portable-fp32"])
def test_the_cpu_agrees_with_itself(graph: str, tiny_bundle: Path) -> None:
    found = compared(tiny_bundle, graph)
    assert (found["largest_difference"], found["rows"], found["equal"]) == (0, 27, 27)


def test_a_draft_is_tried_with_its_masks_and_its_own_head(tiny_gguf: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft.safetensors", read(tiny_gguf).model)
    flags = ["--draft", str(draft), "--graphs", "target/fused-int8,draft/portable-fp32"]
    assert export_main(["gguf", str(tiny_gguf), "--out", str(tmp_path / "bundle"), *flags]) == 0
    masks = TOKENS_PER_PASS - 1
    found = compared(tmp_path / "bundle", "portable-fp32", role="draft")
    assert (found["largest_difference"], found["rows"]) == (0, 27 + 2 * masks)


def logits(bundle: Path, *, few: bool) -> NDArray[np.float32]:
    manifest = Manifest.load(bundle)
    geometry = manifest.target.geometry
    session = open_graph(bundle, manifest.target.graphs["portable-fp32"], geometry, threads=1)
    return answers(session, calls(geometry.vocabulary, (), few=few))


def share(known: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    return Trial(**difference(known, found), seconds=0).share


@pytest.mark.parametrize("few", [True, False])
def test_a_place_taken_for_a_position_is_seen(
    *, few: bool, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As WebGPU's attention takes it, whatever it is told."""
    known = logits(tiny_bundle, few=few)
    behind = Branches.behind

    def misplaced(self: Branches, length: int) -> Rows:
        rows = behind(self, length)
        return Rows(rows.tokens, length + np.arange(len(rows)), rows.sees)

    monkeypatch.setattr(Branches, "behind", misplaced)
    assert share(known, logits(tiny_bundle, few=few)) > BOUND


@pytest.mark.parametrize("few", [True, False])
def test_other_weights_are_seen(*, few: bool, tiny_bundle: Path, tmp_path: Path) -> None:
    """One matrix of one layer turned round."""
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    folder = tmp_path / "bundle" / "target" / "fp32"
    graph = onnx.load(folder / "portable-8-rows.onnx", load_external_data=False).graph
    (matrix,) = (each for each in graph.initializer if each.name == "layers.1.o")
    at = {each.key: int(each.value) for each in matrix.external_data if each.key != "location"}
    with (folder / "weights.data").open("r+b") as file:
        file.seek(at["offset"])
        weights = np.frombuffer(file.read(at["length"]), np.float32)
        file.seek(at["offset"])
        file.write(weights[::-1].tobytes())
    assert share(logits(tiny_bundle, few=few), logits(tmp_path / "bundle", few=few)) > BOUND
