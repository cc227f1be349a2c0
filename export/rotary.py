"""Rotary position embedding (Su et al. 2021): the angles by which queries and keys are turned."""

import numpy as np
from numpy.typing import NDArray

from export.model import Model


def rotary_tables(model: Model, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosine and sine of the angles of positions 0, 1, …, each [positions, head_size / 2] float32.

    Where the model has `rope_factors`, each frequency is divided by its factor.
    """
    half = model.geometry.head_size // 2
    frequencies = model.geometry.rope_base ** (-np.arange(half, dtype=np.float64) / half)
    frequencies /= model.weights.get("rope_factors", 1.0)
    angles = np.outer(np.arange(positions, dtype=np.float64), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
