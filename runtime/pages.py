"""Huge pages for weights: memory that every step reads from end to end.

ONNX Runtime copies weights into memory of its own, packed as its kernels want them. On pages of
4 kB a step looks up tens of thousands of addresses; most Linux systems give larger pages, but only
where a program asks for them (see madvise(2)).
"""

import ctypes
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEAST_BYTES = 4 * 2**20  # of a region worth asking for: two huge pages
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25  # at once, not when the kernel finds the time; Linux 6.1
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?$")

Region = tuple[int, int]  # first address and the one past the last


@contextmanager
def huge_pages() -> Iterator[None]:
    """Ask for huge pages behind what is allocated inside; does nothing where there are none."""
    before = _regions()
    yield
    if before:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for start, end in new_regions(before, _regions()):
            for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
                madvise(start, end - start, advice)  # a refusal changes nothing


def new_regions(before: list[Region], after: list[Region]) -> list[Region]:
    """What lies in `after` and not in `before`, in pieces of at least LEAST_BYTES.

    Both are in ascending order. The kernel joins neighbours, so a region may hold old memory too.
    """
    found = []
    for start, end in after:
        new_from = start
        for old_start, old_end in before:
            if old_end > new_from and old_start < end:
                found.append((new_from, old_start))
                new_from = old_end
        found.append((new_from, end))
    return [(start, end) for start, end in found if end - start >= LEAST_BYTES]


def _regions() -> list[Region]:
    """The process's writable anonymous memory; empty where the system is not Linux."""
    if sys.platform != "linux":
        return []
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    matches = (_ANONYMOUS.match(line) for line in lines)
    return [(int(match[1], 16), int(match[2], 16)) for match in matches if match]
