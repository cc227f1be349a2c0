"""Tests of runtime/strategy.py: what is proposed round by round, and when a guess is a hit."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.drafter import Guess
from runtime.errors import DraftError
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive, Mirror, Speculative, Strategy
from runtime.worker import DraftWorker
from tests.table import (
    Abreast,
    Faulty,
    TableDrafter,
    TableTarget,
    right,
    second,
    working,
    write,
    wrong,
)
from tests.table_session import TableSession, model_drafter

Plan = Callable[[int, int], Guess]


def counting(*, context: int = 64) -> TableTarget:
    """A target that counts: after t comes t + 1, after 7 comes 0."""
    table = np.full((1, 8, 8), -9, np.float32)
    table[0, np.arange(8), (np.arange(8) + 1) % 8] = 9
    return TableTarget(table=table, context=context)


def right_then_second(token: int, place: int) -> Guess:
    """Right at even places; at odd ones the runner-up is."""
    return (second if place % 2 else right)(token, place)


@contextmanager
def asked(worker: DraftWorker) -> Iterator[list[int]]:
    """How many tokens the worker was asked to propose, each time."""
    counts: list[int] = []
    propose = worker.propose

    def noted(count: int) -> object:
        counts.append(count)
        return propose(count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "propose", noted)
        yield counts


def test_without_a_draft_nothing_is_proposed() -> None:
    target = counting()
    written = write(target, Autoregressive(), max_new_tokens=4)
    assert written.tokens == (1, 2, 3, 4)
    assert target.proposals == [(), (), (), ()]
    assert written.metrics.draft.passes == 0


# Every rollout is there in time, two draft tokens a round: each run's proposal, and hit or miss.
ROUNDS = {
    "all accepted": (right, [(), (2, 3), (5, 6), (0, 1), (3, 4)], 4, 0),
    "runner-up at place 1": (second, [(), (3, 5), (2, 2), (5, 7), (4, 4)], 4, 0),
    "runner-up at place 2": (right_then_second, [(), (2, 2), (4, 4), (6, 6), (0, 0)], 4, 0),
    "neither": (wrong, [(), (3, 5), (2, 2), (5, 7), (4, 4)], 0, 4),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_mirror_round_by_round(name: str) -> None:
    plan, proposals, hits, misses = ROUNDS[name]
    target = counting()
    with working(TableDrafter(target, plan), target) as worker, asked(worker) as counts:
        target.meanwhile = Abreast(worker)
        steps = itertools.count()
        written = write(
            target,
            Mirror(worker, num_draft_tokens=2),
            max_new_tokens=60,
            cancelled=lambda: next(steps) == len(proposals),
        )
    assert target.proposals == proposals
    assert written.metrics.hits == ({"model": hits} if hits else {})
    assert written.metrics.misses == ({"model": misses} if misses else {})
    # A hit is free; after a miss the draft is asked again.
    assert counts == [2] * (1 + max(0, misses - 1))


def test_speculative_asks_every_round_and_guesses_nothing() -> None:
    target = counting()
    with working(TableDrafter(target, second), target) as worker, asked(worker) as counts:
        written = write(target, Speculative(worker, num_draft_tokens=2), max_new_tokens=5)
        assert worker.work.passes >= 2 + 2 + 2
    assert written.tokens == (1, 2, 3, 4, 5)
    assert target.proposals == [(), (3, 5), (2, 2), (5,), ()]
    assert counts == [2, 2, 1]
    assert not written.metrics.hits
    assert not written.metrics.misses


@pytest.mark.parametrize(
    ("budget", "widths"),
    [(1, [0]), (2, [0, 0]), (3, [0, 1]), (6, [0, 4]), (7, [0, 4, 0]), (8, [0, 4, 1]),
     (11, [0, 4, 4]), (12, [0, 4, 4, 0])],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Speculative, Mirror])
def test_a_proposal_is_cut_to_the_room_that_is_left(
    kind: type[Speculative], budget: int, widths: Sequence[int]
) -> None:
    target = counting()
    with working(TableDrafter(target, right), target) as worker:
        target.meanwhile = Abreast(worker)
        written = write(target, kind(worker, num_draft_tokens=4), max_new_tokens=budget)
    assert [len(proposal) for proposal in target.proposals] == widths
    assert written.tokens == tuple(token % 8 for token in range(1, budget + 1))
    assert written.metrics.finish_reason == "max_new_tokens"
    assert written.metrics.tokens_discarded == 0


@pytest.mark.parametrize("kind", [Speculative, Mirror])
def test_nothing_of_one_text_is_proposed_in_the_next(kind: type[Speculative]) -> None:
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


@pytest.mark.parametrize("kind", [Speculative, Mirror])
def test_the_answer_does_not_wait_for_a_draft_that_reads_a_long_prompt(
    kind: type[Speculative],
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
    # Guesses count from the round in which there may have been some.
    assert written.metrics.hits.total() + written.metrics.misses.total() == (
        2 if kind is Mirror else 0
    )


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


@pytest.mark.parametrize("kind", [Speculative, Mirror])
def test_once_dropped_the_draft_is_neither_asked_nor_counted(kind: type[Speculative]) -> None:
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
    assert written.metrics.misses.total() <= 1


def test_a_dead_worker_is_no_error_to_begin_with() -> None:
    target = counting()
    with working(TableDrafter(target, right), target) as worker:
        worker._drop(DraftError("It was dropped."))
        for kind in (Speculative, Mirror):
            assert write(target, kind(worker, num_draft_tokens=2), max_new_tokens=3).tokens == (
                1, 2, 3,
            )  # fmt: skip


@pytest.mark.parametrize("kind", [Speculative, Mirror])
@pytest.mark.parametrize(("per_pass", "head"), [(1, [1, 3]), (3, None), (3, [0, 1, 3]), (8, None)])
def test_a_draft_of_several_tokens_a_pass_changes_no_text(
    kind: type[Speculative], per_pass: int, head: list[int] | None
) -> None:
    target = TableTarget()
    tokens = None if head is None else np.array(head)
    session = TableSession(target, 30, head=tokens)
    drafter = model_drafter(session, tokens_per_pass=per_pass, head_tokens=tokens)
    accepted = 0
    with working(drafter, target) as worker:
        for temperature, width in itertools.product((0.0, 0.8), range(1, 8)):
            sampling = Sampling(temperature=temperature, repetition_penalty=1.1, seed=width)
            strategies: list[Strategy] = [Autoregressive(), kind(worker, num_draft_tokens=width)]
            plain, drafted = (
                write(target, strategy, (0, 3, 1), sampling, max_new_tokens=40)
                for strategy in strategies
            )
            assert drafted.tokens == plain.tokens
            accepted += drafted.metrics.draft_tokens_accepted
        assert worker.error is None
    assert accepted > 0
    assert max(map(len, session.fed)) == 30, "it steps aside where its own context is full"
