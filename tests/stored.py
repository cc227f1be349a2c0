"""What a graph of a precision keeps of a matrix, as float32 again."""

import numpy as np
from numpy.typing import NDArray

from export.linear import INT4_BLOCK, quantise_blocks, quantise_columns

Array = NDArray[np.float32]


def columns_back(weight: Array) -> Array:
    """What int8 stores, as float32."""
    levels, scales = quantise_columns(weight)
    return levels * scales[:, None]


def blocks_back(weight: Array) -> Array:
    """What int4 stores, unpacked again by the layout that MatMulNBits documents."""
    packed, scales, zeros = quantise_blocks(weight)
    out, blocks, _ = packed.shape
    assert packed.shape == (out, blocks, INT4_BLOCK // 2)
    assert scales.shape == (out * blocks,)
    assert zeros.shape == (out * -(-blocks // 2),)
    levels = np.stack([packed & 15, packed >> 4], axis=-1).reshape(out, blocks, INT4_BLOCK)
    points = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(out, -1)[:, :blocks]
    steps = levels.astype(np.float32) - points[:, :, None]
    back: Array = (steps * scales.reshape(out, blocks, 1)).reshape(out, -1).astype(np.float32)
    return back
