"""Emulated devices: a call really computes, then waits until its modelled end.

What a call takes comes from a device profile and from how the two devices' calls overlap, never
from what the planner believes: it could not prove that wrong else.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from runtime.clock import RealTiming
from runtime.errors import UsageError
from runtime.profiles import Profile
from runtime.progress import Job, Progress, Role

NEAR_S = 0.001  # before a run's end a thread is awake, since a long wait ends late
WHOLE: Mapping[str, float] = {"whole": 1.0}


class Devices(Protocol):
    """What runs calls on two devices."""

    def start(self, role: Role, rows: int, share: float) -> Job:
        """A call begins."""

    def finish(self, job: Job) -> None:
        """Its computing is done: wait for its modelled end."""

    def drop(self, job: Job) -> None:
        """Its computing failed."""


class Pacer:
    """Gives a model's calls the time they would take on its device."""

    def __init__(
        self, devices: Devices, role: Role, *, shares: Mapping[str, float] = WHOLE
    ) -> None:
        """shares: what each part of the model costs of the whole of it."""
        self._devices, self._role, self._shares = devices, role, shares

    def __call__(self, part: str, rows: int) -> AbstractContextManager[None]:
        """Pace a call of `rows` rows; UsageError for a part that has no share."""
        share = self._shares.get(part)
        if share is None:
            raise UsageError(f"The part {part!r} of the {self._role} cannot be emulated.")
        return self._paced(rows, share)

    @contextmanager
    def _paced(self, rows: int, share: float) -> Iterator[None]:
        job = self._devices.start(self._role, rows, share)
        try:
            yield
        except BaseException:
            self._devices.drop(job)
            raise
        self._devices.finish(job)


class EmulatedDevices:
    """Devices in real time, `scale` times as slow: each call's thread waits for its end.

    `late` counts calls whose computing took longer than their modelled time: a figure with one of
    them is void.
    """

    def __init__(self, profile: Profile, *, scale: float = 1.0) -> None:
        """Both devices sleep at first."""
        self.profile = profile
        self.scale = scale
        self.timing = RealTiming(scale)
        self.late = 0
        self._progress = Progress(profile, now=self.timing())
        self._changed = threading.Condition()

    def start(self, role: Role, rows: int, share: float) -> Job:
        """The call begins now, which may move the end of the other device's."""
        with self._changed:
            job = self._progress.start(role, rows, share=share, now=self.timing())
            self._changed.notify_all()
            return job

    def finish(self, job: Job) -> None:
        """Wait until the call's modelled end, wherever that moves meanwhile."""
        with self._changed:
            self._progress.settle(self.timing())
            self.late += job.ended is not None
            while job.ended is None:
                left_s = (self._progress.end_of(job) - self._progress.now) * self.scale
                self._changed.wait(left_s - NEAR_S if left_s > 2 * NEAR_S else left_s)
                self._progress.settle(self.timing())

    def drop(self, job: Job) -> None:
        """Take the call away, which may move the end of the other device's."""
        with self._changed:
            self._progress.drop(job, now=self.timing())
            self._changed.notify_all()
