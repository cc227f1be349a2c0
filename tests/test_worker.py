"""Tests of runtime/worker.py: what the caller gets from a draft, well behaved or not."""

from collections.abc import Callable
from itertools import pairwise
from threading import Event

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import worker as module
from runtime.channel import Message
from runtime.drafter import Drafter, Guess
from runtime.sampling import Sampling
from runtime.verify import Outcome, Proposal
from runtime.worker import DraftWorker
from tests.counter import Counter, Ill, raising
from tests.table import Abreast, TableTarget, current, once, wait_until, working

Tokens = NDArray[np.int64]
TARGET = TableTarget(vocabulary=100, context=400)
CHAIN = Proposal.chain


def test_a_proposal_continues_what_is_committed() -> None:
    drafter = Counter()
    with working(drafter, TARGET) as worker:
        worker.begin([3, 5], Sampling())
        assert worker.propose(3) == CHAIN((6, 7, 8))
        worker.commit((6, 7, 40))
        assert worker.propose(2) == CHAIN((41, 42))
        worker.begin((9,), Sampling())
        assert worker.propose(1) == CHAIN((10,))
        assert worker.propose(0) == CHAIN(())
    assert drafter.texts == [[3, 5], [3, 5, 6, 7, 40], [9]]
    assert worker.error is None
    assert worker.source == "counter"


def test_passes_are_counted_and_timed_for_each_text() -> None:
    with working(Counter(), TARGET) as worker:
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
    assert drafter.texts == [prompt]


# Look-ahead: the outcomes of verifying 6, 7 after 5, with 16 and 17 as the runner-ups.
AHEAD = [
    (Outcome(1, 8), (9, 10)),  # all accepted, and the draft's next word
    (Outcome(-1, 16), (17, 18)),  # the runner-up at the first place
    (Outcome(0, 17), (18, 19)),  # the runner-up at the second
]
NOT_AHEAD = [Outcome(1, 18), Outcome(-1, 6), Outcome(0, 7), Outcome(-1, 8), Outcome(0, 16)]


def test_a_look_ahead_drafts_for_every_guessed_outcome_and_no_other() -> None:
    drafter = Counter()
    with working(drafter, TARGET) as worker:
        abreast = Abreast(worker)
        worker.begin([5], Sampling())
        worker.look_ahead(worker.propose(2), 2)
        abreast()
        for outcome, tokens in AHEAD:
            assert worker.rollout(outcome) == CHAIN(tokens)
        for outcome in NOT_AHEAD:
            assert worker.rollout(outcome) is None
    assert drafter.texts == [[5], [5, 6, 7], [5, 16], [5, 6, 17]]


def test_a_rollout_brings_its_own_runner_ups_to_the_next_round() -> None:
    drafter = Counter()
    with working(drafter, TARGET) as worker:
        abreast = Abreast(worker)
        worker.begin([5], Sampling())
        worker.look_ahead(worker.propose(2), 2)
        abreast()
        rollout = worker.rollout(Outcome(0, 17))
        assert rollout == CHAIN((18, 19))
        worker.commit((6, 17))
        worker.look_ahead(rollout, 1)
        abreast()
        assert drafter.texts[4:] == [[5, 6, 17, 18, 19], [5, 6, 17, 28], [5, 6, 17, 18, 29]]


def test_a_proposal_that_was_cut_keeps_its_runner_ups() -> None:
    drafter = Counter()
    with working(drafter, TARGET) as worker:
        abreast = Abreast(worker)
        worker.begin([5], Sampling())
        worker.look_ahead(worker.propose(2), 3)
        abreast()
        assert worker.rollout(Outcome(-1, 16)) == CHAIN((17, 18, 19))
        worker.commit((16,))
        worker.look_ahead(CHAIN((17, 18)), 1)
        abreast()
        assert drafter.texts[5:] == [[5, 16, 27], [5, 16, 17, 28]]


