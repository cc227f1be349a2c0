"""Tests of runtime/strategy.py: what is proposed round by round, and when a guess is a hit."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.drafter import Guess
from runtime.errors import DraftError
from runtime.hypotheses import Hypothesis, Source
from runtime.strategy import Autoregressive, Mirror, Speculative
from runtime.worker import Draft, DraftWorker
from tests.table import (
    Abreast,
    Faulty,
    TableDrafter,
    TableTarget,
    mirror,
    right,
    second,
    working,
    write,
    wrong,
)

Plan = Callable[[int, int], Guess]
Kind = Callable[..., Speculative]
BOTH = pytest.mark.parametrize("kind", [Speculative, mirror], ids=["speculative", "mirror"])


def counting(*, context: int = 64) -> TableTarget:
    """A target that counts: after t comes t + 1, after 7 comes 0."""
    table = np.full((1, 8, 8), -9, np.float32)
    table[0, np.arange(8), (np.arange(8) + 1) % 8] = 9
    return TableTarget(table=table, context=context)


def right_then_second(token: int, place: int) -> Guess:
    """Right at even places; at odd ones the runner-up is."""
    return (second if place % 2 else right)(token, place)


@contextmanager
def asked(worker: DraftWorker) -> Iterator[list[tuple[Any, ...]]]:
    """What the worker was asked to propose, each time."""
    calls: list[tuple[Any, ...]] = []
    propose = worker.propose

    def noted(*counts: Any, **settings: Any) -> Draft:
        calls.append((*counts, *settings.values()))
        return propose(*counts, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "propose", noted)
        yield calls


def test_without_a_draft_nothing_is_proposed() -> None:
    target = counting()
    written = write(target, Autoregressive(), max_new_tokens=4)
    assert written.tokens == (1, 2, 3, 4)
    assert target.proposals == [(), (), (), ()]
    assert written.metrics.draft.passes == 0


# Two draft tokens a round: each run's proposal, what hit, and passes that were waited for.
ROUNDS = {
    "all accepted": (right, [(), (2, 3), (5, 6), (0, 1), (3, 4)], {"bonus": 3}, 2),
    "runner-up at place 1": (second, [(), (3, 5), (2, 2), (5, 7), (4, 4)], {"runner-ups": 3}, 2),
    "runner-up at place 2": (
        right_then_second, [(), (2, 2), (4, 4), (6, 6), (0, 0)], {"runner-ups": 3}, 2,
    ),
    "neither": (wrong, [(), (3, 5), (2, 2), (5, 7), (4, 4)], {}, 8),
}  # fmt: skip


@pytest.mark.parametrize("per_pass", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ROUNDS)
def test_mirror_round_by_round(name: str, per_pass: int) -> None:
    plan, proposals, hits, passes = ROUNDS[name]
    target = counting()
    drafter = TableDrafter(target, plan, per_pass=per_pass)
    with working(drafter, target) as worker, asked(worker) as calls:
        target.meanwhile = Abreast(worker)
        steps = itertools.count()
        written = write(
            target,
            mirror(worker, num_draft_tokens=2),
            max_new_tokens=60,
            cancelled=lambda: next(steps) == len(proposals),
        )
    assert target.proposals == proposals
    metrics = written.metrics
    followed = {"bonus", "runner-ups"}
    assert metrics.hits == hits
    assert metrics.misses == {source: 3 for source in followed if source not in hits}
    # The last round's outcome is no longer asked for.
    assert (metrics.rounds_followed, metrics.rounds_foreseen) == (3, sum(hits.values()))
    assert [each.hit for each in metrics.round_log] == [bool(hits)] * 3 + [None]
    assert calls == [(2, 3, True)] * 4
    waited = [run for run in metrics.draft.runs if run.name == "propose"]
    assert len(waited) == (passes if per_pass == 1 else passes // 2)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("source", "there"), [("bonus", 1), ("runner-ups", 3), ("masks", 3)])
def test_mirror_follows_so_many_outcomes_and_from_these_sources(
    source: Source, there: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = counting()
    followed: list[Hypothesis] = []
    with working(TableDrafter(target, right, per_pass=3), target) as worker:
        monkeypatch.setattr(worker, "look_ahead", lambda _chain, these, _n: followed.extend(these))
        strategy = Mirror(worker, num_draft_tokens=2, num_hypotheses=count, sources=[source])
        write(target, strategy, max_new_tokens=4)
    assert len(followed) == min(count, there)
    assert {each.source for each in followed} == {source}


def test_a_draft_that_follows_nothing_drafts_as_in_plain_speculation() -> None:
    for redraft in (True, False):
        target = counting()
        with working(TableDrafter(target, right, per_pass=3), target) as worker:
            strategy = Mirror(worker, num_draft_tokens=2, num_hypotheses=0, redraft=redraft)
            written = write(target, strategy, max_new_tokens=9)
        assert written.tokens == (1, 2, 3, 4, 5, 6, 7, 0, 1)
        # Without a new draft after a miss every second round is bare.
        bare = [(), (), (3, 4), (), (7, 0)]
        assert target.proposals == ([(), (2, 3), (5, 6), (0,)] if redraft else bare)
        assert not written.metrics.hits
        assert not written.metrics.misses


@pytest.mark.parametrize(
    ("plan", "per_pass", "proposals"),
    [
        # Bare at first; then that round's rollout is there, and so on.
        (right, 3, [(), (), (3, 4), (6, 7), (1, 2)]),
        # Every proposal breaks, so every second round is bare; what masks say then is there.
        (wrong, 3, [(), (), (5, 7), (), (7, 1)]),
        # With a token a pass the wrong guess at the open place is all there is: a new draft.
        (wrong, 1, [(), (), (2, 2), (), (4, 4)]),
    ],
)
def test_on_a_miss_the_target_may_go_on_alone_once(
    plan: Plan, per_pass: int, proposals: list[tuple[int, ...]]
) -> None:
    target = counting()
    drafter = TableDrafter(target, plan, per_pass=per_pass)
    with working(drafter, target) as worker, asked(worker) as calls:
        target.meanwhile = Abreast(worker)
        steps = itertools.count()
        write(
            target,
            mirror(worker, num_draft_tokens=2, redraft=False),
            max_new_tokens=60,
            cancelled=lambda: next(steps) == len(proposals),
        )
    assert target.proposals == proposals
    assert calls == [(2, 3, not before) for before in [(0,), *proposals[1:-1]]]


def test_speculative_asks_every_round_and_guesses_nothing() -> None:
    target = counting()
    with working(TableDrafter(target, second), target) as worker, asked(worker) as counts:
        written = write(target, Speculative(worker, num_draft_tokens=2), max_new_tokens=5)
        waited = [run for run in worker.work.runs if run.name == "propose"]
        assert len(waited) == 2 + 2 + 1
    assert written.tokens == (1, 2, 3, 4, 5)
    assert target.proposals == [(), (3, 5), (2, 2), (5,), ()]
    assert counts == [(2, 2), (2, 2), (1, 1)]
    assert not written.metrics.hits
    assert not written.metrics.misses


@pytest.mark.parametrize(
    ("budget", "widths"),
    [(1, [0]), (2, [0, 0]), (3, [0, 1]), (6, [0, 4]), (7, [0, 4, 0]), (8, [0, 4, 1]),
     (11, [0, 4, 4]), (12, [0, 4, 4, 0])],
)  # fmt: skip
@BOTH
def test_a_proposal_is_cut_to_the_room_that_is_left(
    kind: Kind, budget: int, widths: Sequence[int]
) -> None:
    target = counting()
    with working(TableDrafter(target, right), target) as worker:
        target.meanwhile = Abreast(worker)
        written = write(target, kind(worker, num_draft_tokens=4), max_new_tokens=budget)
    assert [len(proposal) for proposal in target.proposals] == widths
    assert written.tokens == tuple(token % 8 for token in range(1, budget + 1))
    assert written.metrics.finish_reason == "max_new_tokens"
    assert written.metrics.tokens_discarded == 0


@BOTH
def test_nothing_of_one_text_is_proposed_in_the_next(kind: Kind) -> None:
    target = counting()
    with working(TableDrafter(target, right), target) as worker:
        target.meanwhile = Abreast(worker)
        strategy = kind(worker, num_draft_tokens=2)
        write(target, strategy, max_new_tokens=7)
        target.proposals.clear()
        written = write(target, strategy, (5,), max_new_tokens=7)
    assert target.proposals == [(), (7, 0), (2, 3)]
    assert written.tokens == (6, 7, 0, 1, 2, 3, 4)


class SlowReader(TableDrafter):
    """Reads a prompt only when it may."""

    def __init__(self, target: TableTarget, plan: Plan) -> None:
        super().__init__(target, plan)
        self.may = Event()

    def catch_up(self, context: NDArray[np.int64]) -> bool:
        return self.may.wait(5.0) and super().catch_up(context)


@BOTH
def test_the_answer_does_not_wait_for_a_draft_that_reads_a_long_prompt(
    kind: Kind,
) -> None:
    target = counting(context=128)
    drafter = SlowReader(target, right)
    with working(drafter, target, hang=drafter.may) as worker:
        abreast = Abreast(worker)

        def read_in_the_fourth_run() -> None:
            if len(target.proposals) == 4:
                drafter.may.set()
                while not worker.ready():
                    abreast()

        target.meanwhile = read_in_the_fourth_run
        strategy = kind(worker, num_draft_tokens=2)
        written = write(target, strategy, [7] * 70, max_new_tokens=10)
        assert worker.error is None
    assert written.tokens == (0, 1, 2, 3, 4, 5, 6, 7, 0, 1)
    assert target.proposals == [(), (), (), (), (4, 5), (7, 0)]
    # Counted from the round in which the draft may have looked ahead to the last but one.
    assert written.metrics.rounds_followed == (1 if kind is mirror else 0)


class SlowlyReading(TableDrafter):
    """Reads in six pieces."""

    pieces = 0

    def catch_up(self, context: NDArray[np.int64]) -> bool:
        self.pieces += 1
        return self.pieces > 5 and super().catch_up(context)


def test_in_turn_the_draft_reads_when_the_target_has_and_is_waited_for() -> None:
    target = counting(context=128)
    drafter = SlowlyReading(target, right)
    runs: list[int] = []
    with working(drafter, target) as worker:
        target.meanwhile = lambda: runs.append(drafter.pieces)
        strategy = Speculative(worker, num_draft_tokens=2, in_turn=True)
        written = write(target, strategy, [7] * 70, max_new_tokens=10)
        assert worker.error is None
    assert written.tokens == (0, 1, 2, 3, 4, 5, 6, 7, 0, 1)
    assert runs[0] == 0  # the target first
    assert runs[1] >= 6
    assert all(target.proposals[1:])  # so there is no round without a guess


@BOTH
def test_once_dropped_the_draft_is_neither_asked_nor_counted(kind: Kind) -> None:
    def fail() -> Guess:
        raise ValueError("gone")

    target = counting()
    drafter = Faulty(TableDrafter(target, wrong), fail, after=2)
    with working(drafter, target) as worker, asked(worker) as counts:
        written = write(target, kind(worker, num_draft_tokens=2), max_new_tokens=6)
        assert worker.errors[0] == "The draft failed: ValueError: gone"
    assert written.tokens == (1, 2, 3, 4, 5, 6)
    assert target.proposals == [(), (3, 5), (), (), (), ()]
    assert len(counts) <= 2
    assert written.metrics.rounds_followed <= 1


def test_a_dead_worker_is_no_error_to_begin_with() -> None:
    target = counting()
    with working(TableDrafter(target, right), target) as worker:
        worker._drop(DraftError("It was dropped."))
        for kind in (Speculative, mirror):
            assert write(target, kind(worker, num_draft_tokens=2), max_new_tokens=3).tokens == (
                1, 2, 3,
            )  # fmt: skip


def test_a_guess_may_be_as_long_as_a_pass_gives() -> None:
    for one_pass, proposal in ((False, (2, 3, 4, 5)), (True, (2, 3, 4))):
        target = counting()
        with working(TableDrafter(target, right, per_pass=3), target) as worker:
            strategy = Speculative(worker, num_draft_tokens=4, one_pass=one_pass)
            write(target, strategy, max_new_tokens=12)
        assert target.proposals[1] == proposal


@pytest.mark.parametrize("kind", [Speculative, Mirror])
@pytest.mark.parametrize("siblings", [1, 2, 3])
def test_runner_ups_are_verified_beside_the_first_choices(
    kind: type[Speculative], siblings: int
) -> None:
    """Where the draft is always second best, each round settles two tokens instead of one."""
    target = counting()
    alone = write(target, Autoregressive(), max_new_tokens=12)
    settings: dict[str, Any] = {"num_hypotheses": 4} if kind is Mirror else {}
    with working(TableDrafter(target, second), target) as worker:
        strategy = kind(worker, num_draft_tokens=2, num_siblings=siblings, **settings)
        written = write(target, strategy, max_new_tokens=12)
        assert worker.error is None
    assert written.tokens == alone.tokens
    assert written.metrics.to_dict()["mean_acceptance_length"] == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("kind", [Speculative, Mirror])
def test_what_followed_elsewhere_is_verified_beside_the_draft(kind: type[Speculative]) -> None:
    """The draft is always wrong, and the text goes round: only the copied branch is right."""
    target = counting()
    settings: dict[str, Any] = {"num_hypotheses": 4} if kind is Mirror else {}
    with working(TableDrafter(target, wrong), target) as worker:
        strategy = kind(worker, num_draft_tokens=2, num_copied_tokens=4, num_siblings=1, **settings)
        written = write(target, strategy, max_new_tokens=30)
        assert worker.error is None
    assert written.tokens == tuple(token % 8 for token in range(1, 31))
    assert written.metrics.draft_tokens_accepted >= 12
    assert max(map(len, target.proposals)) <= 2 + 1 + 4
