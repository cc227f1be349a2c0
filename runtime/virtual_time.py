"""A clock that stands while any thread works and leaps, once all wait, to what comes first.

Threads take turns: one works until it waits, then the next that can goes on, so that what happens
at one moment always happens in the same order. Working itself takes no time; a run on a device,
a sleep and a time limit do (a conservative simulation of discrete events).
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from runtime.errors import MirrorError
from runtime.profiles import Profile
from runtime.progress import Job, Progress, Role


@dataclass(slots=True, eq=False)
class _Wait:
    """A thread that waits: for its turn at `deadline`, at the end of `job`, or when woken."""

    deadline: float = inf
    job: Job | None = None
    turn: threading.Event = field(default_factory=threading.Event)

    def due(self, now: float) -> bool:
        return self.deadline <= now or (self.job is not None and self.job.ended is not None)


class VirtualTiming:
    """Timing and devices of a simulation; the thread that makes it has the first turn.

    Every other thread that takes part comes from `thread`. `late` stays 0: computing takes no time.
    """

    late = 0

    def __init__(self, profile: Profile) -> None:
        """It is 0 seconds."""
        self.profile = profile
        self._progress = Progress(profile)
        self._lock = threading.Lock()
        self._waits: list[_Wait] = []
        self._ready: deque[_Wait] = deque()

    @property
    def timing(self) -> "VirtualTiming":
        """What its threads wait by: itself."""
        return self

    def __call__(self) -> float:
        """Seconds of the simulation so far."""
        return self._progress.now

    def sleep(self, seconds: float) -> None:
        """Give up the turn for so long."""
        with self._lock:
            wait = self._wait(_Wait(self._progress.now + seconds))
        wait.turn.wait()

    def count(self, start: int) -> "_VirtualCount":
        """A count whose waits the clock knows of."""
        return _VirtualCount(self, start)

    def thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        """A thread that begins with its first turn."""
        return _VirtualThread(self, work, name)

    def start(self, role: Role, rows: int, share: float) -> Job:
        """A call begins now."""
        with self._lock:
            return self._progress.start(role, rows, share=share, now=self._progress.now)

    def finish(self, job: Job) -> None:
        """Give up the turn until the call ends."""
        with self._lock:
            wait = self._wait(_Wait(job=job))
        wait.turn.wait()

    def drop(self, job: Job) -> None:
        """The call ends now."""
        with self._lock:
            self._progress.drop(job, now=self._progress.now)

    def _wait(self, wait: _Wait) -> _Wait:
        """Give the turn to who comes next; the lock is held."""
        self._waits.append(wait)
        self._hand_over()
        return wait

    def _wake(self, wait: _Wait) -> None:
        """A thread that waits can go on; the lock is held."""
        if wait in self._waits:
            self._waits.remove(wait)
            self._ready.append(wait)

    def _hand_over(self) -> None:
        """Give the turn to the first that can go on, if need be after a leap; the lock is held."""
        while self._waits and not self._ready:
            ends = self._progress.next_end()
            moment = min([wait.deadline for wait in self._waits] + ([] if ends is None else [ends]))
            if moment == inf:
                raise MirrorError("Every thread of the simulation waits for another one.")
            self._progress.settle(moment)
            for wait in [wait for wait in self._waits if wait.due(self._progress.now)]:
                self._wake(wait)
        if self._ready:
            self._ready.popleft().turn.set()


class _VirtualCount:
    """A number of things; who waits for one gives up its turn."""

    def __init__(self, timing: VirtualTiming, start: int) -> None:
        self._timing = timing
        self._things = start
        self._waiting: _Wait | None = None

    def acquire(self, *, timeout: float) -> bool:
        timing = self._timing
        if not self._things and timeout > 0:
            with timing._lock:
                self._waiting = timing._wait(_Wait(timing() + timeout))
            self._waiting.turn.wait()
            self._waiting = None
        if not self._things:
            return False
        self._things -= 1
        return True

    def release(self) -> None:
        with self._timing._lock:
            self._things += 1
            if self._waiting is not None:
                self._timing._wake(self._waiting)


class _VirtualThread(threading.Thread):
    """A thread that takes turns with the others."""

    def __init__(self, timing: VirtualTiming, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._timing, self._work = timing, work
        self._first = _Wait()
        self._over = False
        self._joining: list[_Wait] = []

    def start(self) -> None:
        super().start()
        with self._timing._lock:
            self._timing._ready.append(self._first)

    def run(self) -> None:
        self._first.turn.wait()
        try:
            self._work()
        finally:
            with self._timing._lock:
                self._over = True
                for wait in self._joining:
                    self._timing._wake(wait)
                self._timing._hand_over()

    def join(self, timeout: float | None = None) -> None:
        timing = self._timing
        if not self._over:
            with timing._lock:
                wait = timing._wait(_Wait(inf if timeout is None else timing() + timeout))
                self._joining.append(wait)
            wait.turn.wait()
        if self._over:
            super().join()
