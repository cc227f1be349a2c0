"""Tests of runtime/worker.py: what the caller gets from a draft, well behaved or not."""

import itertools
from collections.abc import Callable
from itertools import pairwise
from threading import Event

import numpy as np
import pytest

from runtime import worker as module
from runtime.channel import Kind, Message, TokenChannel
from runtime.drafter import Drafter, Guess
from runtime.hypotheses import Hypothesis
from runtime.sampling import Sampling
from runtime.worker import NO_DRAFT, Draft, DraftWorker
from tests.counter import Counter, Ill, raising, successors
from tests.table import Abreast, TableTarget, current, once, wait_until, working

TARGET = TableTarget(vocabulary=100, context=400)
HELD = [Hypothesis(0, None)]  # what a draft can be kept at work on


def proposed(*tokens: int) -> Draft:
    """A miss, and what a Counter says anew."""
    return Draft(tuple(Guess(token, (token + 10,)) for token in tokens))


def test_a_proposal_continues_what_is_committed() -> None:
    drafter = Counter()
    with working(drafter, TARGET) as worker:
        worker.begin([3, 5], Sampling())
        assert worker.propose(3) == proposed(6, 7, 8)
        worker.commit((6, 7, 40))
        assert worker.propose(2) == proposed(41, 42)
        worker.begin((9,), Sampling())
        assert worker.propose(1) == proposed(10)
        assert worker.propose(0) == NO_DRAFT
        assert worker.propose(2, redraft=False) == NO_DRAFT
    assert drafter.passes == [[[3, 5]], [[3, 5, 6, 7, 40]], [[9]]]
    assert worker.error is None
    assert worker.source == "counter"


def test_passes_are_counted_and_timed_for_each_text() -> None:
    with working(Counter(per_pass=1), TARGET) as worker:
        worker.begin([3], Sampling())
        wait_until(lambda: worker.work.passes == 1)  # the reading of the prompt
        worker.propose(3)
        first = worker.work
        assert first.passes == len(first.runs) == 4
        assert all(run.start <= run.end for run in first.runs)
        assert [run.name for run in first.runs] == ["read", "propose", "propose", "propose"]
        assert all(run.end <= later.start for run, later in pairwise(first.runs))
        worker.begin([4], Sampling())
        worker.propose(2)
        assert worker.work.passes in (2, 3)  # the prompt is read when there is time
        assert first.passes == 4


@pytest.mark.parametrize("length", [1, 64, 65, 128, 129, 400])
def test_a_prompt_of_any_length_arrives_whole(length: int) -> None:
    drafter = Counter()
    prompt = [token % 90 for token in range(length)]
    with working(drafter, TARGET) as worker:
        worker.begin(np.array(prompt, np.int64), Sampling())
        wait_until(worker.ready)
        worker.propose(1)
    assert drafter.passes == [[prompt]]


# Look-ahead: outcomes of verifying 6, 7 after 5; the draft's next words there are 8, 16 and 17.
FOLLOWED = [Hypothesis(2, 8, "bonus"), Hypothesis(0, 16), Hypothesis(1, 17)]
BLOCKS = [(6, 7, 8), (16,), (6, 17)]
UNSEEN = [(6, 7, 18), (6, 7, 9), (7,), (17,), (6, 16), (6, 8)]


@pytest.mark.parametrize("per_pass", [1, 2, 3, 9])
def test_every_outcome_that_was_followed_is_a_hit_and_no_other(per_pass: int) -> None:
    drafter = Counter(per_pass=per_pass)
    with working(drafter, TARGET) as worker:
        abreast = Abreast(worker)
        for number, block in enumerate(BLOCKS + UNSEEN):
            worker.begin([5], Sampling())
            worker.look_ahead((6, 7), FOLLOWED, 2)
            abreast()
            drafter.passes.clear()
            worker.commit(block)
            draft = worker.propose(2, 3)
            is_hit = number < len(FOLLOWED)
            assert draft.hypothesis == (FOLLOWED[number] if is_hit else None)
            # A further one where a pass gives it: two single ones, or a pair, are enough.
            count = 3 if per_pass > 2 else 2
            assert draft.guesses == tuple(successors(block[-1], count))
            assert bool(drafter.passes) is not is_hit


