"""Tests of drafts that fail: a fresh one takes over, and the text never shows it."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import onnxruntime as ort
import pytest

from runtime import Answer, Sampling, Session, draft_model, open_session
from runtime import worker as module
from runtime.drafter import Drafter
from runtime.errors import DraftError, UsageError
from runtime.hypotheses import Hypothesis
from runtime.strategy import Autoregressive, Mirror, Speculative
from runtime.worker import NO_DRAFT, DraftWorker
from tests.counter import Counter, Ill, raising
from tests.faulty import FAULTS, Faults, FaultyDrafter
from tests.table import Faulty, TableTarget, current, wait_until, working, write

TARGET = TableTarget(vocabulary=100, context=400)
GONE = "The draft failed: ValueError: gone"


def proposed(worker: DraftWorker, count: int) -> list[int]:
    """The tokens that the worker proposes."""
    return [guess.token for guess in worker.propose(count).guesses]


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
        assert worker.propose(2) == NO_DRAFT
        assert drafts.made == 1
        worker.commit((6, 40))  # the round is over: the fresh draft starts
        wait_until(lambda: drafts.made == 2)
        tell_when_loaded(worker, 41)
        assert proposed(worker, 2) == [42, 43]
        assert worker.errors == [GONE]  # of this text
        worker.begin([7], Sampling())
        assert worker.errors == []
        assert proposed(worker, 1) == [8]
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
        assert proposed(worker, 1) == [8]
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


def test_a_pass_that_hangs_keeps_no_long_text_waiting() -> None:
    """A look-ahead of the text before never ends, and the draft is waited for to read."""
    hang = Event()
    with working(Ill(lambda: hang.wait(10)), TARGET, time_limit_s=0.05, hang=hang) as worker:
        worker.begin([5], Sampling())
        worker.look_ahead([6], [Hypothesis(1, 7)], 1)
        worker.begin(range(80), Sampling())
        wait_until(lambda: not worker.ready() and bool(worker.errors))
        assert not worker.wait_read()
        assert worker.errors == ["The draft read no further for 0.05 s."]


# Ten thousand rounds.

ROUNDS = 10_000
LIMIT_S = 0.005
TEXTS = 24


class Successors:
    """Makes faulty drafts and counts them, and what a worker drops that it watches."""

    def __init__(self, session: Callable[[], Any], faults: Faults, *, vocabulary: int) -> None:
        self.made = self.dropped = 0
        self._session, self._faults, self._vocabulary = session, faults, vocabulary

    def __call__(self) -> Drafter:
        self.made += 1
        return FaultyDrafter(self._session(), self._faults, vocabulary=self._vocabulary)

    def watch(self, worker: DraftWorker) -> None:
        failed = worker._failed

        def note(error: str) -> None:
            self.dropped += 1
            failed(error)

        worker._failed = note  # type: ignore[method-assign]


KINDS: dict[str, Callable[..., Speculative]] = {
    "speculative": Speculative,
    "mirror": partial(Mirror, num_hypotheses=4),
    "mirror, bare after a miss": partial(
        Mirror, num_hypotheses=4, sources=("bonus", "masks"), redraft=False
    ),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_never_shows_what_happens_to_the_drafts(
    kind: str,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0)
    threads = threading.active_count()
    faults = Faults(share=0.02, limit_s=LIMIT_S)
    target, draft = (TableTarget(vocabulary=16, seed=seed) for seed in (0, 1))
    draft.table = draft.table + 2 * target.table
    target.meanwhile = partial(time.sleep, 0)  # let the draft's thread go on
    drafts = Successors(lambda: draft, faults, vocabulary=16)
    with working(drafts, target, time_limit_s=LIMIT_S) as worker, closing(faults):
        drafts.watch(worker)
        strategy = KINDS[kind](worker, num_draft_tokens=4)
        write_faultily(target, strategy, temperature, faults, 100)  # fills what stays filled
        before = held(worker, faults)
        write_faultily(target, strategy, temperature, faults, ROUNDS // 4)
        after = held(worker, faults)
        # A fresh draft took over after each drop.
        wait_until(lambda: drafts.made == 1 + drafts.dropped)
    # A thread that another test left may have ended meanwhile.
    assert threading.active_count() <= threads
    assert after[0] <= before[0]
    assert after[1] - before[1] < 2_000  # a draft takes 54, and more than a hundred were dropped
    faults.met["drafts"] = drafts.made
    assert drafts.made > 100
    assert faults.met["tokens proposed"] > faults.met["rounds"] / 2
    assert all(faults.met[fault] for fault in FAULTS)
    record_testsuite_property(f"draft faults, {kind}, temperature {temperature}", dict(faults.met))


def held(worker: DraftWorker, faults: Faults) -> tuple[int, int]:
    """How many threads there are when no draft is left, and how much memory; then starts a draft.

    The draft at work is dropped: whether its thread still runs, or has failed and nobody asked yet,
    is chance. Memory in blocks of Python's allocator, which holds all objects, those of arrays too.
    """

    def ended() -> bool:
        faults.release()  # again and again: a pass under way may yet come to hang
        return worker._drafts.running() == 0

    worker._drop(DraftError("It was dropped."))
    wait_until(ended)
    gc.collect()
    found = threading.active_count(), sys.getallocatedblocks()
    worker.begin((0,), Sampling())
    current(worker)
    return found


def write_faultily(
    target: TableTarget, strategy: Speculative, temperature: float, faults: Faults, least: int
) -> None:
    """Compare texts of `least` rounds or more with plain decoding's; they count in `faults`."""
    alone = TableTarget(vocabulary=16)
    last = faults.met["rounds"] + least
    while (done := faults.met["rounds"]) < last:
        sampling, prompt = Sampling(temperature=temperature, seed=done), (done % 16,)
        expected = write(alone, Autoregressive(), prompt, sampling, max_new_tokens=60)
        found = write(target, strategy, prompt, sampling, max_new_tokens=60)
        assert found.tokens == expected.tokens
        faults.met["rounds"] += found.metrics.rounds
        faults.met["tokens proposed"] += found.metrics.draft_tokens_proposed
        target.proposals.clear()
        faults.release()


