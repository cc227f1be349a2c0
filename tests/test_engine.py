"""Tests of runtime/engine.py: one text, whatever the strategy, the draft and what goes wrong."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from runtime import sampling as module
from runtime.drafter import Guess, LookupDrafter
from runtime.errors import ContextError
from runtime.sampling import Sampling, choose
from runtime.strategy import Autoregressive, Speculative, Strategy
from tests.table import (
    Faulty,
    Plan,
    TableDrafter,
    TableTarget,
    Written,
    mirror,
    mixed,
    right,
    second,
    speaking,
    working,
    write,
    wrong,
)

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = (1, 4, 8)
Kind = Callable[..., Strategy]
KINDS: tuple[Kind, ...] = (Speculative, mirror)
SAMPLINGS = [
    Sampling(temperature=temperature, repetition_penalty=penalty, seed=11)
    for temperature in (0.0, 0.7, 1.2)
    for penalty in (1.0, 1.3)
]


def alone(
    target: TableTarget, prompt: Sequence[int], sampling: Sampling, count: int
) -> tuple[int, ...]:
    """What the target says, by `choose` alone."""
    text = np.array(prompt, np.int64)
    for _ in range(count):
        text = np.append(text, choose(target.row(text), text, sampling))
    return tuple(int(token) for token in text[len(prompt) :])


# Equality.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", [right, second, wrong, mixed])
def test_no_draft_changes_the_text(plan: Plan, kind: Kind) -> None:
    target = TableTarget()
    with working(TableDrafter(target, plan), target) as worker:
        for sampling, width in itertools.product(SAMPLINGS, WIDTHS):
            written = write(
                target, kind(worker, num_draft_tokens=width), (0, 3, 1), sampling, max_new_tokens=24
            )
            assert written.tokens == alone(target, (0, 3, 1), sampling, 24), (sampling, width)
            metrics = written.metrics
            assert metrics.draft_tokens_proposed > 0
            if plan is right:
                assert metrics.draft_tokens_accepted == metrics.draft_tokens_proposed
            if plan in (second, wrong):
                assert metrics.draft_tokens_accepted == 0
            if plan is mixed and width > 1:
                assert 0 < metrics.draft_tokens_accepted < metrics.draft_tokens_proposed
        assert worker.error is None


@pytest.mark.parametrize("kind", KINDS)
def test_lookup_does_not_change_the_text(kind: Kind) -> None:
    target = TableTarget(context=128)
    with working(LookupDrafter(), target) as worker:
        for sampling, width in itertools.product(SAMPLINGS, WIDTHS):
            strategy = kind(worker, num_draft_tokens=width)
            written = write(target, strategy, (0, 3, 1), sampling, max_new_tokens=60)
            assert written.tokens == alone(target, (0, 3, 1), sampling, 60), (sampling, width)
            assert written.metrics.draft_tokens_accepted > 0


def test_plain_decoding_is_choose_one_token_at_a_time() -> None:
    target = TableTarget()
    for sampling in SAMPLINGS:
        target.proposals.clear()
        written = write(target, Autoregressive(), (2,), sampling, max_new_tokens=24)
        assert written.tokens == alone(target, (2,), sampling, 24)
        assert written.blocks == [(token,) for token in written.tokens]
        assert target.proposals == [()] * 24
        assert written.metrics.to_dict()["mean_acceptance_length"] == 1.0


def test_every_cell_of_context_position_and_seed_is_equal_across_engines() -> None:
    target = TableTarget(table=TableTarget().table / np.float32(8))
    cells = set()
    with ExitStack() as stack:
        workers = [
            stack.enter_context(working(TableDrafter(target, plan), target))
            for plan in (right, mixed)
        ]
        strategies: list[Strategy] = [Autoregressive()]
        for worker, kind in itertools.product(workers, KINDS):
            strategies.append(kind(worker, num_draft_tokens=3))
        prompts = [*((token,) for token in range(4)), *((0, token) for token in range(4))]
        for seed, prompt in itertools.product(range(30), prompts):
            sampling = Sampling(temperature=0.9, repetition_penalty=1.4, seed=seed)
            expected = alone(target, prompt, sampling, 4)
            for strategy in strategies:
                written = write(target, strategy, prompt, sampling, max_new_tokens=4)
                assert written.tokens == expected, (seed, prompt, strategy.name)
            text = (*prompt, *expected)
            cells |= {(at % 2, *text[at - 1 : at + 1]) for at in range(len(prompt), len(text))}
    # Every token came after every other at even and at odd places.
    assert cells == set(itertools.product(range(2), range(4), range(4)))


@pytest.mark.parametrize("penalty", [1.0, 1.8])
def test_every_cell_of_a_noise_table_is_equal_across_engines(
    penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TableTarget()
    sampling = Sampling(temperature=0.8, repetition_penalty=penalty)
    accepted = set()

    def right_if_odd(token: int, place: int) -> Guess:
        return (right if token % 2 else second)(token, place)

    with working(TableDrafter(target, right_if_odd), target) as worker:
        strategies = [kind(worker, num_draft_tokens=3) for kind in KINDS]
        for cell in itertools.product((-0.6, 1.1), repeat=8):
            # Every other position shares a row of noise, so 256 cells reach all positions.
            noise = np.array([cell[:4], cell[4:]])
            monkeypatch.setattr(
                module, "gumbel", lambda _s, at, ids, noise=noise: noise[at % 2, ids]
            )
            expected = alone(target, (2, 0), sampling, 6)
            for strategy in strategies:
                written = write(target, strategy, (2, 0), sampling, max_new_tokens=6)
                assert written.tokens == expected, (cell, strategy.name)
                accepted |= {len(block) - 1 for block in written.blocks}
    assert accepted == {0, 1, 2, 3}


# A draft that fails.


def raises() -> Guess:
    raise RuntimeError("no such kernel")


def hangs(until: Event) -> None:
    until.wait(10)


FAULTS: dict[str, tuple[Callable[[], Guess | None], str]] = {
    "raises": (raises, "The draft failed: RuntimeError: no such kernel"),
    "outside": (lambda: Guess(4), "the token 4, outside the vocabulary of 4"),
    "far outside": (lambda: Guess(2**40), "outside the vocabulary of 4"),
    "negative": (lambda: Guess(-1), "the token -1, outside the vocabulary of 4"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 1, 2, 5, 13])
@pytest.mark.parametrize("name", FAULTS)
def test_a_draft_that_fails_leaves_the_text_as_it_is(name: str, after: int, kind: Kind) -> None:
    fault, error = FAULTS[name]
    sampling = Sampling(temperature=0.7, seed=2)
    for width in WIDTHS:
        target = TableTarget()
        make = partial(Faulty, TableDrafter(target, mixed), fault, after=after)
        with working(make, target) as worker:
            strategy = kind(worker, num_draft_tokens=width)
            written = write(target, strategy, (1,), sampling, max_new_tokens=40)
            assert all(error in each for each in worker.errors)
            assert worker.errors
            again = write(target, strategy, (2,), sampling, max_new_tokens=9)
        assert written.tokens == alone(target, (1,), sampling, 40)
        assert written.metrics.finish_reason == "max_new_tokens"
        assert again.tokens == alone(target, (2,), sampling, 9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 3])
def test_a_draft_that_hangs_leaves_the_text_as_it_is(after: int, kind: Kind) -> None:
    for width in WIDTHS:
        target, hang = TableTarget(), Event()
        drafter = Faulty(TableDrafter(target, mixed), partial(hangs, hang), after=after)
        with working(drafter, target, time_limit_s=0.05, hang=hang) as worker:
            strategy = kind(worker, num_draft_tokens=width)
            written = write(target, strategy, (1,), max_new_tokens=20)
            assert worker.errors[0] == "The draft gave no answer within 0.05 s."
        assert written.tokens == alone(target, (1,), Sampling(), 20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 5])
def test_a_draft_without_a_guess_is_no_failure(after: int, kind: Kind) -> None:
    target = TableTarget()
    with working(Faulty(TableDrafter(target, right), lambda: None, after=after), target) as worker:
        written = write(target, kind(worker, num_draft_tokens=4), max_new_tokens=20)
        assert worker.error is None
    assert written.tokens == alone(target, (0,), Sampling(), 20)


HANGING = """
import sys, time
from runtime.drafter import Guess
from runtime.worker import DraftWorker
from tests.table import Faulty, TableDrafter, TableTarget, mirror, right, write