def test_a_rollout_may_be_taken_without_drafting_anew() -> None:
    drafter = Counter()
    with working(drafter, TARGET) as worker:
        for block, hypothesis in ((UNSEEN[0], None), (BLOCKS[0], FOLLOWED[0])):
            worker.begin([5], Sampling())
            worker.look_ahead((6, 7), FOLLOWED, 2)
            worker.commit(block)
            drafted = successors(8, 3) if hypothesis else []
            assert worker.propose(2, 3, redraft=False) == Draft(tuple(drafted), hypothesis)
    assert len(drafter.passes) == 2


def outcomes(worker: DraftWorker, count: int, *, redraft: bool) -> list[Draft]:
    """What follows each outcome of verifying 6, 7 when all that can be is followed."""
    followed = [*FOLLOWED, Hypothesis(0, None), Hypothesis(1, None), Hypothesis(2, None)]
    found = []
    some = (followed, followed[:2], followed[3:])
    for hypotheses, block in itertools.product(some, BLOCKS + UNSEEN):
        worker.begin([5], Sampling())
        worker.look_ahead((6, 7), hypotheses, count)
        worker.commit(block)
        found.append(worker.propose(count, count + 1, redraft=redraft))
    return found


@pytest.mark.parametrize("redraft", [True, False])
@pytest.mark.parametrize("per_pass", [1, 2, 3, 4, 9])
def test_what_comes_of_a_look_ahead_never_depends_on_time(
    per_pass: int,
    redraft: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For one pass or for all, whenever the caller's messages come."""
    for count in (1, 2, 3, 5):
        with working(Counter(per_pass=per_pass), TARGET) as worker:
            as_it_comes = outcomes(worker, count, redraft=redraft)
            with monkeypatch.context() as patch:
                patch.setattr(TokenChannel, "pending", True)
                hurried = outcomes(worker, count, redraft=redraft)
            with monkeypatch.context() as patch:
                patch.setattr(TokenChannel, "pending", False)
                at_leisure = outcomes(worker, count, redraft=redraft)
            assert worker.error is None
        assert as_it_comes == hurried == at_leisure
        assert all(len(draft.guesses) >= count for draft in hurried if draft.hypothesis or redraft)


def test_a_rollout_counts_for_its_round_only() -> None:
    with working(Counter(), TARGET) as worker:
        worker.begin([5], Sampling())
        worker.look_ahead((6,), [Hypothesis(1, 7)], 2)
        worker.look_ahead((), [Hypothesis(0, 8)], 2)
        worker.commit((6, 7))
        assert worker.propose(2) == proposed(8, 9)  # guessed in the round before
        worker.look_ahead((8, 9), [Hypothesis(0, 18)], 2)
        worker.begin([5], Sampling())
        worker.commit((18,))
        assert worker.propose(2) == proposed(19, 20)  # guessed in the text before
        worker.look_ahead((19, 20), [Hypothesis(0, 29)], 2)
        worker.commit((29,))
        assert worker.propose(2).hypothesis == Hypothesis(0, 29)
        assert worker.propose(2) == proposed(30, 31)  # it was taken


def test_an_interrupted_wait_leaves_the_worker_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with working(Counter(), TARGET) as worker:
        worker.begin([5], Sampling())
        receive = worker._receive

        def interrupted(timeout_s: float) -> Message | None:
            del timeout_s
            monkeypatch.setattr(worker, "_receive", receive)
            raise KeyboardInterrupt

        monkeypatch.setattr(worker, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.propose(2)
        worker.begin([50], Sampling())
        assert worker.propose(2) == proposed(51, 52)


def test_a_long_prompt_is_not_waited_for() -> None:
    drafter, go_on = Counter(), Event()
    drafter.before_chunk = lambda: go_on.wait(5.0)
    with working(drafter, TARGET, hang=go_on) as worker:
        worker.begin([7] * 64, Sampling())
        assert (worker.ready(), worker.is_reading) == (True, False)
        worker.begin([7] * 65, Sampling())
        assert (worker.ready(), worker.is_reading) == (False, True)
        go_on.set()
        wait_until(worker.ready)
        assert not worker.is_reading
        assert worker.propose(1) == proposed(8)
    assert worker.error is None


# What goes wrong.


def test_a_dropped_draft_is_not_asked_again() -> None:
    with working(Ill(raising(ValueError("no kernel"))), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == NO_DRAFT
        worker.look_ahead((7,), HELD, 2)
        assert worker.propose(2) == NO_DRAFT
        assert not worker.ready()
        assert worker.errors == ["The draft failed: ValueError: no kernel"]
        assert worker.error == worker.errors[0]


def test_a_draft_that_hangs_is_dropped_after_its_time_limit() -> None:
    hang = Event()
    with working(Ill(lambda: hang.wait(10)), TARGET, time_limit_s=0.02, hang=hang) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == NO_DRAFT
        assert worker.error == "The draft gave no answer within 0.02 s."
        assert worker.propose(2) == NO_DRAFT


def test_a_draft_that_hangs_as_it_reads_is_dropped_though_nobody_waits_for_it() -> None:
    drafter, hang = Counter(), Event()
    drafter.before_chunk = lambda: hang.wait(10)
    with working(drafter, TARGET, time_limit_s=0.02, hang=hang) as worker:
        worker.begin([5] * 100, Sampling())
        wait_until(lambda: not worker.ready() and bool(worker.errors))
        assert worker.error == "The draft read no further for 0.02 s."


def test_a_draft_that_raises_as_it_reads_a_long_text_does_not_count_as_reading() -> None:
    drafter = Counter()
    drafter.before_chunk = raising(ValueError("bad chunk"))
    with working(drafter, TARGET) as worker:
        worker.begin([5] * 100, Sampling())
        wait_until(lambda: not worker.ready() and bool(worker.errors))
        assert worker.propose(2) == NO_DRAFT
        assert worker.error == "The draft failed: ValueError: bad chunk"


def test_an_inbox_that_stays_full_drops_the_draft() -> None:
    hang = Event()
    with working(Ill(lambda: hang.wait(10)), TARGET, time_limit_s=0.02, hang=hang) as worker:
        worker.begin([5], Sampling())
        for _ in range(200):
            worker.look_ahead((), HELD, 2)
        assert worker.error == "The draft took no message for 0.02 s."


# The end.


def closed(drafter: Drafter, use: Callable[[DraftWorker], object]) -> bool:
    """Whether a worker can be closed after `use`."""
    worker = DraftWorker(once(drafter), context=400, vocabulary=100)
    thread = current(worker).thread
    use(worker)
    return worker.close() and worker.close() and not thread.is_alive()


def test_a_thread_ends_when_told_so() -> None:
    assert closed(Counter(), id)
    assert closed(Counter(), lambda worker: worker.begin([5] * 100, Sampling()))
    assert closed(Ill(raising(ValueError())), lambda worker: worker.look_ahead((), HELD, 2))


def test_a_dropped_draft_does_not_keep_its_thread() -> None:
    def drop(worker: DraftWorker) -> None:
        worker.begin([5], Sampling())
        worker.propose(1)
        assert worker.error is not None

    assert closed(Ill(lambda: Guess(-1)), drop)


def test_a_thread_with_more_to_tell_than_anyone_reads_ends_all_the_same() -> None:
    def tell_too_much(worker: DraftWorker) -> None:
        worker.begin([5], Sampling())
        outbox = current(worker).outbox
        for _ in range(2 * len(outbox._ring)):  # answers that nobody takes out
            worker._send(Message(Kind.DRAFT, 0, 1, 1))
        wait_until(lambda: outbox._sent >= len(outbox._ring))

    assert closed(Counter(), tell_too_much)


def test_a_stuck_thread_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.02)
    stuck, hang = Event(), Event()

    def wait() -> None:
        stuck.set()
        hang.wait(10)

    worker = DraftWorker(once(Ill(wait)), context=9, vocabulary=9)
    thread = current(worker).thread
    worker.begin([5], Sampling())
    worker.look_ahead((), HELD, 2)
    assert stuck.wait(5)
    assert not worker.close()
    hang.set()
    thread.join(5.0)
    assert not thread.is_alive()
