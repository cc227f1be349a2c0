"""What calls cost here: measured in under a minute, kept for the same models on the same machine.

Target and draft are timed at several widths, each alone, then both at once, which tells how much
they slow each other down.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.clock import Clock
from runtime.costs import NO_DRAFT, Costs, Curve
from runtime.records import read_record, write_record

TARGET_WIDTHS = (1, 2, 4, 8, 16)
DRAFT_WIDTHS = (1, 2, 4, 8, 16, 32, 64)
QUICK_TARGET_WIDTHS, QUICK_DRAFT_WIDTHS = (1, 8), (1, 8, 48)
LEAST_BRANCHED = 16  # rows from which a call of the draft is made of branches
TEXT = 256  # tokens before those of a call
LEAST_REPEATS, MOST_REPEATS = 3, 25
LIMIT_S, QUICK_S = 24.0, 5.0
ALONE_SHARE = 0.7  # of the time there is
LEAST_TOGETHER, MOST_TOGETHER_S = 8, 8.0  # calls of the longest kind; seconds
VERSION = 2
MOST = 1e6  # of any figure in a record: what is beyond is none of a call

# The target's call is bound by reading its weights, the draft's is half of it. Width is taken to be
# cheap: where it is dear the first rounds show it, but what is never tried never shows.
UNMEASURED = Costs(
    Curve((1, 8, 16), (1.0, 1.3, 1.7)),
    Curve((1, 16, 64), (0.5, 0.55, 0.8)),
    target_slowdown=1.3,
    draft_slowdown=1.3,
    exit_s=0.1,
    is_guess=True,
)
# On the same cores each takes half from the other: nobody need hope for less.
UNMEASURED_IN_TURN = dataclasses.replace(
    UNMEASURED, target_slowdown=2.0, draft_slowdown=2.0, is_guess=False
)


class Calls(Protocol):
    """What is timed of a session."""

    @property
    def context(self) -> int:
        """How many tokens fit."""

    @property
    def vocabulary(self) -> int:
        """Ids from 0 up to it are tokens."""

    def extend(
        self, tokens: NDArray[np.int64], *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        """Feed the last `num_logits` tokens of a text, what is not cached before, and nodes."""


def measure(
    target: Calls,
    draft: Calls | None,
    *,
    tokens_per_pass: int = 1,
    limit_s: float = LIMIT_S,
    say: Callable[[str], None] = lambda _line: None,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Time both sessions for about `limit_s` seconds at most; what they have cached is lost.

    The draft is called by a thread of its own. In a few seconds only some widths are timed.
    """
    is_quick = limit_s < QUICK_S
    least, least_together = (1, 3) if is_quick else (LEAST_REPEATS, LEAST_TOGETHER)
    started = clock()
    with ThreadPoolExecutor(1, "draft") as there:
        here = _Bench(target, QUICK_TARGET_WIDTHS if is_quick else TARGET_WIDTHS, clock)
        other = None
        if draft is not None:
            widths = QUICK_DRAFT_WIDTHS if is_quick else DRAFT_WIDTHS
            other = _Bench(draft, widths, clock, branch=tokens_per_pass)
        for repeat in range(1 + MOST_REPEATS):  # of which the first is not counted
            if repeat > least and clock() - started > ALONE_SHARE * limit_s:
                break
            if repeat and not is_quick:
                say(f"Timing calls alone: {repeat} of at most {MOST_REPEATS}.")
            here.time_all(counts=repeat > 0)
            if other is not None:
                there.submit(other.time_all, counts=repeat > 0).result()
        costs = Costs(here.curve(), tokens_per_pass=tokens_per_pass)
        if other is None:
            return costs
        if not is_quick:
            say("Timing both at once.")
        end = max(started + limit_s, clock() + least_together * max(here.longest, other.longest))
        costs = dataclasses.replace(costs, draft=other.curve())
        return _with_slowdowns(costs, here, other, min(end, clock() + MOST_TOGETHER_S), there)