def sessions() -> int:
    """How many sessions of onnxruntime there are."""
    gc.collect()
    return sum(issubclass(type(each), ort.InferenceSession) for each in gc.get_objects())


@pytest.mark.parametrize("strategy", ["speculative", "mirror"])
def test_real_graphs_fail_and_are_replaced(
    strategy: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0)
    faults = Faults(share=0.06, limit_s=0.1)
    threads, loaded, made = threading.active_count(), sessions(), 0

    def make(session: Any, *, vocabulary: int, **_rest: Any) -> Drafter:
        nonlocal made
        made += 1
        return FaultyDrafter(session, faults, vocabulary=vocabulary)

    monkeypatch.setattr(draft_model, "ModelDrafter", make)
    settings: Any = {"cache_dir": tmp_path, "threads": 1, "draft_time_limit_s": 0.1}
    with open_session(tiny_bundle, draft="none", **settings) as session:
        expected = [answered(session, number) for number in range(TEXTS)]
    errors, rounds = 0, 0
    with closing(faults), open_session(tiny_bundle, strategy=strategy, **settings) as session:
        for number, alone in enumerate(expected):
            answer = answered(session, number)
            assert answer.tokens == alone.tokens
            errors += answer.metrics.draft_error is not None
            rounds += answer.metrics.rounds
            faults.release()
        wait_until(partial(none_left_behind, session))
        assert sessions() - loaded <= 2  # the target and a draft
    del session
    assert rounds > 300
    assert made > 8
    assert errors > 4
    assert threading.active_count() <= threads
    assert sessions() == loaded


def none_left_behind(session: Session) -> bool:
    """Whether none of the drafts that the session dropped still runs."""
    assert session._models.worker is not None
    return session._models.worker._drafts.running() == 0


def answered(session: Session, number: int) -> Answer:
    """The answer of that number, whole."""
    sampling = Sampling(temperature=number % 2, seed=number)
    answer = session.generate("the heron", sampling, max_new_tokens=60)
    list(answer)
    return answer


def test_a_session_whose_draft_is_stuck_can_be_closed_and_more_than_once(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.01)
    stuck, hang = Event(), Event()
    refused: list[str] = []

    def wait() -> None:
        stuck.set()
        hang.wait(60)

    def close_meanwhile() -> None:
        assert stuck.wait(5)
        try:
            session.close()
        except UsageError as error:
            refused.append(str(error))

    monkeypatch.setattr(draft_model, "ModelDrafter", lambda _session, **_rest: Ill(wait))
    settings: Any = {"cache_dir": tmp_path, "threads": 1, "draft_time_limit_s": 0.1}
    session = open_session(tiny_bundle, strategy="speculative", **settings)
    other = Thread(target=close_meanwhile)
    other.start()
    answer = answered(session, 1)
    other.join()
    assert "Another thread still reads" in refused[0]
    assert str(answer.metrics.draft_error).startswith("The draft gave no answer within 0.1 s.")
    closed: list[bool] = []
    other = Thread(target=lambda: closed.append(session.close()))
    other.start()
    other.join()
    assert closed == [False]
    assert not session.close()
    hang.set()
    wait_until(session.close)
