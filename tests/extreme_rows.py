"""Rows on which a split in two bytes could go wrong, and matrices of whole numbers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from export.linear import Int8

Array = NDArray[np.float32]
WIDTH = 96
NOISE = np.random.default_rng(7)


def with_norm(steps: Sequence[float], width: int) -> Array:
    """A row whose length is 32512 and whose first places hold `steps`: steps of the two bytes."""
    row = np.zeros(width)
    row[: len(steps)] = steps
    row[-1] = np.sqrt(Int8.LEVELS**2 - (row**2).sum())
    return row.astype(np.float32)


BORDERS = [127, 128, 129, -127, -128, -129, 255, 256, 257, -255, -256, -257, 383, 384, -384, -385]
HALVES = [place + 0.5 for place in BORDERS]
ADVERSARIAL: dict[str, Array] = {
    "borders of the low byte": with_norm(BORDERS, WIDTH),
    "the same, scaled": with_norm(BORDERS, WIDTH) * np.float32(3e-4),
    "halves": with_norm(HALVES, WIDTH),
    "low bytes at their ends": with_norm([127, -128] * 40, WIDTH),
    "zeros": np.zeros(WIDTH, np.float32),
    "minus zeros": -np.zeros(WIDTH, np.float32),
    "one number": with_norm([], WIDTH),
    "one negative number": -with_norm([], WIDTH),
    "a huge outlier": np.r_[NOISE.standard_normal(WIDTH - 1), 1e15].astype(np.float32),
    "an outlier": np.r_[-1e3, NOISE.standard_normal(WIDTH - 1)].astype(np.float32),
    "noise": NOISE.standard_normal(WIDTH).astype(np.float32),
    "ones": np.ones(WIDTH, np.float32),
    "denormals": (NOISE.standard_normal(WIDTH) * 1e-40).astype(np.float32),
    "squares below every number": np.full(WIDTH, -1e-23, np.float32),
    "squares without their bits": (NOISE.standard_normal(WIDTH) * 1e-22).astype(np.float32),
    "one number, its square denormal": np.r_[np.zeros(WIDTH - 1), 7e-23].astype(np.float32),
    "far below epsilon": (NOISE.standard_normal(WIDTH) * 1e-10).astype(np.float32),
    "below epsilon": (NOISE.standard_normal(WIDTH) * 1e-7).astype(np.float32),
    "about epsilon": (NOISE.standard_normal(WIDTH) * 1e-6).astype(np.float32),
    "one number below epsilon": np.r_[np.zeros(WIDTH - 1), -9e-7].astype(np.float32),
}
ROWS = np.stack(list(ADVERSARIAL.values()))


def whole_weights(out: int, width: int) -> Array:
    """Whole numbers up to ±127 in each row, so that the scales are one."""
    matrix = NOISE.integers(-127, 128, (out, width)).astype(np.float32)
    matrix[:, 0] = np.where(np.arange(out) % 2, 127, -127)
    return matrix
