"""Emulated devices: a call really computes, then waits until its modelled end.

What a call takes comes from a device profile and from how the two devices' calls overlap, never
from what the planner believes: it could not prove that wrong else.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import inf
from pathlib import Path
from typing import Protocol

from runtime.checks import path, real
from runtime.clock import RealTiming
from runtime.errors import UsageError
from runtime.manifest import Geometry
from runtime.profiles import Profile, load_profile
from runtime.progress import Job, Progress, Role

NEAR_S = 0.001  # before a run's end a thread is awake, since a long wait ends late
SCALES = (1e-6, 1e6)  # what time can be stretched by
ROOM = 1.5  # between the longest call of a trial and its modelled time
WHOLE: Mapping[str, float] = {"whole": 1.0}


def shares_of_parts(geometry: Geometry, layer: int, *, head: int) -> Mapping[str, float]:
    """What the parts of a target that is left after `layer` layers cost of the whole, by weights.

    head: tokens that the exit is about; it also has a map of the hidden state.
    """
    queries = geometry.heads * geometry.head_size
    keys = geometry.kv_heads * geometry.head_size
    per_layer = geometry.hidden * (2 * queries + 2 * keys + 3 * geometry.intermediate)
    whole = geometry.layers * per_layer + geometry.hidden * geometry.vocabulary
    prefix = layer * per_layer / whole
    exit_ = geometry.hidden * (geometry.hidden + head) / whole
    return {**WHOLE, "prefix": prefix, "suffix": 1 - prefix, "exit": exit_}


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
    """Devices in real time, `timing.scale` times as slow: each call's thread waits for its end.

    `late` counts calls whose computing took longer than their modelled time: a figure with one of
    them is void.
    """

    def __init__(self, profile: Profile, *, scale: float = 1.0) -> None:
        """Both devices sleep at first."""
        self.profile = profile
        self.timing = RealTiming(scale)
        self.late = 0
        self._since = 0.0  # no call that began before waits for its end
        self._slowness: list[float] = []  # of calls, to their modelled time
        self._progress = Progress(profile, now=self.timing())
        self._changed = threading.Condition()

    def fit(self, trial: Callable[[], object]) -> None:
        """Choose the scale: `trial` runs twice without waits, and of the second all calls must fit.

        With some room, since calls vary; never below 1, or this machine's own overhead would count
        for more than it is.
        """
        self._since = inf
        for _ in range(2):  # first runs are slow
            self._slowness.clear()
            trial()
        with self._changed:
            self.timing.rescale(max(1.0, ROOM * max(self._slowness, default=0.0)))
            self._since = self.timing()

    @property
    def described(self) -> str:
        """What to tell the user, in a sentence."""
        return (
            f"Times are emulated, of {self.profile.name} ({self.profile.about}); they pass "
            f"{self.timing.scale:.3g} times as slowly here."
        )

    def start(self, role: Role, rows: int, share: float) -> Job:
        """The call begins now, which may move the end of the other device's."""
        with self._changed:
            job = self._progress.start(role, rows, share=share, now=self.timing())
            self._changed.notify_all()
            return job

    def finish(self, job: Job) -> None:
        """Wait until the call's modelled end, wherever that moves meanwhile."""
        with self._changed:
            now = self.timing()
            if job.began < self._since:
                self._slowness.append((now - job.began) / job.work)
                self._progress.drop(job, now=now)
                return
            self._progress.settle(now)
            self.late += job.ended is not None
            while job.ended is None:
                left_s = (self._progress.end_of(job) - self._progress.now) * self.timing.scale
                self._changed.wait(left_s - NEAR_S if left_s > 2 * NEAR_S else left_s)
                self._progress.settle(self.timing())

    def drop(self, job: Job) -> None:
        """Take the call away, which may move the end of the other device's."""
        with self._changed:
            self._progress.drop(job, now=self.timing())
            self._changed.notify_all()


def emulated_devices(name: str | Path | None, time_scale: float | None) -> EmulatedDevices | None:
    """The devices of a profile, named or in a file; None where none is named.

    Raises UsageError for a profile that is not there and a scale that is none, BundleError for a
    file that is no profile.
    """
    least, most = SCALES
    if time_scale is not None and not least <= real("time_scale", time_scale) <= most:
        raise UsageError(
            f"time_scale is {time_scale}; it must be a number from {least:g} to {most:g}."
        )
    if name is None:
        if time_scale is not None:
            raise UsageError("time_scale is for emulated devices: name a profile, or leave it out.")
        return None
    profile = load_profile(str(path("emulate", name)))
    return EmulatedDevices(profile, scale=1.0 if time_scale is None else float(time_scale))
