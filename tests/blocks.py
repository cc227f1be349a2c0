"""GGUF's block types decoded one number at a time, as ggml's comments describe them."""

import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

# For each type: the format of a block's parts. "e" is a scale of half precision.
LAYOUTS = {
    "F32": "<f",
    "F16": "<e",
    "BF16": "<H",
    "Q4_0": "<e16s",
    "Q4_1": "<ee16s",
    "Q5_0": "<eI16s",
    "Q5_1": "<eeI16s",
    "Q8_0": "<e32b",
    "Q4_K": "<ee12s128s",
    "Q5_K": "<ee12s32s128s",
    "Q6_K": "<128s64s16be",
}
# Scales by which random blocks come out as numbers of about 0.1, centred on 0.
SCALES = {
    "Q4_0": (0.02,),
    "Q4_1": (0.02, -0.15),
    "Q5_0": (0.01,),
    "Q5_1": (0.01, -0.16),
    "Q8_0": (0.0015,),
    "Q4_K": (5e-4, 3.8e-3),
    "Q5_K": (2.5e-4, 3.9e-3),
    "Q6_K": (8e-5,),
}


def random_rows(name: str, rows: int, columns: int, *, seed: int) -> NDArray[np.uint8]:
    """Rows of random blocks of one type, [rows, bytes]; every bit but those of scales is random."""
    noise = np.random.default_rng(seed)
    if name in ("F32", "F16", "BF16"):
        values = (0.1 * noise.standard_normal((rows, columns))).astype(np.float32)
        if name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if name == "F16" else np.float32).view(np.uint8)
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = noise.integers(0, 256, (rows, columns // block, size), np.uint8)
    scales = np.array(SCALES[name], np.float16)
    spread = noise.uniform(0.5, 1.5, (rows, columns // block, 1))
    packed = (spread * scales).astype(np.float16).view(np.uint8)
    start = size - 2 if name == "Q6_K" else 0
    blocks[:, :, start : start + packed.shape[2]] = packed
    return blocks.reshape(rows, -1)


def decode(name: str, rows: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The numbers of rows of blocks, [rows, columns]."""
    size = struct.calcsize(LAYOUTS[name])
    return np.array(
        [
            [
                number
                for start in range(0, len(row), size)
                for number in _block(name, row[start : start + size])
            ]
            for row in map(bytes, rows)
        ]
    )


def _block(name: str, block: bytes) -> list[float]:
    parts = struct.unpack(LAYOUTS[name], block)
    if name in ("F32", "F16"):
        return [parts[0]]
    if name == "BF16":
        return [*struct.unpack("<f", struct.pack("<I", parts[0] << 16))]
    if name == "Q8_0":
        return [parts[0] * number for number in parts[1:]]
    if name == "Q6_K":
        return _q6_k(parts[0], parts[1], parts[2:18], parts[18])
    if name.endswith("_K"):
        high = parts[3] if name == "Q5_K" else bytes(32)
        return _with_minima(parts[0], parts[1], parts[2], high, parts[-1])
    low = [byte & 15 for byte in parts[-1]] + [byte >> 4 for byte in parts[-1]]
    if name.startswith("Q5"):
        low = [number + 16 * (parts[-2] >> place & 1) for place, number in enumerate(low)]
    if name.endswith("_1"):
        return [parts[0] * number + parts[1] for number in low]
    return [parts[0] * (number - (16 if name == "Q5_0" else 8)) for number in low]


def _with_minima(scale: float, least: float, packed: bytes, high: bytes, low: bytes) -> list[float]:
    """Q4_K and Q5_K: eight groups of 32, each with six bits of scale and six of minimum."""
    found = []
    for group in range(8):
        if group < 4:
            factor, minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            factor = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        for place in range(32):
            byte = low[group // 2 * 32 + place]
            number = (byte >> 4 if group % 2 else byte & 15) + 16 * (high[place] >> group & 1)
            found.append(scale * factor * number - least * minimum)
    return found


def _q6_k(low: bytes, high: bytes, factors: tuple[int, ...], scale: float) -> list[float]:
    """Sixteen groups of 16, each with eight bits of scale."""
    found = []
    for place in range(256):
        half, row, column = place // 128, place % 128 // 32, place % 32
        byte = low[64 * half + 32 * (row % 2) + column]
        nibble = byte >> 4 if row > 1 else byte & 15
        number = nibble + 16 * (high[32 * half + column] >> 2 * row & 3) - 32
        found.append(scale * factors[place // 16] * number)
    return found
