"""Each precision multiplies as numpy does with the weights it stored; int8 to the last integer."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from export.linear import INT4_BLOCK, Int8, Linear, linear_for, quantise_blocks, quantise_columns
from export.writer import GraphWriter, WeightFile
from runtime.errors import BuildError
from tests.extreme_rows import ADVERSARIAL, BORDERS, ROWS, WIDTH, whole_weights, with_norm
from tests.products import a_model, multiply, run
from tests.stored import blocks_back, columns_back

Array = NDArray[np.float32]
PRECISIONS = ("fp32", "int8", "int4")
NOISE = np.random.default_rng(7)
TINY = float(np.finfo(np.float32).tiny)  # scales below this are not used


def bytes_of(shifted: NDArray[Any]) -> NDArray[np.int64]:
    """hi and lo [n, 2, in] of what the graph shifted and casts next; fails where hi wraps."""
    assert shifted[:, 0].max() <= 255
    return shifted.astype(np.uint8).astype(np.int64) - 128


def test_both_bytes_are_the_whole_number_that_the_row_was_rounded_to(tmp_path: Path) -> None:
    watch = ("SimplifiedLayerNormalization", "BitShift")
    _, normed, inverses, shifted = multiply(tmp_path, whole_weights(24, WIDTH), ROWS, watch=watch)
    squares = (ROWS.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
    lengths = np.sqrt(squares + Int8.EPSILON)
    np.testing.assert_allclose(inverses[:, 0], 1 / lengths, rtol=1e-6)

    both = bytes_of(shifted)
    assert np.abs(both[:, 0]).max() == 127
    whole = 256 * both[:, 0] + both[:, 1]
    rounded = np.floor(normed[:, 0] + np.float32(Int8.OFFSET + 0.5)).astype(np.int64)
    np.testing.assert_array_equal(whole, rounded - int(Int8.OFFSET))
    assert np.abs(whole - ROWS / lengths * Int8.LEVELS / np.sqrt(WIDTH)).max() < 0.51
    assert np.abs(whole).max() == Int8.LEVELS
    named = dict(zip(ADVERSARIAL, zip(whole, both, strict=True), strict=True))
    for name in ("borders of the low byte", "the same, scaled"):
        assert named[name][0][: len(BORDERS)].tolist() == BORDERS
    assert set(named["low bytes at their ends"][1][1][:80]) == {127, -128}
    assert np.abs(named["one number"][0]).tolist() == [0] * (WIDTH - 1) + [Int8.LEVELS]
    for name in ("zeros", "minus zeros", "denormals", "squares below every number"):
        assert not named[name][0].any()
    # What is shorter than epsilon is measured as longer, and still not lost at once.
    assert np.abs(named["far below epsilon"][0]).max() == 1
    assert np.abs(named["below epsilon"][0]).max() > 100


@pytest.mark.parametrize("width", [WIDTH, 1536])
def test_the_integer_part_is_exact_for_any_number_of_rows_and_threads(
    width: int, tmp_path: Path
) -> None:
    ends = with_norm([127, -128] * 48, 2 * WIDTH)
    rows = np.zeros((len(ROWS) + 1, width), np.float32)
    rows[:-1, :WIDTH] = ROWS
    rows[-1, : min(width, 2 * WIDTH)] = ends[:width]
    matrix = whole_weights(40, width)
    matrix[:2] = 127 * np.array([[1], [-1]])
    watch = ("BitShift", "MatMulIntegerToFloat")

    def parts(count: int, threads: int) -> tuple[NDArray[Any], ...]:
        calls = [
            multiply(tmp_path, matrix, rows[start : start + count], watch=watch, threads=threads)
            for start in range(0, len(rows), count)
        ]
        return tuple(np.concatenate(found) for found in zip(*calls, strict=True))

    result, shifted, product = parts(len(rows), 1)
    both = bytes_of(shifted)
    sums = both @ matrix.T.astype(np.int64)
    assert np.abs(sums).max() < 2**24, "the sums are whole numbers in float32 too"
    np.testing.assert_array_equal(product, sums)
    for count, threads in ((1, 1), (2, 1), (3, 2), (1, 2), (len(rows), 2)):
        again, _, product_again = parts(count, threads)
        np.testing.assert_array_equal(product_again, product)
        np.testing.assert_array_equal(again, result)


def test_scales_of_columns_multiply_the_exact_sum(tmp_path: Path) -> None:
    matrix = NOISE.standard_normal((40, WIDTH)).astype(np.float32)
    matrix[3], matrix[4] = 0, matrix[4] * 1e4
    levels, scales = quantise_columns(matrix)
    watch = ("SimplifiedLayerNormalization", "BitShift", "MatMulIntegerToFloat")
    result, _, inverses, shifted, product = multiply(tmp_path, matrix, ROWS, watch=watch)
    both = bytes_of(shifted)
    sums = (both @ levels.T.astype(np.int64)).astype(np.float32)
    np.testing.assert_array_equal(product, sums * scales)
    # What is lost is half a step of the row, and float32's own rounding.
    exact = ROWS.astype(np.float64) @ (levels.T * scales.astype(np.float64))
    lengths = np.sqrt(WIDTH) / inverses[:, 0].astype(np.float64)
    weight_sizes = np.abs(levels).sum(axis=1) * scales
    bound = (0.51 / Int8.LEVELS + 1e-6) * lengths * weight_sizes
    assert (np.abs(result[:, 0].astype(np.float64) - exact) <= bound).all()
    # The graph computes the same when nothing is watched.
    (unwatched,) = multiply(tmp_path, matrix, ROWS)
    np.testing.assert_array_equal(unwatched, result)


def test_columns_by_hand() -> None:
    weight = np.array(
        [[0, 0, 0, 0], [127, -127, 1, 0.4], [-254, 3, 1, -1], [0.5, 0, 0, -0.25]], np.float32
    )
    levels, scales = quantise_columns(weight)
    assert levels.tolist() == [[0, 0, 0, 0], [127, -127, 1, 0], [-127, 2, 0, 0], [127, 0, 0, -64]]
    np.testing.assert_allclose(scales, [1, 1, 2, 0.5 / 127])
    assert levels.dtype == np.int8
    assert scales.dtype == np.float32


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-45, 1e-43, 1e-38, 1e-36, 1e-30, 1.0, 1e30, 3e38])
def test_columns_of_any_size_keep_within_half_a_step(size: float) -> None:
    weight = (NOISE.uniform(-1, 1, (20, 33)) * size).astype(np.float32)
    levels, scales = quantise_columns(weight)
    assert levels.min() >= -127
    back = levels * scales[:, None].astype(np.float64)
    assert np.abs(back - weight).max() <= max(
        0.5001 * scales[scales != 1].max(initial=0), 127 * TINY
    )


def test_blocks_by_hand() -> None:
    weight = np.zeros((2, 3 * INT4_BLOCK), np.float32)
    weight[0, :INT4_BLOCK] = np.arange(INT4_BLOCK) % 16  # from zero up
    weight[0, INT4_BLOCK : 2 * INT4_BLOCK] = -(np.arange(INT4_BLOCK) % 16) * 2  # from zero down
    weight[1, :INT4_BLOCK] = np.arange(INT4_BLOCK) % 16 - 5  # both signs
    weight[1, 2 * INT4_BLOCK] = 30  # one number
    packed, scales, zeros = quantise_blocks(weight)
    assert scales.tolist() == [1, 2, 1, 1, 1, 2]
    # Two zero points a byte, the even block in the low half; an odd row is filled up.
    assert zeros.tolist() == [0 | 15 << 4, 0, 5 | 0 << 4, 0]
    assert packed[0, 0].tolist() == [low | (low + 1) << 4 for low in range(0, 16, 2)] * 2
    np.testing.assert_array_equal(blocks_back(weight), weight)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-45, 1e-43, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("shift", [-1.5, -0.5, 0.0, 0.3, 2.0])
def test_blocks_of_any_size_keep_within_half_a_step(size: float, shift: float) -> None:
    weight = ((NOISE.uniform(-1, 1, (50, 3 * INT4_BLOCK)) + shift) * size).astype(np.float32)
    _, scales, _ = quantise_blocks(weight)
    steps = np.repeat(scales.reshape(50, 3), INT4_BLOCK, axis=1)
    lost = np.abs(blocks_back(weight).astype(np.float64) - weight)
    assert (lost <= np.where(steps == 1, 15 * TINY, 0.5001 * steps)).all()


def test_a_width_without_whole_blocks_is_refused() -> None:
    for width in (1, INT4_BLOCK - 1, INT4_BLOCK + 1):
        with pytest.raises(BuildError, match=f"int4 matrix of {width} columns.* multiple of 32"):
            quantise_blocks(np.ones((2, width), np.float32))


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("inexact", [False, True])
def test_int4_products_read_the_stored_weights(
    inexact: bool,  # noqa: FBT001
    blocks: int,
    tmp_path: Path,
) -> None:
    weight = NOISE.standard_normal((17, blocks * INT4_BLOCK)).astype(np.float32)
    weight[2], weight[3] = np.abs(weight[2]), 0
    one_by_one = np.eye(weight.shape[1], dtype=np.float32)
    make = partial(linear_for, inexact=inexact)
    (found,) = multiply(tmp_path, weight, one_by_one, "int4", make=make)
    np.testing.assert_allclose(found[:, 0].T, blocks_back(weight), atol=2e-6)
    rows = NOISE.standard_normal((5, weight.shape[1])).astype(np.float32)
    (found,) = multiply(tmp_path, weight, rows, "int4", make=make)
    lost = np.abs(found[:, 0] - rows @ blocks_back(weight).T)
    # A draft's rows are rounded to 8 bits, block by block; a target's are not.
    peaks = np.abs(rows).reshape(5, blocks, INT4_BLOCK).max(axis=2)
    sizes = np.abs(blocks_back(weight)).reshape(17, blocks, INT4_BLOCK).sum(axis=2)
    assert (lost <= peaks @ sizes.T / 254 * 1.01 * inexact + 3e-5).all()
    assert (lost.max() > 1e-4) == inexact


STORED: dict[str, Callable[[Array], Array]] = {
    "fp32": lambda weight: weight,
    "int8": columns_back,
    "int4": blocks_back,
}


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_embedding_gives_stored_rows(precision: str, width: int, tmp_path: Path) -> None:
    table = NOISE.standard_normal((50, width)).astype(np.float32)
    table[7] = 0
    tokens = np.array([0, 49, 7, 7, 12], np.int64)
    model = a_model({"embedding": table})
    (found,) = run(tmp_path, model, precision, lambda linear: linear.embed("tokens"), tokens=tokens)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, STORED[precision](table)[tokens], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_tied_head_reads_the_embedding(precision: str, tied: bool, tmp_path: Path) -> None:  # noqa: FBT001
    table, head = NOISE.standard_normal((2, 50, 96)).astype(np.float32)
    model = a_model({"embedding": table} if tied else {"embedding": table, "head": head})
    rows = np.eye(96, dtype=np.float32)  # exact in every precision

    def use(linear: Linear) -> str:
        linear.embed("tokens")
        return linear.project("head", "rows")

    tokens = np.array([0], np.int64)
    (found,) = run(tmp_path, model, precision, use, tokens=tokens, rows=rows[:, None, :])
    wanted = STORED[precision](table if tied else head)
    np.testing.assert_allclose(found[:, 0].T, wanted, atol=2e-6)
    graph = onnx.load(tmp_path / "graph", load_external_data=False).graph
    names = {tensor.name for tensor in graph.initializer if tensor.dims[:1] == [50]}
    assert ("head" in names) is not tied
    assert "embedding" in names


@pytest.mark.parametrize("precision", PRECISIONS)
def test_fused_projections_lie_beside_each_other(precision: str, tmp_path: Path) -> None:
    parts = {
        f"layers.0.{name}": NOISE.standard_normal((out, 64)).astype(np.float32)
        for name, out in {"q": 8, "k": 4, "v": 6, "gate": 5, "up": 5}.items()
    }
    rows = np.eye(64, dtype=np.float32)[:, None, :]
    for fused, names in {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}.items():
        (found,) = run(
            tmp_path,
            a_model(parts),
            precision,
            lambda linear, fused=fused: linear.project(f"layers.0.{fused}", "rows"),  # type: ignore[misc]
            rows=rows,
        )
        wanted = np.concatenate([STORED[precision](parts[f"layers.0.{name}"]) for name in names])
        np.testing.assert_allclose(found[:, 0].T, wanted, atol=2e-6)


def test_another_precision_is_refused(tmp_path: Path) -> None:
    with closing(WeightFile(tmp_path / "weights")) as weights:
        writer = GraphWriter(weights)
        with pytest.raises(BuildError, match="no precision 'int5'; it has fp32, fp16, int8, int4"):
            linear_for("int5", writer, a_model({}))
