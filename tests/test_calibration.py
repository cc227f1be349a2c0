"""Calibration on sessions that take known times by a clock of their own."""

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.calibration import (
    DRAFT_WIDTHS,
    QUICK_DRAFT_WIDTHS,
    TARGET_WIDTHS,
    UNMEASURED,
    measure,
    read_costs,
    write_costs,
)
from runtime.costs import Costs, Curve


class Watch(threading.local):
    """A clock that moves when a session works; each thread has a time of its own."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """A session whose calls take `first` and `more` seconds for each further row."""

    vocabulary = 100

    def __init__(self, watch: Watch, first: float, more: float, *, context: int = 512) -> None:
        self.context = context
        self.watch, self.first, self.more = watch, first, more
        self.slowdown = 1.0
        self.widths: Counter[int] = Counter()
        self.branched: set[int] = set()
        self.threads: set[int] = set()

    def extend(
        self, tokens: NDArray[np.int64], *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        assert len(tokens) + len(branches) <= self.context
        assert tokens.max() < self.vocabulary
        branches.behind(len(tokens))  # raises for what are no trees
        rows = num_logits + len(branches)
        self.widths[rows] += 1
        if branches:
            self.branched.add(rows)
        self.threads.add(threading.get_ident())
        self.watch.now += self.slowdown * (self.first + self.more * (rows - 1))
        return np.zeros((rows, self.vocabulary), np.float32)


def test_both_curves_are_found_and_the_draft_has_a_thread_of_its_own() -> None:
    watch, said = Watch(), list[str]()
    target, draft = Timed(watch, 0.010, 0.001), Timed(watch, 0.004, 0.0001)
    costs = measure(target, draft, tokens_per_pass=5, clock=watch, say=said.append)
    assert costs.target.rows == TARGET_WIDTHS
    assert costs.target.seconds == pytest.approx([0.010, 0.011, 0.013, 0.017, 0.025])
    assert costs.draft.rows == DRAFT_WIDTHS
    assert costs.draft(64) == pytest.approx(0.0103)
    assert costs.tokens_per_pass == 5
    assert (costs.target_slowdown, costs.draft_slowdown) == pytest.approx((1, 1))
    assert target.threads == {threading.get_ident()}
    assert target.threads.isdisjoint(draft.threads)
    assert len(draft.threads) == 1
    assert draft.branched == {16, 32, 64}
    assert not target.branched
    assert said[-1] == "Timing both at once."


def test_how_much_they_slow_each_other_down() -> None:
    watch = Watch()
    target, draft = Timed(watch, 0.010, 0.001), Timed(watch, 0.004, 0.0001)

    def say(line: str) -> None:
        if line == "Timing both at once.":
            target.slowdown, draft.slowdown = 1.25, 2.0

    costs = measure(target, draft, clock=watch, say=say)
    assert costs.target_slowdown == pytest.approx(1.25)
    assert costs.draft_slowdown == pytest.approx(2.0)
    assert costs.target(1) == pytest.approx(0.010)


def test_a_slow_device_is_given_up_on_in_time() -> None:
    watch = Watch()
    slow = Timed(watch, 3.0, 0.0)
    costs = measure(slow, None, limit_s=20, clock=watch)
    assert costs.target.seconds == (3.0,) * len(TARGET_WIDTHS)
    assert slow.widths[1] <= 5  # three that count, and the first


def test_in_a_second_only_the_ends_are_timed() -> None:
    watch = Watch()
    target, draft = Timed(watch, 0.01, 0.001), Timed(watch, 0.004, 0.0)
    costs = measure(target, draft, limit_s=1.0, clock=watch)
    assert costs.target(8) == pytest.approx(0.017)
    assert costs.draft.rows == QUICK_DRAFT_WIDTHS
    assert watch.now < 2


def test_a_short_context_is_not_left() -> None:
    watch = Watch()
    session = Timed(watch, 1, 0, context=8)
    assert measure(session, session, clock=watch).target.rows == (1, 2, 4)
    session = Timed(watch, 1, 0, context=2)
    assert measure(session, None, clock=watch).target.rows == (1,)


COSTS = Costs(
    Curve((1, 4), (0.5, 0.75)), Curve((1,), (0.25,)), 5, 1.25, 1.5, prefix_share=0.4, exit_s=0.1
)


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    assert read_costs(tmp_path / "costs.json") is None
    write_costs(tmp_path / "costs.json", COSTS)
    assert read_costs(tmp_path / "costs.json") == COSTS


def test_what_is_kept_of_a_target_without_a_draft_is_read_again(tmp_path: Path) -> None:
    alone = Costs(COSTS.target)
    write_costs(tmp_path / "costs.json", alone)
    assert read_costs(tmp_path / "costs.json", has_draft=False) == alone
    assert read_costs(tmp_path / "costs.json") is None


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("version",), 0),
        (("target",), None),
        (("target", "rows"), [4, 1]),
        (("target", "rows"), [1]),
        (("target", "rows"), [0, 4]),
        (("target", "seconds"), [0.5, "x"]),
        (("target", "seconds"), [0.5, -1]),
        (("target", "seconds"), [0.0, 0.0]),
        (("target", "seconds"), [0.5, 1e300]),
        (("target", "rows"), [1, 10**400]),
        (("draft", "seconds"), [0]),
        (("draft", "rows"), []),
        (("tokens_per_pass",), 0),
        (("target_slowdown",), 0.5),
        (("draft_slowdown",), float("inf")),
        (("draft_slowdown",), 1e300),
        (("prefix_share",), float("nan")),
        (("prefix_share",), 2),
        (("exit_s",), -1),
    ],
)
def test_what_is_damaged_counts_as_not_there(
    tmp_path: Path, place: tuple[str, ...], value: Any
) -> None:
    path = tmp_path / "costs.json"
    write_costs(path, COSTS)
    kept = json.loads(path.read_text(encoding="utf-8"))
    part = kept
    for name in place[:-1]:
        part = part[name]
    assert part[place[-1]] != value
    part[place[-1]] = value
    path.write_text(json.dumps(kept), encoding="utf-8")
    assert read_costs(path) is None


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{}"])
def test_other_files_count_as_not_there(tmp_path: Path, text: str) -> None:
    (tmp_path / "costs.json").write_text(text, encoding="utf-8")
    assert read_costs(tmp_path / "costs.json") is None


def test_unmeasured_costs_are_of_one_call_of_the_target() -> None:
    assert UNMEASURED.target(1) == 1.0
    assert UNMEASURED.target(8) > UNMEASURED.target(2) > 1.0
    assert UNMEASURED.draft(1) < UNMEASURED.draft(64)
