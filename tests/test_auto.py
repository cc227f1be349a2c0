"""Tests of runtime/auto.py: it does what the planner chooses, and tells it what came of it."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from runtime.auto import NO_RANK, Auto
from runtime.calibration import UNMEASURED
from runtime.errors import DraftError
from runtime.planner import NOTHING, Choice, Planner, Round
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive
from runtime.worker import DraftWorker
from tests.counter import raising
from tests.table import (
    Faulty,
    Plan,
    TableDrafter,
    TableTarget,
    mixed,
    right,
    second,
    speaking,
    wait_until,
    working,
    write,
    wrong,
)
from tests.test_strategy import SlowReader

PLANS = (right, second, wrong, mixed)


class Scripted(Planner):
    """Chooses as a script says, again and again, and notes what it is asked and told."""

    def __init__(self, *script: Choice) -> None:
        super().__init__(UNMEASURED)
        self._script: Iterator[Choice] = itertools.cycle(script)
        self.asked: list[tuple[int, int]] = []
        self.told: list[Round] = []
        self.copied: list[tuple[int, int, int]] = []
        self.guessed: list[tuple[int, int, int | None]] = []
        self.has_draft: list[bool] = []
        self.wants = True

    @property
    def wants_draft(self) -> bool:
        return self.wants

    def draft_is(self, *, there: bool) -> None:
        self.has_draft.append(there)

    def choose(self, room: int, lookup_match_length: int, *, rollout: int = 0) -> Choice:
        self.asked.append((lookup_match_length, rollout))
        choice = next(self._script)
        fits = self.has_draft[-1] and room >= choice.num_draft_tokens
        return choice if fits else NOTHING

    def learn(self, told: Round) -> None:
        self.told.append(told)

    def learn_lookup(self, match_length: int, proposed: int, accepted: int) -> None:
        self.copied.append((match_length, proposed, accepted))

    def learn_guessed(self, proposed: int, accepted: int, rank: int | None) -> None:
        self.guessed.append((proposed, accepted, rank))


def auto(worker: DraftWorker, *script: Choice, **settings: Any) -> tuple[Auto, Scripted]:
    planner = Scripted(*script)
    return Auto(worker, planner, tokens_per_pass=1, **settings), planner


def told(plan: Plan, *script: Choice, tokens: int = 6) -> tuple[list[Round], TableTarget]:
    """What a planner with a script is told of a text that counts up."""
    target = speaking(range(1, 15), vocabulary=20)
    with working(TableDrafter(target, plan), target) as worker:
        strategy, planner = auto(worker, *script)
        write(target, strategy, max_new_tokens=tokens)
    return planner.told, target


def seen(rounds: Sequence[Round]) -> list[tuple[int, int, int, bool, int | None, bool | None]]:
    return [
        (each.nodes, each.proposed, each.accepted, each.leaf, each.rank, each.hit)
        for each in rounds
    ]


def test_alone() -> None:
    rounds, target = told(right, NOTHING)
    assert target.proposals == [()] * 6
    assert seen(rounds) == [(0, 0, 0, False, None, None)] * 4  # all but the last round
    assert all(each.choice == NOTHING and each.settled == 1 for each in rounds)
    assert all(0 < each.target_s <= each.seconds for each in rounds)


@pytest.mark.parametrize(
    ("plan", "siblings", "expected"),
    [
        (right, 0, (2, 2, 2, False, None, None)),
        (second, 0, (2, 2, 0, False, 1, None)),
        (wrong, 0, (2, 2, 0, False, NO_RANK, None)),
        (second, 1, (3, 2, 0, True, 1, None)),
        (wrong, 1, (3, 2, 0, False, NO_RANK, None)),
    ],
)
def test_speculative(plan: Plan, siblings: int, expected: tuple[Any, ...]) -> None:
    rounds, _ = told(plan, Choice("model", 2, 0, siblings), tokens=12)
    assert seen(rounds)[0] == expected
    assert rounds[0].drafted
    assert not rounds[0].ahead
    assert rounds[0].draft_s > 0
    assert rounds[0].settled == expected[2] + expected[3] + 1


@pytest.mark.parametrize(("plan", "hit"), [(right, True), (second, True), (wrong, False)])
def test_mirror(plan: Plan, *, hit: bool) -> None:
    rounds, _ = told(plan, Choice("model", 2, 4), tokens=14)
    rounds = [each for each in rounds if each.choice != NOTHING]  # where there was no room left
    assert len(rounds) > 3
    assert [each.hit for each in rounds] == [hit] * len(rounds)
    assert all(each.ahead for each in rounds)
    # After a hit nothing is drafted before the target's run.
    assert [bool(each.drafted) for each in rounds[1:]] == [not hit] * (len(rounds) - 1)


def test_a_bare_token_while_the_draft_works_and_then_its_rollout() -> None:
    rounds, target = told(right, Choice("none", 2, 1), Choice("model", 2), tokens=9)
    assert target.proposals == [(), (), (3, 4), (), (7, 8)]
    assert [each.hit for each in rounds] == [True, None, True]
    assert not any(each.drafted for each in rounds)


@pytest.mark.parametrize(
    ("plan", "guessed"), [(right, (1, 1, None)), (second, (1, 0, 1)), (wrong, (1, 0, NO_RANK))]
)
def test_a_rollout_that_is_not_verified_is_learned_from(
    plan: Plan, guessed: tuple[int, int, int | None]
) -> None:
    target = speaking(range(1, 15), vocabulary=20)
    with working(TableDrafter(target, plan, per_pass=3), target) as worker:
        strategy, planner = auto(worker, Choice("none", 2, 1))
        write(target, strategy, max_new_tokens=6)
    # Of the first round nothing was at hand, and what the last one was is not asked for.
    assert planner.guessed == [guessed] * 3


def test_the_planner_is_told_when_the_draft_reads_beside_the_target() -> None:
    target = speaking(range(1, 15), vocabulary=20, context=128)
    drafter = SlowReader(target, right)
    with working(drafter, target, hang=drafter.may) as worker:

        def read_in_the_fourth_run() -> None:
            if len(target.proposals) == 4:
                drafter.may.set()
                while worker.is_reading:
                    time.sleep(0.001)

        target.meanwhile = read_in_the_fourth_run
        strategy, planner = auto(worker, NOTHING)
        write(target, strategy, [19] * 70, max_new_tokens=8)
    assert [each.is_shared for each in planner.told] == [True] * 3 + [False] * 3


def test_a_round_in_which_the_draft_begins_to_read_is_shared_already() -> None:
    target = speaking(range(1, 15), vocabulary=20, context=128)
    drafter = SlowReader(target, right)
    with working(drafter, target, hang=drafter.may) as worker:
        strategy, planner = auto(worker, NOTHING, NOTHING, Choice("model", 2))
        planner.wants = False
        write(target, strategy, [19] * 70, max_new_tokens=6)
    assert [each.is_shared for each in planner.told] == [False, False, True, True]


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_text_that_no_draft_reads_has_no_errors_of_the_one_before(*, in_turn: bool) -> None:
    target = speaking(range(1, 15), vocabulary=20)
    drafters = [TableDrafter(target, right) for _ in range(2)]
    with working(drafters.pop, target) as worker:
        strategy, planner = auto(worker, NOTHING, in_turn=in_turn)
        worker._drop(DraftError("It was dropped."))
        write(target, strategy, max_new_tokens=4)
        assert worker.error == "It was dropped."
        wait_until(lambda: worker.has_draft)
        planner.wants = False
        write(target, strategy, max_new_tokens=4)
        assert worker.error is None


def test_lookup_and_what_it_would_have_given() -> None:
    target = speaking((1, 2, 3, 4), vocabulary=8)
    with working(TableDrafter(target, wrong), target) as worker:
        strategy, planner = auto(worker, NOTHING, NOTHING, NOTHING, NOTHING, Choice("lookup", 4))
        written = write(target, strategy, max_new_tokens=24)
    assert written.tokens == (1, 2, 3, 4) * 6
    matched = [match for match, _ in planner.asked]
    assert matched[:5] == [0, 0, 0, 0, 1]
    lookups = [each for each in planner.told if each.choice.source == "lookup"]
    first = lookups[0]
    assert (first.match_length, first.proposed, first.accepted) == (1, 4, 4)
    assert planner.copied[0] == (6, 1, 1)  # the round after it, of the pending token alone
    assert not worker.work.runs or all(run.name == "read" for run in worker.work.runs)


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("wanted", [Choice("model", 2), Choice("none", 2, 1)])
def test_a_draft_reads_nothing_until_it_is_wanted(wanted: Choice, *, in_turn: bool) -> None:
    target = speaking(range(1, 15), vocabulary=20)
    with working(TableDrafter(target, right), target) as worker:
        strategy, planner = auto(worker, NOTHING, NOTHING, wanted, in_turn=in_turn)
        planner.wants = False
        runs: list[int] = []
        target.meanwhile = lambda: runs.append(worker.work.passes)
        written = write(target, strategy, max_new_tokens=9)
        assert worker.error is None
    assert written.tokens == tuple(range(1, 10))
    assert runs[:3] == [0, 0, 0]
    if wanted.source == "model":
        assert target.proposals == [(), (), (), (4, 5), (), (), ()]
    else:
        assert planner.told[2].hit
        assert not any(each.ahead or each.drafted for each in planner.told[:2])


def test_without_a_draft_the_planner_is_told_that_the_target_was_alone() -> None:
    target = speaking(range(1, 15), vocabulary=20)
    with working(TableDrafter(target, right), target) as worker:
        worker._drop(DraftError("It was dropped."))
        strategy, planner = auto(worker, Choice("model", 3, 4))
        written = write(target, strategy, max_new_tokens=5)
    assert written.tokens == (1, 2, 3, 4, 5)
    assert planner.told[0].choice == NOTHING


@pytest.mark.parametrize("passes", range(1, 7))
@pytest.mark.parametrize(
    "choice", [Choice("model", 2), Choice("model", 2, 4), Choice("none", 2, 1)]
)
def test_a_round_whose_draft_was_dropped_says_nothing_of_drafts(
    choice: Choice, passes: int
) -> None:
    target = speaking(range(1, 21), vocabulary=24)
    fault: Any = raising(ValueError("gone"))
    drafter = Faulty(TableDrafter(target, right), fault, after=passes)
    with working(drafter, target) as worker:
        strategy, planner = auto(worker, choice)
        write(target, strategy, max_new_tokens=16)
        assert worker.dropped
    dropped = next(place for place, each in enumerate(planner.told) if each.is_shared)
    for each in planner.told[:dropped]:
        assert each.choice == choice
        assert each.hit is (True if choice.num_hypotheses else None)
    for each in planner.told[dropped:]:
        assert (each.choice, each.hit) == (NOTHING, None)
        assert not (*each.drafted, *each.ahead, *each.after)
    assert len(planner.guessed) <= dropped
    assert planner.has_draft == [place <= dropped for place in range(len(planner.has_draft))]


def test_in_turn_a_text_without_a_draft_has_a_fresh_one_started() -> None:
    target = speaking(range(1, 15), vocabulary=20)
    drafters = [TableDrafter(target, right) for _ in range(2)]
    with working(drafters.pop, target) as worker:
        worker._drop(DraftError("It was dropped."))
        target.meanwhile = lambda: wait_until(lambda: worker.has_draft)
        strategy, planner = auto(worker, NOTHING, in_turn=True)
        write(target, strategy, max_new_tokens=4)
    assert planner.has_draft
    assert all(planner.has_draft)


def test_the_metrics_say_what_was_chosen_and_why() -> None:
    target = speaking(range(1, 15), vocabulary=20)
    with working(TableDrafter(target, right), target) as worker:
        strategy = Auto(worker, Planner(UNMEASURED), tokens_per_pass=1)
        written = write(target, strategy, max_new_tokens=9)
    assert "autoregressive" in written.metrics.to_dict()["plan"]
    alone = write(target, Autoregressive(), max_new_tokens=9)
    assert alone.metrics.to_dict()["plan"] is None


CHOICES = (
    NOTHING,
    Choice("lookup", 3),
    Choice("model", 1),
    Choice("model", 4, 0, 2),
    Choice("model", 3, 1),
    Choice("model", 2, 8, 3),
    Choice("none", 3, 2),
)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_whatever_is_chosen_the_text_is_the_targets_own(plan: Plan, temperature: float) -> None:
    noise = np.random.default_rng(7)
    target = TableTarget(vocabulary=8, seed=3)
    with working(TableDrafter(target, plan, per_pass=3), target) as worker:
        for seed in range(12):
            sampling = Sampling(temperature=temperature, seed=seed)
            script = [CHOICES[place] for place in noise.integers(len(CHOICES), size=9)]
            strategy, _ = auto(worker, *script, in_turn=bool(seed % 2))
            expected = write(target, Autoregressive(), (0, 3, 1), sampling, max_new_tokens=40)
            found = write(target, strategy, (0, 3, 1), sampling, max_new_tokens=40)
            assert found.tokens == expected.tokens
        assert not worker.errors


def test_the_real_planner_too() -> None:
    target = TableTarget(vocabulary=8, seed=5)
    planner = Planner(UNMEASURED, siblings=(0, 2))
    with working(TableDrafter(target, mixed, per_pass=3), target) as worker:
        for seed in range(6):
            strategy = Auto(worker, planner, tokens_per_pass=3, in_turn=bool(seed % 2))
            sampling = Sampling(temperature=0.5, seed=seed)
            expected = write(target, Autoregressive(), (2,), sampling, max_new_tokens=60)
            assert write(target, strategy, (2,), sampling, max_new_tokens=60).tokens == (
                expected.tokens
            )
