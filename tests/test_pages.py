import mmap
import sys
from pathlib import Path

import pytest

from runtime.pages import LEAST_BYTES, Region, huge_pages, new_regions

M = LEAST_BYTES


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [], []),
        ([], [(0, M)], [(0, M)]),
        ([], [(0, M - 1)], []),
        ([(0, M)], [(0, M)], []),
        ([(0, M)], [(0, 3 * M)], [(M, 3 * M)]),
        ([(2 * M, 3 * M)], [(0, 3 * M)], [(0, 2 * M)]),
        ([(2 * M, 3 * M)], [(0, 5 * M)], [(0, 2 * M), (3 * M, 5 * M)]),
        ([(M, 2 * M), (4 * M, 5 * M)], [(0, 9 * M)], [(0, M), (2 * M, 4 * M), (5 * M, 9 * M)]),
        ([(0, 3 * M)], [(M, 2 * M)], []),
        ([(0, 2 * M)], [(M, 4 * M)], [(2 * M, 4 * M)]),
        ([(9 * M, 10 * M)], [(0, M), (2 * M, 3 * M)], [(0, M), (2 * M, 3 * M)]),
    ],
)
def test_what_is_new(before: list[Region], after: list[Region], expected: list[Region]) -> None:
    assert new_regions(before, after) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/smaps")
def test_memory_allocated_inside_is_advised_and_other_memory_is_not() -> None:
    outside = mmap.mmap(-1, 4 * M, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with huge_pages():
        inside = mmap.mmap(-1, 4 * M, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        inside[0] = 1
    flags = [
        line.split()[1:]
        for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
        if line.startswith("VmFlags")
    ]
    assert any("hg" in each for each in flags)
    assert any("hg" not in each and "rd" in each for each in flags)
    inside.close()
    outside.close()
