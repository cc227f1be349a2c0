"""Tests of drafts that fail: a fresh one takes over, and the text never shows it."""

from functools import partial
from threading import Event, Thread

import pytest

from runtime import worker as module
from runtime.drafter import Drafter
from runtime.sampling import Sampling
from runtime.verify import Proposal
from runtime.worker import DraftWorker
from tests.counter import Counter, Ill, raising
from tests.table import Faulty, TableTarget, current, wait_until, working

TARGET = TableTarget(vocabulary=100, context=400)
CHAIN = Proposal.chain
GONE = "The draft failed: ValueError: gone"


# A fresh draft.


class Drafts:
    """Makes `ill` drafters, then sound ones, and counts them."""

    def __init__(self, *ill: Drafter) -> None:
        self.made = 0
        self._ill = list(ill)

    def __call__(self) -> Drafter:
        self.made += 1
        return self._ill.pop(0) if self._ill else Counter()


def test_a_fresh_draft_takes_over_and_knows_the_text() -> None:
    drafts = Drafts(Ill(raising(ValueError("gone"))))
    with working(drafts, TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == CHAIN(())
        assert drafts.made == 1
        worker.commit((6, 40))  # the round is over: the fresh draft starts
        wait_until(lambda: drafts.made == 2)
        tell_when_loaded(worker, 41)
        assert worker.propose(2) == CHAIN((42, 43))
        assert worker.errors == [GONE]  # of this text
        worker.begin([7], Sampling())
        assert worker.errors == []
        assert worker.propose(1) == CHAIN((8,))
    assert drafts.made == 2


def tell_when_loaded(worker: DraftWorker, token: int) -> None:
    """Commit `token` when the fresh draft has loaded, and wait until it has read the text."""
    wait_until(lambda: current(worker).loop.loaded)
    worker.commit((token,))
    wait_until(worker.ready)


def test_a_fresh_draft_that_still_loads_is_not_waited_for_nor_told() -> None:
    hang = Event()

    def make() -> Drafter:
        if drafters:
            return drafters.pop()
        hang.wait(10)
        return Counter()

    drafters: list[Drafter] = [Ill(raising(ValueError("gone")))]
    with working(make, TARGET, time_limit_s=0.01, hang=hang) as worker:
        worker.begin([5], Sampling())
        worker.propose(1)
        for _ in range(200):  # more than its channel would hold
            worker.commit((6,))
            assert not worker.ready()
        hang.set()
        tell_when_loaded(worker, 7)
        assert worker.propose(1) == CHAIN((8,))
    assert worker.errors == [GONE]


def test_a_fresh_draft_that_never_loads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_S", 0.01)
    hang, drafters = Event(), [Ill(raising(ValueError("gone")))]
    make = lambda: drafters.pop() if drafters else hang.wait(10)  # noqa: E731
    with working(make, TARGET, hang=hang) as worker:  # type: ignore[arg-type]
        worker.begin([5], Sampling())
        worker.propose(1)
        worker.commit((6,))
        wait_until(lambda: not worker.ready() and len(worker.errors) == 2)
        assert worker.errors[1] == "The draft was not loaded for 0.01 s."
        assert (
            worker.error == "The draft failed: ValueError: gone (one of 2 drafts that were dropped)"
        )


def play(worker: DraftWorker, rounds: range) -> list[int]:
    """Rounds in which the draft does all it can; returns those at whose end a fresh one started."""
    started = []
    for number in rounds:
        draft = worker._drafts.current
        if draft is not None:
            wait_until(partial(getattr, draft.loop, "loaded"))
            if draft.told:
                wait_until(worker.ready)
        if worker.ready():
            worker.propose(1)
        worker.commit((6,))
        if worker._drafts.current not in (draft, None):
            started.append(number)
    return started


def test_a_draft_that_fails_again_and_again_is_tried_ever_more_seldom() -> None:
    with working(lambda: Ill(raising(ValueError("gone"))), TARGET) as worker:
        worker.begin([5], Sampling())
        # At once; then, 2 rounds after each start, it fails and pauses for 16, 32, 64, … rounds.
        assert play(worker, range(100)) == [0, 17, 50]
        worker.begin([5], Sampling())  # a new text changes nothing, and says what is missing
        assert worker.errors == [GONE]
        assert play(worker, range(100, 300)) == [115, 244]


def test_failures_of_drafts_that_worked_are_forgiven() -> None:
    fault = raising(ValueError("gone"))
    with working(lambda: Faulty(Counter(), fault, after=16), TARGET) as worker:  # type: ignore[arg-type]
        worker.begin([5], Sampling())
        assert play(worker, range(100)) == [16, 34, 52, 70, 88]
        assert worker.error == f"{GONE} (one of 5 drafts that were dropped)"


def test_drafts_that_stay_stuck_are_not_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0)
    hang = Event()
    make = partial(Ill, lambda: hang.wait(10))
    with working(make, TARGET, time_limit_s=0.01, hang=hang) as worker:
        worker.begin([5], Sampling())
        play(worker, range(20))
        assert len(worker.errors) == worker._drafts.running() == 3
        assert worker._drafts.current is None
        hang.set()
        wait_until(lambda: worker._drafts.running() == 0)
        worker.commit((6,))
        assert worker._drafts.current is not None


def test_a_thread_that_cannot_start_leaves_the_answer_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with working(Ill(raising(ValueError("gone"))), TARGET) as worker:
        worker.begin([5], Sampling())
        monkeypatch.setattr(Thread, "start", raising(RuntimeError("no more threads")))
        worker.propose(1)
        worker.commit((6,))
        assert worker.errors[1:] == [
            "No fresh draft could be started: RuntimeError: no more threads"
        ]
        monkeypatch.undo()
