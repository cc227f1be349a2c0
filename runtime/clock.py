"""Time as a session's threads have it: how late it is, and every way they wait.

What waits does so through a Timing, so that a clock that does not follow the real one knows when
nobody has anything left to do.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

Clock: TypeAlias = Callable[[], float]  # seconds since some moment


class Count(Protocol):
    """A number of things to wait for; each side of it is one thread's."""

    def acquire(self, *, timeout: float) -> bool:
        """Take one; False when there is none in `timeout` seconds."""

    def release(self) -> None:
        """Add one."""


class Timing(Protocol):
    """A clock, and what waits by it."""

    def __call__(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""

    def count(self, start: int) -> Count:
        """A number of things to wait for, `start` of which are there."""

    def thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        """A daemon thread, to be started, that does `work`."""


class RealTiming:
    """The real clock, at its pace or `scale` times as slow: what waits, waits longer then."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self._origin = 0.0

    def __call__(self) -> float:
        """What perf_counter says, slowed down."""
        return self._origin + time.perf_counter() / self.scale

    def rescale(self, scale: float) -> None:
        """Go on from now at another pace."""
        now = self()
        self.scale = scale
        self._origin += now - self()

    def sleep(self, seconds: float) -> None:
        """Leave the processor to others."""
        time.sleep(seconds * self.scale)

    def count(self, start: int) -> Count:
        """Unlike a semaphore's, its lock survives an interrupt."""
        return _Queued(start, self)

    def thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        """A plain thread."""
        return threading.Thread(target=work, name=name, daemon=True)


REAL_TIMING = RealTiming()


class _Queued:
    """A count of what lies in a queue."""

    def __init__(self, start: int, timing: RealTiming) -> None:
        self._timing = timing
        self._things: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(start):
            self.release()

    def acquire(self, *, timeout: float) -> bool:
        try:
            self._things.get(timeout=min(timeout * self._timing.scale, threading.TIMEOUT_MAX))
        except queue.Empty:
            return False
        return True

    def release(self) -> None:
        self._things.put(None)