def _with_slowdowns(
    costs: Costs, here: "_Bench", other: "_Bench", end: float, there: Executor
) -> Costs:
    """Run both again and again until `end`; runs while the other was at work tell c_t and c_d."""
    theirs = there.submit(other.repeat, end)
    ours = here.repeat(end)
    slowdowns = []
    for bench, runs, others in ((here, ours, theirs.result()), (other, theirs.result(), ours)):
        beside = [
            ended - began
            for began, ended in runs
            if began >= others[0][0] and ended <= others[-1][1]
        ]
        alone = statistics.median(bench.seconds[bench.together])
        slowdowns.append(max(1.0, statistics.median(beside) / alone) if beside else 1.0)
    return dataclasses.replace(costs, target_slowdown=slowdowns[0], draft_slowdown=slowdowns[1])


class _Bench:
    """One session, a text to feed it, and the seconds of its calls by their width."""

    def __init__(
        self, calls: Calls, widths: Sequence[int], clock: Clock, *, branch: int | None = None
    ) -> None:
        """branch: rows of one branch, where wide calls are made of such; None: of text alone."""
        self._calls, self._clock, self._branch = calls, clock, branch
        self._start = max(1, min(TEXT, calls.context // 2))
        room = max(1, calls.context - self._start)
        self._text = (np.arange(calls.context, dtype=np.int64) * 7919 + 11) % calls.vocabulary
        self.seconds: dict[int, list[float]] = {width: [] for width in widths if width <= room}

    @property
    def together(self) -> int:
        """The width that is run beside the other session."""
        return sorted(self.seconds)[-1 if self._branch is None else len(self.seconds) // 2]

    @property
    def longest(self) -> float:
        """Seconds of the longest call."""
        return max(max(found) for found in self.seconds.values())

    def time_all(self, *, counts: bool) -> None:
        """Make a call of every width."""
        for width, found in self.seconds.items():
            began, ended = self._call(width)
            if counts:
                found.append(ended - began)

    def repeat(self, end: float) -> list[tuple[float, float]]:
        """One call after the other until `end`: when each began and ended."""
        runs = [self._call(self.together)]
        while runs[-1][1] < end:
            runs.append(self._call(self.together))
        return runs

    def curve(self) -> Curve:
        """Medians by width."""
        widths = sorted(self.seconds)
        return Curve(
            tuple(widths), tuple(statistics.median(self.seconds[width]) for width in widths)
        )

    def _call(self, width: int) -> tuple[float, float]:
        nodes = 0 if self._branch is None or width < LEAST_BRANCHED else width - 1
        text = self._text[: self._start + width - nodes]
        branches = _branches(len(text), nodes, self._branch or 1)
        began = self._clock()
        self._calls.extend(text, num_logits=width - nodes, branches=branches)
        return began, self._clock()


def _branches(length: int, nodes: int, branch: int) -> Branches:
    """Chains of `branch` nodes behind a text of `length` tokens, the last one perhaps shorter."""
    parents = [length - 1 if node % branch == 0 else length + node - 1 for node in range(nodes)]
    return Branches(tuple(range(1, nodes + 1)), tuple(parents))


def write_costs(path: Path, costs: Costs) -> None:
    """Keep a calibration."""
    write_record(path, {"version": VERSION, **dataclasses.asdict(costs)})


def read_costs(path: Path, *, has_draft: bool = True) -> Costs | None:
    """A calibration that was kept; None where there is none that this version can use.

    has_draft: a draft model was timed too.
    """
    values = read_record(path)
    with contextlib.suppress(TypeError, ValueError, KeyError, OverflowError):
        if values["version"] == VERSION:
            return Costs(
                _curve(values["target"]),
                _curve(values["draft"]) if has_draft else NO_DRAFT,
                int(_number(values["tokens_per_pass"], 1, MOST)),
                _number(values["target_slowdown"], 1, MOST),
                _number(values["draft_slowdown"], 1, MOST),
                prefix_share=_number(values["prefix_share"], 0, 1),
                exit_s=_number(values["exit_s"], 0, MOST),
            )
    return None


def _curve(values: Mapping[str, Any]) -> Curve:
    """Raises ValueError for what no curve of calls is."""
    rows = tuple(int(_number(each, 1, MOST)) for each in values["rows"])
    seconds = tuple(_number(each, 1 / MOST**2, MOST) for each in values["seconds"])
    if not rows or len(rows) != len(seconds) or list(rows) != sorted({*rows}):
        raise ValueError(values)
    return Curve(rows, seconds)


def _number(value: Any, least: float, most: float) -> float:
    """A number between these; ValueError for all else."""
    number = float(value)
    if not least <= number <= most:
        raise ValueError(value)
    return number
