"""Primitive operators multiply as the fused ones do, to within half a step of a row."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from export.linear import Int8, primitive_linear_for, quantise_columns
from export.writer import GraphWriter, WeightFile
from runtime.errors import BuildError
from tests.extreme_rows import ADVERSARIAL, BORDERS, ROWS, WIDTH, whole_weights
from tests.products import a_model, multiply, run
from tests.stored import columns_back

Array = NDArray[np.float32]
NOISE = np.random.default_rng(8)
product = partial(multiply, make=primitive_linear_for)


def test_both_bytes_are_the_whole_number_that_the_row_was_rounded_to(tmp_path: Path) -> None:
    watch = ("BitShift", "MatMulInteger")
    matrix = whole_weights(24, WIDTH)
    (found, shifted, sums) = product(tmp_path, matrix, ROWS, watch=watch)
    squares = (ROWS.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
    lengths = np.sqrt(squares + Int8.EPSILON)
    assert shifted.max() <= 255, "the high byte does not wrap"
    high, low = np.split(sums.astype(np.int64), 2)  # one below the other
    whole = 256 * (shifted.astype(np.int64) - 128)  # what the high byte is worth
    exact = ROWS / lengths * Int8.LEVELS / np.sqrt(WIDTH)
    assert (np.abs(whole - exact) <= 128.51).all(), "the low byte has the rest"
    np.testing.assert_array_equal(
        high, (shifted.astype(np.int64) - 128) @ matrix.T.astype(np.int64)
    )
    units = lengths * np.sqrt(WIDTH) / Int8.LEVELS
    np.testing.assert_allclose(found, (256 * high + low) * units, rtol=1e-6, atol=1e-30)
    bordered = list(ADVERSARIAL).index("borders of the low byte")
    high_bytes = (np.array(BORDERS) + 128) // 256
    assert (shifted.astype(np.int64)[bordered, : len(BORDERS)] - 128).tolist() == (
        high_bytes.tolist()
    )


@pytest.mark.parametrize("name", ["layers.0.qkv", "layers.0.down", "head"])
def test_what_two_bytes_lose_is_half_a_step(name: str, tmp_path: Path) -> None:
    matrix = NOISE.standard_normal((40, WIDTH)).astype(np.float32)
    matrix[3], matrix[4] = 0, matrix[4] * 1e4
    levels, scales = quantise_columns(matrix)
    (found,) = product(tmp_path, matrix, ROWS, name=name)
    exact = ROWS.astype(np.float64) @ (levels.T * scales.astype(np.float64))
    squares = (ROWS.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
    lengths = np.sqrt(WIDTH * (squares + Int8.EPSILON))
    bound = (0.51 / Int8.LEVELS + 1e-6) * lengths * np.abs(levels).sum(axis=1) * scales
    assert (np.abs(found - exact) <= bound).all()
    (fused,) = multiply(tmp_path, matrix, ROWS, name=name)
    assert (np.abs(found - fused[:, 0]) <= 2 * bound).all()


@pytest.mark.parametrize("name", ["layers.0.qkv", "layers.0.o", "head"])
def test_int8_is_written_in_the_standards_own_operators(name: str, tmp_path: Path) -> None:
    rows = NOISE.standard_normal((2, WIDTH)).astype(np.float32)
    product(tmp_path, whole_weights(6, WIDTH), rows, name=name)
    nodes = onnx.load(tmp_path / "graph").graph.node
    assert {node.domain for node in nodes} == {""}
    kinds = [node.op_type for node in nodes]
    assert kinds.count("MatMulInteger") == 1, "the weights are read once"
    assert kinds.count("BitShift") == 1


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-6), ("fp16", 2e-3)])
@pytest.mark.parametrize("name", ["layers.0.o", "head"])
def test_floats_multiply(name: str, precision: str, bound: float, tmp_path: Path) -> None:
    matrix = NOISE.standard_normal((40, WIDTH)).astype(np.float32)
    real = np.float16 if precision == "fp16" else np.float32
    rows: NDArray[Any] = NOISE.standard_normal((5, WIDTH)).astype(real)
    (found,) = product(tmp_path, matrix, rows, precision, name=name)
    assert found.dtype == real
    wanted = rows.astype(np.float64) @ matrix.T.astype(np.float64)
    assert np.abs(found - wanted).max() < bound * np.abs(wanted).max()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_embedding_gives_stored_rows(precision: str, tmp_path: Path) -> None:
    table = NOISE.standard_normal((50, WIDTH)).astype(np.float32)
    tokens = np.array([0, 49, 7, 7, 12], np.int32)
    (found,) = run(
        tmp_path,
        a_model({"embedding": table}),
        precision,
        lambda linear: linear.embed("tokens"),
        make=primitive_linear_for,
        tokens=tokens,
    )
    stored: dict[str, NDArray[Any]] = {
        "fp32": table,
        "fp16": table.astype(np.float16),
        "int8": columns_back(table),
    }
    np.testing.assert_allclose(found, stored[precision][tokens], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("precision", ["int4", "int5", ""])
def test_another_precision_is_refused(precision: str, tmp_path: Path) -> None:
    with closing(WeightFile(tmp_path / "weights")) as weights:
        writer = GraphWriter(weights)
        with pytest.raises(BuildError, match=f"no precision '{precision}'; it has fp32"):
            primitive_linear_for(precision, writer, a_model({}))
