"""The change of a matrix in 4 bits: what a draft has become, less what it began as.

In blocks of 32 columns, each with a scale: two columns to a byte, the even one in the low half, and
each half less 8, times the scale, is a column's change. A scale may be negative, so the larger end
of the 16 levels is there for either sign.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BuildError

BLOCK = 32
# Where a block's largest change may stand, in steps; the best place differs from block to block.
PLACES = (-9, -8.5, -8, -7.5, -7, -6.5, -6)

Array = NDArray[np.float32]


def quantise_change(change: Array) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """A change [out, in] in 4 bits by least error: uint8 [out, in / 2], float16 [out, in / 32].

    Raises BuildError where `in` is no multiple of 32 and where a number is not finite.
    """
    out, width = change.shape
    if width % BLOCK:
        raise BuildError(f"A change of {width} columns cannot be kept: {BLOCK} go together.")
    if not np.isfinite(change).all():
        raise BuildError("A change holds numbers that are not finite: train the draft again.")
    blocks = change.reshape(out, -1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[:, :, None], axis=2)
    best_levels, best_scales = np.zeros_like(blocks), np.zeros_like(largest)
    least = np.full_like(largest, np.inf)
    for place in PLACES:
        for levels, scales in _fits(blocks, largest / np.float32(place)):
            error = ((blocks - levels * scales) ** 2).sum(axis=2, keepdims=True)
            better = error < least
            least = np.where(better, error, least)
            best_levels = np.where(better, levels, best_levels)
            best_scales = np.where(better, scales, best_scales)
    halves = (best_levels + 8).astype(np.uint8).reshape(out, width)
    packed = halves[:, ::2] | np.left_shift(halves[:, 1::2], 4, dtype=np.uint8)
    return packed, best_scales[:, :, 0].astype(np.float16)


def change_of(packed: NDArray[np.uint8], scales: NDArray[np.float16]) -> Array:
    """What `quantise_change` kept, [out, in] float32."""
    levels = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8
    blocks = levels.reshape(*scales.shape, BLOCK) * scales.astype(np.float32)[:, :, None]
    return blocks.reshape(len(packed), -1)


def _fits(blocks: Array, scales: Array) -> Iterator[tuple[Array, Array]]:
    """Levels by the scales and the best scales for these; then levels by those, and so on once."""
    for _ in range(2):
        scales = scales.astype(np.float16).astype(np.float32)
        steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
        levels = np.clip(np.rint(steps), -8, 7)
        products = (blocks * levels).sum(axis=2, keepdims=True)
        scales = products / np.maximum((levels**2).sum(axis=2, keepdims=True), 1)
        scales = scales.astype(np.float16).astype(np.float32)
        yield levels, scales
