"""Runs on two devices, advanced by events: where they overlap, each goes slower.

Plain arithmetic on moments that the caller names; a run has work left, in seconds at full speed,
and is settled whenever one starts or ends.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from runtime.profiles import Profile

Role = Literal["target", "draft"]
ROLES: tuple[Role, ...] = ("target", "draft")
SAME_S = 1e-9  # moments that differ by rounding alone are one


@dataclass(slots=True, eq=False)
class Job:
    """A run: its seconds of work, those that are left at full speed, and when it began and ended.

    `work` leaves out what waking up costs.
    """

    role: Role
    work: float
    left: float
    began: float
    ended: float | None = None


class Progress:
    """Two devices that each do one run at a time, in the order they came.

    While both have one, each progresses at 1/c of its speed. `now` is the moment all is settled to.
    """

    def __init__(self, profile: Profile, *, now: float = 0.0) -> None:
        """Both devices sleep at first."""
        self.now = now
        self._devices = {"target": profile.target, "draft": profile.draft}
        self._contention = {role: self._devices[role].contention.value for role in ROLES}
        self._queues: dict[Role, deque[Job]] = {role: deque() for role in ROLES}
        self._last_end = dict.fromkeys(ROLES, -inf)

    def start(self, role: Role, rows: int, *, share: float = 1.0, now: float) -> Job:
        """A call of `rows` rows and of `share` of the model begins, behind those of its device."""
        self.settle(now)
        device, queue = self._devices[role], self._queues[role]
        work = left = device.seconds(rows, share)
        idle_s = self.now - self._last_end[role]
        if not queue and idle_s > device.idle_ms.value / 1000:
            left += device.wake_up_ms.value / 1000
        queue.append(Job(role, work, left, self.now))
        return queue[-1]

    def drop(self, job: Job, *, now: float) -> None:
        """A run ends before its time."""
        self.settle(now)
        if job.ended is None:
            self._queues[job.role].remove(job)
            self._last_end[job.role] = job.ended = self.now

    def settle(self, now: float) -> None:
        """Let time go on to `now`; what ends until then has its moment."""
        while (step := self._next()) is not None and self.now + step[0] <= now + SAME_S:
            self._advance(step[0])
            for role in step[1]:
                job = self._queues[role].popleft()
                job.left, job.ended = 0.0, self.now
                self._last_end[role] = self.now
        self._advance(max(0.0, now - self.now))
        self.now = max(self.now, now)

    def next_end(self) -> float | None:
        """When the next run ends if none starts before; None where none is under way."""
        step = self._next()
        return None if step is None else self.now + step[0]

    def end_of(self, job: Job) -> float:
        """When a run that is under way ends if none starts before."""
        lefts = {role: [each.left for each in queue] for role, queue in self._queues.items()}
        ahead = self._queues[job.role].index(job)
        moment = self.now
        while True:
            heads = {role: found[0] for role, found in lefts.items() if found}
            seconds, ended = _first_end(heads, self._contention)
            moment += seconds
            for role in heads:
                lefts[role][0] -= seconds / self._slowness(heads, role)
            for role in ended:
                del lefts[role][0]
                ahead -= role == job.role
            if ahead < 0:
                return moment

    def _next(self) -> tuple[float, list[Role]] | None:
        heads = self._heads()
        return _first_end(heads, self._contention) if heads else None

    def _advance(self, seconds: float) -> None:
        heads = self._heads()
        for role in heads:
            self._queues[role][0].left -= seconds / self._slowness(heads, role)
        self.now += seconds

    def _heads(self) -> dict[Role, float]:
        return {role: queue[0].left for role, queue in self._queues.items() if queue}

    def _slowness(self, heads: Mapping[Role, float], role: Role) -> float:
        return self._contention[role] if len(heads) == len(ROLES) else 1.0


def _first_end(
    heads: Mapping[Role, float], contention: Mapping[Role, float]
) -> tuple[float, list[Role]]:
    """Seconds until the first of the runs under way ends, and which do then."""
    alone = len(heads) < len(ROLES)
    needed = {role: left * (1.0 if alone else contention[role]) for role, left in heads.items()}
    first = max(0.0, min(needed.values()))
    return first, [role for role, seconds in needed.items() if seconds <= first + SAME_S]