def test_a_rollout_is_there_as_far_as_it_was_drafted_and_ends_when_the_round_does() -> None:
    drafter, third, go_on = Counter(), Event(), Event()

    def hold(context: Tokens) -> None:
        if context.tolist() == [5, 6, 7, 8, 9]:
            third.set()
            go_on.wait(5.0)

    drafter.before_pass = hold
    with working(drafter, TARGET, hang=go_on) as worker:
        worker.begin([5], Sampling())
        worker.look_ahead(worker.propose(2), 4)
        assert third.wait(5.0)
        assert worker.rollout(Outcome(1, 8)) == CHAIN((9,))
        worker.commit((6, 7, 8))
        go_on.set()
        assert worker.propose(1) == CHAIN((9,))
    # Neither a further token nor a further hypothesis after the outcome was known.
    assert drafter.texts == [[5], [5, 6, 7], [5, 6, 7, 8]]


def test_what_comes_too_late_for_its_round_is_dropped() -> None:
    drafter = Counter()
    with working(drafter, TARGET) as worker:
        abreast = Abreast(worker)
        worker.begin([5], Sampling())
        worker.look_ahead(worker.propose(1), 2)
        abreast()
        worker.look_ahead(CHAIN(()), 1)
        abreast()
        assert worker.rollout(Outcome(0, 7)) is None  # guessed in the round before
        assert worker.rollout(Outcome(-1, 6)) == CHAIN((7,))


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
        assert worker.propose(2) == CHAIN((51, 52))


def test_a_long_prompt_is_not_waited_for() -> None:
    drafter, go_on = Counter(), Event()
    drafter.before_chunk = lambda: go_on.wait(5.0)
    with working(drafter, TARGET, hang=go_on) as worker:
        worker.begin([7] * 64, Sampling())
        assert worker.ready()
        worker.begin([7] * 65, Sampling())
        assert not worker.ready()
        go_on.set()
        wait_until(worker.ready)
        assert worker.propose(1) == CHAIN((8,))
    assert worker.error is None


# What goes wrong.


def test_a_dropped_draft_is_not_asked_again() -> None:
    with working(Ill(raising(ValueError("no kernel"))), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == CHAIN(())
        worker.look_ahead(CHAIN((7,)), 2)
        assert worker.rollout(Outcome(0, 8)) is None
        assert worker.propose(2) == CHAIN(())
        assert not worker.ready()
        assert worker.errors == ["The draft failed: ValueError: no kernel"]
        assert worker.error == worker.errors[0]


def test_a_draft_that_hangs_is_dropped_after_its_time_limit() -> None:
    hang = Event()
    with working(Ill(lambda: hang.wait(10)), TARGET, time_limit_s=0.02, hang=hang) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == CHAIN(())
        assert worker.error == "The draft gave no answer within 0.02 s."
        assert worker.propose(2) == CHAIN(())


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
        assert worker.propose(2) == CHAIN(())
        assert worker.error == "The draft failed: ValueError: bad chunk"


def test_an_inbox_that_stays_full_drops_the_draft() -> None:
    hang = Event()
    with working(Ill(lambda: hang.wait(10)), TARGET, time_limit_s=0.02, hang=hang) as worker:
        worker.begin([5], Sampling())
        worker.look_ahead(CHAIN(()), 2)
        for _ in range(200):
            worker.commit((5,))
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
    assert closed(Ill(raising(ValueError())), lambda worker: worker.look_ahead(CHAIN(()), 2))


def test_a_dropped_draft_does_not_keep_its_thread() -> None:
    def drop(worker: DraftWorker) -> None:
        worker.begin([5], Sampling())
        worker.propose(1)
        assert worker.error is not None

    assert closed(Ill(lambda: Guess(-1)), drop)


def test_a_thread_with_more_to_tell_than_anyone_reads_ends_all_the_same() -> None:
    def interrupted_round(worker: DraftWorker) -> None:
        worker.begin([5], Sampling())
        worker.look_ahead(worker.propose(20), 20)
        # 21 guessed outcomes of 20 tokens do not fit, and nobody takes them out.
        outbox = current(worker).outbox
        wait_until(lambda: outbox._sent >= len(outbox._ring))

    assert closed(Counter(), interrupted_round)


def test_a_stuck_thread_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.02)
    stuck, hang = Event(), Event()

    def wait() -> None:
        stuck.set()
        hang.wait(10)

    worker = DraftWorker(once(Ill(wait)), context=9, vocabulary=9)
    thread = current(worker).thread
    worker.begin([5], Sampling())
    worker.look_ahead(CHAIN(()), 2)
    assert stuck.wait(5)
    assert not worker.close()
    hang.set()
    thread.join(5.0)
    assert not thread.is_alive()
