"""The small graph that tries a device: what it computes, and what the script makes of it."""

from pathlib import Path

import numpy as np
import pytest

from runtime.errors import BundleError
from runtime.providers import Place, Smoke, smoke_test
from runtime.providers.smoke import FILE, HALVES, answer, rows, weights
from scripts.make_smoke_graph import main, smoke_graph


def test_the_answer_is_the_softmax_of_each_product() -> None:
    exact = np.exp(rows()[2].astype(np.float64) @ weights())
    np.testing.assert_allclose(answer()[2], exact / exact.sum(), rtol=1e-6)
    assert np.ptp(answer()) > 0.2, "a wrong answer could look right"
    for given in (rows(), weights()):
        assert np.array_equal(given.astype(np.float16).astype(np.float32), given)
        assert len(np.unique(given, axis=0)) == len(given)


def test_the_script_makes_the_same_file_again(tmp_path: Path) -> None:
    assert main(tmp_path) == 0
    for file in (FILE, HALVES):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
        assert len(file.read_bytes()) < 2000
    operators = [node.op_type for node in smoke_graph(np.float16).graph.node]
    assert operators == ["MatMul", "Softmax"]


def test_the_cpu_runs_it_right() -> None:
    found = smoke_test(Place("CPU"))
    assert found.right
    assert found.largest_difference < 1e-6
    in_halves = smoke_test(Place("CPU"), halves=True)
    assert in_halves.right
    assert in_halves.largest_difference > 1e-6


def test_a_place_that_answers_wrongly_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.providers.smoke.answer", lambda: answer() + np.float32(0.1))
    found = smoke_test(Place("CPU"))
    assert found.largest_difference == pytest.approx(0.1, rel=1e-4)
    assert not found.right
    monkeypatch.setattr("runtime.providers.smoke.FILE", FILE.with_name("absent.onnx"))
    with pytest.raises(BundleError, match=r"absent\.onnx cannot be loaded"):
        smoke_test(Place("CPU"))


@pytest.mark.parametrize(
    ("difference", "right"), [(0.0, True), (0.003, True), (0.0031, False), (float("nan"), False)]
)
def test_rounding_is_right_and_nothing_beyond(difference: float, right: bool) -> None:  # noqa: FBT001
    assert Smoke(difference, 0.3).right is right
