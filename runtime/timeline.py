"""What ran when in one answer, in seconds of the clock of its metrics."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Run(NamedTuple):
    """A stretch of time in which one thread did one thing; `rows`: tokens fed, 0 where not told."""

    start: float
    end: float
    name: str = ""
    rows: int = 0


class Round(NamedTuple):
    """A round: of `proposed` tokens the target accepted so many, and then chose `final_token`.

    `hit`: whether the draft had guessed that outcome and drafted for it; None where it did not look
    ahead.
    """

    start: float
    end: float
    proposed: int
    accepted: int
    final_token: int
    hit: bool | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Both threads of one answer; the runs of each list are in order and do not overlap.

    `target`, `waits` (for the draft) and `deliveries` (tokens become text) are the caller's
    thread's, the first two mostly within `rounds`; `draft` are the passes of the draft's.
    """

    start: float
    rounds: Sequence[Round]
    target: Sequence[Run]
    draft: Sequence[Run]
    waits: Sequence[Run]
    deliveries: Sequence[Run]

    @property
    def end(self) -> float:
        """When the last of all of it ended."""
        lists = (self.rounds, self.target, self.draft, self.waits, self.deliveries)
        return max([self.start, *(runs[-1].end for runs in lists if runs)])

    def round_at(self, moment: float) -> int | None:
        """The place in `rounds` of the one that was under way; None between and before them."""
        place = bisect_right(self.rounds, moment, key=_start) - 1
        return place if place >= 0 and moment < self.rounds[place].end else None


def within(runs: Sequence[Run], whole: Run | Round) -> list[Run]:
    """The runs that began in a stretch of time."""
    first = bisect_left(runs, whole.start, key=_start)
    return list(runs[first : bisect_left(runs, whole.end, key=_start)])


def busy(runs: Sequence[Run]) -> float:
    """Seconds that all runs took together."""
    return sum(run.end - run.start for run in runs)


def overlap(some: Sequence[Run], others: Sequence[Run]) -> float:
    """Seconds that two lists of runs, each in order and without overlap, have in common."""
    shared, place = 0.0, 0
    for run in some:
        while place < len(others) and others[place].end <= run.start:
            place += 1
        for other in others[place:]:
            if other.start >= run.end:
                break
            shared += min(run.end, other.end) - max(run.start, other.start)
    return shared


def gaps(start: float, end: float, runs: Sequence[Run]) -> list[Run]:
    """What of the time from `start` to `end` lies in none of the runs, which are in order."""
    found = []
    for run in (*runs, Run(end, end)):
        if (stop := min(run.start, end)) > start:
            found.append(Run(start, stop))
        start = max(start, run.end)
    return found


def _start(run: Run | Round) -> float:
    return run.start
