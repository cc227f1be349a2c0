"""The cores of this process, and keeping a thread on one of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def usable_cores() -> list[int]:
    """The logical cores this process may use, lowest first."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Keep the calling thread on one logical core, where the system can; None leaves it free."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