target = TableTarget()
drafter = Faulty(TableDrafter(target, right), lambda: time.sleep(60), after=7)
worker = DraftWorker(lambda: drafter, context=64, vocabulary=4, time_limit_s=0.05)
written = write(target, mirror(worker, num_draft_tokens=3), max_new_tokens=30)
print(*written.tokens, written.metrics.finish_reason, worker.errors[0], flush=True)
if sys.argv[1] == "close":
    print(worker.close(), flush=True)
"""


@pytest.mark.parametrize("ending", ["close", "leave"])
def test_a_program_whose_draft_hangs_answers_and_then_ends_within_two_seconds(ending: str) -> None:
    expected = alone(TableTarget(), (0,), Sampling(), 30)
    command = [sys.executable, "-c", HANGING, ending]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        answer = program.stdout.readline()
        try:
            rest, _ = program.communicate(timeout=2)
        finally:
            program.kill()
    numbers = " ".join(map(str, expected))
    assert answer == f"{numbers} max_new_tokens The draft gave no answer within 0.05 s.\n"
    assert rest == ("False\n" if ending == "close" else "")
    assert program.returncode == 0


# Ends.


def every_way(
    target: TableTarget,
    prompt: Sequence[int],
    *,
    plan: Plan = right,
    max_new_tokens: int = 40,
    end_tokens: Sequence[int] = (),
) -> Written:
    """The answer by plain decoding; every strategy and width must give the same."""

    def answer(strategy: Strategy) -> Written:
        return write(target, strategy, prompt, max_new_tokens=max_new_tokens, end_tokens=end_tokens)

    plain = answer(Autoregressive())
    with working(TableDrafter(target, plan), target) as worker:
        for kind, width in itertools.product(KINDS, range(1, 9)):
            written = answer(kind(worker, num_draft_tokens=width))
            assert written.tokens == plain.tokens, (kind, width)
            assert written.metrics.finish_reason == plain.metrics.finish_reason
        assert worker.error is None
    return plain


@pytest.mark.parametrize("place", range(1, 10))
def test_an_end_token_inside_an_accepted_block_ends_the_text_there(place: int) -> None:
    script = [5, 6, 4, 5, 6, 5, 4, 6, 5, 6]
    script.insert(place, 7)
    target = speaking(script, vocabulary=8, prompt_length=2)
    written = every_way(target, (1, 1), end_tokens=(7, 3))
    assert written.tokens == tuple(script[:place])
    assert written.metrics.finish_reason == "eos"


def test_an_end_token_as_the_first_word_is_an_answer_without_tokens() -> None:
    target = speaking([7, 5], vocabulary=8)
    written = every_way(target, (1,), end_tokens=(7,))
    assert written.blocks == []
    assert written.metrics.finish_reason == "eos"
    assert (written.metrics.emitted_tokens, written.metrics.tokens_discarded) == (0, 1)


def test_an_end_token_that_is_proposed_and_rejected_ends_nothing() -> None:
    script = [4, 5, 6] * 5
    target = speaking(script, vocabulary=8)

    def end_token(token: int, place: int) -> Guess:
        return Guess(7, (7,)) if place % 3 == 0 else right(token, place)

    written = every_way(target, (1,), plan=end_token, max_new_tokens=15, end_tokens=(7,))
    assert written.tokens == tuple(script)
    assert written.metrics.finish_reason == "max_new_tokens"
    assert any(7 in proposal for proposal in target.proposals)


@pytest.mark.parametrize("budget", range(12))
def test_the_budget_is_met_exactly(budget: int) -> None:
    written = every_way(TableTarget(), (1, 2), max_new_tokens=budget)
    assert len(written.tokens) == budget
    assert written.metrics.finish_reason == "max_new_tokens"
    assert written.metrics.tokens_discarded == 0


def test_without_a_budget_nothing_runs() -> None:
    target = TableTarget()
    written = every_way(target, (1, 2), max_new_tokens=0)
    assert target.proposals == []
    assert written.metrics.to_dict()["ttft_s"] is None


@pytest.mark.parametrize("length", range(1, 13))
@pytest.mark.parametrize("plan", [right, second])
def test_a_context_that_fills_ends_the_text_and_is_never_overrun(plan: Plan, length: int) -> None:
    target = TableTarget(context=12)
    written = every_way(target, [1] * length, plan=plan)
    # The last token is said and never fed.
    assert len(written.tokens) == 12 - length + 1
    assert written.metrics.finish_reason == "context_full"
    assert target.longest == 12


def test_a_prompt_as_long_as_the_context_has_one_token_of_answer() -> None:
    target = TableTarget(context=5)
    written = every_way(target, [0, 1, 2, 3, 0])
    assert written.tokens == alone(target, [0, 1, 2, 3, 0], Sampling(), 1)
    assert written.metrics.finish_reason == "context_full"


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([], "The prompt is empty"),
        ([1] * 6, "has 6 tokens and the context holds 5"),
        ([1] * 70, "has 70 tokens and the context holds 5"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs(
    prompt: list[int], error: str
) -> None:
    target = TableTarget(context=5)
    with working(TableDrafter(target, right), target) as worker:
        for strategy in (Autoregressive(), Speculative(worker, num_draft_tokens=4)):
            with pytest.raises(ContextError, match=error):
                write(target, strategy, prompt)
    assert target.proposals == []


# Cancel.


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_cancel_from_another_thread_stops_within_one_step(kind: Kind | None, at: int) -> None:
    target, cancel = TableTarget(), Event()

    def cancel_in_a_run() -> None:
        if len(target.proposals) == at:
            canceller = threading.Thread(target=cancel.set)
            canceller.start()
            canceller.join()

    target.meanwhile = cancel_in_a_run
    with working(TableDrafter(target, right), target) as worker:
        strategy = Autoregressive() if kind is None else kind(worker, num_draft_tokens=2)
        written = write(target, strategy, max_new_tokens=40, cancelled=cancel.is_set)
    assert len(target.proposals) == at
    assert written.metrics.finish_reason == "cancelled"
    assert written.tokens == alone(target, (0,), Sampling(), len(written.tokens))
    assert len(written.tokens) == at + sum(map(len, target.proposals))


def test_a_cancel_in_the_last_step_comes_too_late() -> None:
    target, cancel = TableTarget(), Event()
    target.meanwhile = lambda: cancel.set() if len(target.proposals) == 2 else None
    written = write(target, Autoregressive(), max_new_tokens=2, cancelled=cancel.is_set)
    assert written.metrics.finish_reason == "max_new_tokens"


def test_near_ties_are_counted_once_a_token_by_every_strategy() -> None:
    # The winner's logit is 18 above all others.
    for bound, expected in [(0.0, 0), (8.9, 0), (9.0, 12), (50.0, 12)]:
        target = speaking([1, 2, 3], vocabulary=4)
        with working(TableDrafter(target, mixed), target) as worker:
            for strategy in (Autoregressive(), mirror(worker, num_draft_tokens=4)):
                written = write(target, strategy, max_new_tokens=12, near_tie_bound=bound)
                assert written.metrics.near_ties == expected
