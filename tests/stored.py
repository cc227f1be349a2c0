"""What a graph of a precision keeps of a matrix, as float32 again, and what int8 keeps of rows."""

import numpy as np
from numpy.typing import NDArray

from export.linear import INT4_BLOCK, Int8, quantise_blocks, quantise_columns

Array = NDArray[np.float32]
ONE_BYTE = np.float32(Int8.CLIP / 127)  # the step of a normed row


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


def one_byte(rows: Array) -> NDArray[np.int64]:
    """What int8 keeps of normed rows: whole steps, halves to the even one, cut off at the ends."""
    steps: Array = np.rint(np.clip(rows / ONE_BYTE, -128, 127))
    return steps.astype(np.int64)


def two_bytes_back(rows: Array) -> Array:
    """What int8 keeps of all other rows [n, in], as float32."""
    one = np.float32(Int8.LEVELS / np.sqrt(rows.shape[1]))
    squares = np.mean(rows * rows, axis=1, keepdims=True)
    steps = one / np.sqrt(squares + np.float32(Int8.EPSILON))
    back: Array = np.floor(rows * steps + np.float32(0.5)) / steps
    return back
