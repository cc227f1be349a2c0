"""Reads the header of a GGUF file: its key-value pairs, and where each tensor's bytes lie.

Nothing is trusted: every count, length and offset is held against the bytes that are there, before
memory is taken for it. Format: the GGUF specification of ggml, versions 2 and 3, little-endian.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from runtime.errors import BuildError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # of the tensors' bytes, where the file names no other
SMALLEST = 24  # bytes of magic, version and the two counts

# Far above what real files hold (a vocabulary of 262,144 tokens, 1,000 tensors), and small enough
# that a header of nonsense takes neither much memory nor much time.
MAX_PAIRS = MAX_TENSORS = 1 << 16
MAX_ITEMS = 1 << 22  # of all arrays together
MAX_HEADER_BYTES = 1 << 27
MAX_DIMENSIONS = 4

TEXT, ARRAY = 8, 9
NUMBERS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as it lies in the file; `shape` is in the order of numpy, the file's reversed.

    `kind` is the file's number for its block type; `data` are its bytes, mapped and not yet read.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Header:
    """The pairs as Python values, and the tensors by name."""

    pairs: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_header(path: Path) -> Header:
    """Read the header; BuildError, saying where, for a file that is not sound GGUF."""
    if not path.is_file():
        raise BuildError(f"{path} is not a file.")
    try:
        if path.stat().st_size < SMALLEST:
            raise BuildError(f"{path} is not a GGUF file: it is too short for a header.")
        data: NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror or error}.") from error
    return _Reader(path, data).header()


class _Reader:
    """Walks over the bytes; `_where` names, for an error, what is being read."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self._path, self._data = path, data
        self._bytes = data.data
        self._place = 0
        self._items_left = MAX_ITEMS
        self._where = "the first bytes"

    def header(self) -> Header:
        if bytes(self._bytes[:4]) != MAGIC:
            raise BuildError(f"{self._path} is not a GGUF file: it does not start with 'GGUF'.")
        self._place = 4
        version = self._number("<I")
        if version not in VERSIONS:
            raise self._unsound(f"its version is {version}, and only little-endian 2 and 3 work")
        tensors = self._count("<Q", MAX_TENSORS, "tensors")
        count = self._count("<Q", MAX_PAIRS, "pairs")
        pairs: dict[str, Any] = {}
        for number in range(count):
            self._where = f"the key {number + 1} of {count}"
            key = self._text()
            if key in pairs:
                raise self._unsound(f"the key {key!r} stands there twice")
            self._where = f"the value of {key!r}"
            pairs[key] = self._value(self._number("<I"))
        return Header(pairs, self._tensors(tensors, pairs.get("general.alignment", ALIGNMENT)))

    def _tensors(self, count: int, alignment: Any) -> dict[str, StoredTensor]:
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._unsound(f"general.alignment is {alignment!r}, not a power of two")
        infos = []
        for number in range(count):
            self._where = f"the tensor {number + 1} of {count}"
            name = self._text()
            self._where = f"the description of the tensor {name!r}"
            dimensions = self._count("<I", MAX_DIMENSIONS, "dimensions")
            shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
            infos.append((name, shape, self._number("<I"), self._number("<Q")))
        start = -(-self._place // alignment) * alignment
        found: dict[str, StoredTensor] = {}
        end = start
        for name, shape, kind, offset in sorted(infos, key=lambda info: info[3]):
            self._where = f"the tensor {name!r}"
            if name in found:
                raise self._unsound("it stands there twice")
            if offset % alignment:
                raise self._unsound(f"its offset {offset} is no multiple of {alignment}")
            if start + offset < end:
                raise self._unsound("it overlaps the tensor before it")
            end = start + offset + self._size(shape, kind)
            if end > len(self._data):
                raise self._unsound(f"the file ends {end - len(self._data)} bytes before it does")
            found[name] = StoredTensor(name, shape, kind, self._data[start + offset : end])
        return found

    def _size(self, shape: tuple[int, ...], kind: int) -> int:
        """The bytes of a tensor; BuildError for a type that does not exist or parts of a block."""
        try:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise self._unsound(f"the block type {kind} is unknown") from None
        if shape and shape[-1] % block:
            raise self._unsound(f"rows of {shape[-1]} are no whole blocks of {block}")
        return int(math.prod(shape) // block * size)

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == ARRAY:
            return self._array()
        return self._numbers(kind, 1)[0]

    def _array(self) -> list[Any]:
        kind = self._number("<I")
        count = self._count("<Q", self._items_left, "further values")
        self._items_left -= count
        if kind == TEXT:
            return [self._text() for _ in range(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in NUMBERS:
            raise self._unsound(f"it holds values of the type {kind}, which is not known there")
        dtype = np.dtype(NUMBERS[kind])
        values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return values

    def _count(self, code: str, most: int, what: str) -> int:
        count = self._number(code)
        if count > most:
            raise self._unsound(f"it claims {count} {what} where {most} are the most")
        return count

    def _number(self, code: str) -> int:
        number: int = struct.unpack(code, self._take(struct.calcsize(code)))[0]
        return number

    def _text(self) -> str:
        try:
            return str(self._take(self._number("<Q")), "utf-8")
        except UnicodeDecodeError:
            raise self._unsound("it is not UTF-8") from None

    def _take(self, size: int) -> memoryview:
        end = self._place + size
        if end > len(self._bytes):
            raise self._unsound("the file ends there")
        if end > MAX_HEADER_BYTES:
            raise self._unsound(f"the header is longer than {MAX_HEADER_BYTES} bytes")
        taken = self._bytes[self._place : end]
        self._place = end
        return taken

    def _unsound(self, why: str) -> BuildError:
        return BuildError(
            f"{self._path} is not a GGUF file that can be read: in {self._where}, {why}."
        )
