"""A change in 4 bits comes back as near as its 16 levels allow, and zero as zero."""

import numpy as np
import pytest

from export.change import BLOCK, change_of, quantise_change
from runtime.errors import BuildError

NOISE = np.random.default_rng(11)


def test_two_columns_lie_in_a_byte_by_hand() -> None:
    packed = np.full((2, BLOCK), 0x88, np.uint8)
    packed[0, :3] = 0x08, 0xF7, 0x19
    packed[1, BLOCK // 2] = 0x0F
    back = change_of(packed, np.array([[0.5, 1], [1, -2]], np.float16))
    wanted = np.zeros((2, 2 * BLOCK), np.float32)
    wanted[0, :6] = 0, -4, -0.5, 3.5, 0.5, -3.5
    wanted[1, BLOCK : BLOCK + 2] = -14, 16
    np.testing.assert_array_equal(back, wanted)


def test_what_levels_and_a_scale_can_say_comes_back_as_it_was() -> None:
    levels = NOISE.integers(-8, 8, (6, 3, BLOCK))
    levels[:, :, 0] = -8
    scales = (NOISE.uniform(0.5, 2, (6, 3, 1)) * [[1], [-1], [1e-3]]).astype(np.float16)
    change = (levels * scales.astype(np.float32)).reshape(6, -1).astype(np.float32)
    packed, found = quantise_change(change)
    assert packed.shape == (6, 3 * BLOCK // 2)
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(found, scales[:, :, 0])
    np.testing.assert_array_equal(change_of(packed, found), change)


def test_no_change_is_exactly_none() -> None:
    change = np.zeros((3, 2 * BLOCK), np.float32)
    change[1, BLOCK:] = 1
    back = change_of(*quantise_change(change))
    assert not back[[0, 2]].any()
    np.testing.assert_array_equal(back[1], change[1])


def test_the_error_is_smaller_than_that_of_one_scale() -> None:
    change = (NOISE.standard_normal((200, 10 * BLOCK)) * 1e-3).astype(np.float32)
    blocks = change.reshape(200, 10, BLOCK)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / 7
    plain = np.linalg.norm(np.rint(blocks / scales) * scales - blocks)
    lost = np.linalg.norm(change_of(*quantise_change(change)) - change)
    assert lost < 0.88 * plain
    assert lost < 0.082 * np.linalg.norm(change)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-38, 1e-6, 1e-4, 1.0, 1e4])
def test_changes_of_any_size_keep_within_a_step(size: float) -> None:
    change = (NOISE.uniform(-1, 1, (50, 2 * BLOCK)) * size).astype(np.float32)
    lost = np.abs(change_of(*quantise_change(change)) - change)
    finest = float(np.finfo(np.float16).smallest_subnormal)
    assert lost.max() <= max(size / 7, 8 * finest)


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(BuildError, match="change of 33 columns"):
        quantise_change(np.ones((2, BLOCK + 1), np.float32))
    with pytest.raises(BuildError, match="not finite"):
        quantise_change(np.full((2, BLOCK), np.nan, np.float32))
