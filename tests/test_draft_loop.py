"""Tests of runtime/draft_loop.py: when it reads, and what it takes from a drafter."""

import itertools
from collections.abc import Callable, Sequence
from threading import Event

import numpy as np
import pytest

from runtime.channel import Kind, Message, TokenChannel
from runtime.draft_loop import DraftLoop
from runtime.drafter import Guess, Start
from runtime.hypotheses import Hypothesis
from runtime.sampling import Sampling
from runtime.worker import NO_DRAFT, DraftWorker
from tests.counter import Counter, Ill, Odd, raising
from tests.table import Abreast, TableTarget, wait_until, working

TARGET = TableTarget(vocabulary=100, context=400)
SAY_SO = [Hypothesis(1, 7, "bonus"), Hypothesis(0, 16), Hypothesis(1, 17), Hypothesis(0, None)]


def tokens(worker: DraftWorker, least: int, most: int | None = None) -> list[int]:
    """What the worker proposes."""
    return [guess.token for guess in worker.propose(least, most).guesses]


def test_an_idle_thread_reads_on_but_never_an_unfinished_prompt() -> None:
    gap = object()

    class Script:
        """An inbox that is empty, at each gap, for whoever does not wait."""

        def __init__(self, *script: object) -> None:
            self.script = list(script)

        def receive(self, *, timeout_s: float) -> object:
            item = self.script.pop(0)
            if item is gap:
                return None if timeout_s == 0 else self.receive(timeout_s=timeout_s)
            return item

        @property
        def pending(self) -> bool:
            return False

    drafter = Counter(chunk=2)
    inbox = Script(
        Message(Kind.BEGIN, first=5),
        gap,
        Message(Kind.COMMIT, tokens=(1, 2, 3)),
        gap,
        Message(Kind.COMMIT, tokens=(4, 5)),
        gap,
        Message(Kind.COMMIT, tokens=(6,)),
        *[gap] * 5,
        Message(Kind.STOP),
    )
    loop = DraftLoop(
        lambda: drafter,
        inbox,  # type: ignore[arg-type]
        TokenChannel(slots=1, widest=1),
        context=9,
        vocabulary=9,
    )
    loop.run()
    assert drafter.read == [5, 6, 6]
    assert loop.texts_read == 1


def guess(token: object, runner_ups: object = ()) -> Callable[[], object]:
    """A fault: a guess of whatever."""
    return lambda: Guess(token, runner_ups)  # type: ignore[arg-type]


class EndlessReader(Counter):
    """Never done with a text."""

    def catch_up(self, context: object) -> bool:
        return False


OUTSIDE = "outside the vocabulary of 100."
FAULTS = [
    (raising(ValueError("no kernel")), "The draft failed: ValueError: no kernel"),
    (raising(SystemExit(3)), "The draft failed: SystemExit: 3"),
    (raising(MemoryError()), "The draft failed: MemoryError"),
    (guess(100), f"The draft proposed the token 100, {OUTSIDE}"),
    (guess(-1), f"The draft proposed the token -1, {OUTSIDE}"),
    (guess(2**70), f"The draft proposed the token {2**70}, {OUTSIDE}"),
    (guess(3, (4, 100)), f"The draft proposed the token 100, {OUTSIDE}"),
    (guess(3, (-1,)), f"The draft proposed the token -1, {OUTSIDE}"),
    (guess(3, (4.0,)), "The draft proposed a float where a token was due."),
    (guess(3, 4), "The draft failed: TypeError: "),
    (guess(3.0), "The draft proposed a float where a token was due."),
    (guess(np.ones(2, int)), "The draft proposed a ndarray where a token was due."),
    (guess(None), "The draft proposed a NoneType where a token was due."),
    (lambda: "token", "The draft gave a str where a guess was due."),
    (lambda: 3, "The draft gave a int where a guess was due."),
]


@pytest.mark.parametrize(("fault", "error"), FAULTS)
def test_a_draft_that_raises_or_answers_nonsense_is_dropped(
    fault: Callable[[], object], error: str
) -> None:
    with working(Ill(fault), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == NO_DRAFT
        assert len(worker.errors) == 1
        assert worker.errors[0].startswith(error)


def test_numbers_of_any_whole_kind_are_tokens() -> None:
    with working(Ill(guess(np.uint16(3), (np.int8(4),))), TARGET) as worker:
        worker.begin([5], Sampling())
        [found] = worker.propose(1).guesses
        assert (found, type(found.token)) == (Guess(3, (4,)), int)


def test_nonsense_in_a_look_ahead_drops_the_draft_where_it_is_looked_at() -> None:
    with working(Counter(), TARGET) as worker:
        worker.begin([88], Sampling())
        worker.look_ahead((), [Hypothesis(0, 99)], 2)  # says 100
        wait_until(lambda: not worker.ready())
        assert worker.propose(2) == NO_DRAFT
    assert worker.error == "The draft proposed the token 100, outside the vocabulary of 100."


class OneAfterAnother(Odd):
    """Its every rollout is `given`, whatever it is."""

    def __init__(self, given: object) -> None:
        super().__init__(lambda starts: [lambda: given] * len(starts))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("ab", "The draft gave a str where the guesses of a pass were due."),
        (None, "The draft gave a NoneType where the guesses of a pass were due."),
        (Guess(3), "The draft gave a Guess where the guesses of a pass were due."),
        (iter([Guess(3)]), "The draft gave a list_iterator where the guesses of a pass were due."),
        ([Guess(3), 3], "The draft gave a int where a guess was due."),
        ([Guess(3), Guess(100)], f"The draft proposed the token 100, {OUTSIDE}"),
    ],
)
def test_a_rollout_that_is_none_drops_the_draft(given: object, error: str) -> None:
    with working(OneAfterAnother(given), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == NO_DRAFT
        assert worker.error == error


def rollout() -> list[Guess]:
    """A sound one."""
    return [Guess(3)]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (lambda _starts: None, "The draft gave a NoneType where a list of rollouts was due."),
        (lambda _starts: "ab", "The draft gave a str where a list of rollouts was due."),
        (lambda _starts: rollout, "The draft gave a function where a list of rollouts was due."),
        (lambda _starts: iter([rollout]), "The draft gave a list_iterator where a list of"),
        (lambda _starts: [], "The draft gave 0 rollouts, and 4 were due."),
        (lambda _starts: [rollout] * 3, "The draft gave 3 rollouts, and 4 were due."),
        (lambda _starts: (rollout,) * 5, "The draft gave 5 rollouts, and 4 were due."),
        (lambda _starts: [rollout()] * 4, "The draft failed: TypeError: 'list' object is not"),
        (raising(ValueError("no kernel")), "The draft failed: ValueError: no kernel"),
    ],
)
def test_a_pass_that_is_none_drops_the_draft(
    given: Callable[[Sequence[Start]], object], error: str
) -> None:
    with working(Odd(given), TARGET) as worker:
        worker.begin([5], Sampling())
        worker.look_ahead((6,), SAY_SO, 2)
        worker.commit((16,))
        assert worker.propose(2) == NO_DRAFT
        assert len(worker.errors) == 1
        assert worker.errors[0].startswith(error)


def test_a_pass_of_more_than_is_wanted_is_cut() -> None:
    with working(OneAfterAnother((Guess(3), Guess(4), Guess(100))), TARGET) as worker:
        worker.begin([5], Sampling())
        assert tokens(worker, 2) == [3, 4]
        assert tokens(worker, 1) == [3]
        assert worker.error is None


def test_passes_are_made_until_there_are_enough() -> None:
    for per_pass in range(1, 6):
        drafter = Counter(per_pass=per_pass)
        with working(drafter, TARGET) as worker:
            for least, most in itertools.combinations_with_replacement(range(7), 2):
                worker.begin([5], Sampling())
                drafter.passes.clear()
                found = tokens(worker, least, most)
                passes = -(-least // per_pass)
                assert len(drafter.passes) == passes
                assert found == list(range(6, 6 + min(most, passes * per_pass)))


def test_a_drafter_that_steps_aside_is_asked_no_more() -> None:
    drafter = OneAfterAnother([])
    with working(drafter, TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == NO_DRAFT
        worker.look_ahead((6,), SAY_SO, 2)
        worker.commit((16,))
        assert worker.propose(2) == NO_DRAFT
        assert worker.error is None
        names = [run.name for run in worker.work.runs if run.name != "read"]
    assert names == ["propose", "look ahead", "propose"]


@pytest.mark.parametrize(("per_pass", "passes"), [(1, 3), (2, 2), (3, 1), (9, 1)])
def test_all_rollouts_grow_pass_by_pass_side_by_side(per_pass: int, passes: int) -> None:
    """Two tokens each, one more where a pass gives it, and the one that was left open."""
    drafter = Counter(per_pass=per_pass)
    with working(drafter, TARGET) as worker:
        abreast = Abreast(worker)
        worker.begin([5], Sampling())
        worker.look_ahead((6,), SAY_SO, 2)
        abreast()
    grown = range(0, 3, per_pass)
    assert len(drafter.passes) == passes
    for made, texts in zip(grown, drafter.passes, strict=True):
        named = [[5, 6, 7], [5, 16], [5, 6, 17]] if made < 2 else []
        starts = [*named, [5]]
        assert texts == [[*start, *range(start[-1] + 1, start[-1] + 1 + made)] for start in starts]


def test_a_look_ahead_ends_with_its_round_but_not_before_its_first_pass() -> None:
    drafter = Counter(per_pass=1)
    with working(drafter, TARGET) as worker:
        worker.begin([5], Sampling())
        # The caller's next messages are there before the first pass is over.
        told = Event()
        drafter.before_pass = lambda _texts: told.wait(5)
        worker.look_ahead((6,), SAY_SO, 4)
        worker.commit((6, 17))
        told.set()
        draft = worker.propose(4)
        assert draft.hypothesis == SAY_SO[2]
        assert [guess.token for guess in draft.guesses] == [18, 19, 20, 21]
    # Of the others there is one guess each; that one goes on.
    assert [len(texts) for texts in drafter.passes] == [4, 1, 1, 1]
    assert drafter.passes[1:] == [[[5, 6, 17, *range(18, 18 + made)]] for made in (1, 2, 3)]


def test_a_message_holds_the_guesses_and_as_many_runner_ups_as_fit() -> None:
    with working(OneAfterAnother([Guess(3, (1, 2, 4, 5, 6))] * 400), TARGET) as worker:
        worker.begin([5], Sampling())
        for count, runner_ups in ((40, (1, 2, 4, 5, 6)), (50, (1, 2, 4, 5)), (256, ())):
            assert worker.propose(count).guesses == (Guess(3, runner_ups),) * count
        assert worker.propose(257) == NO_DRAFT
        assert worker.error == "A message of 257 tokens; 256 fit."


@pytest.mark.parametrize(("chain", "passes"), [((), 1), ((1,), 1), ((1, 1), 0)])
def test_a_look_ahead_that_has_no_room_is_none(chain: tuple[int, ...], passes: int) -> None:
    with working(Ill(lambda: Guess(3)), TableTarget(context=4)) as worker:
        abreast = Abreast(worker)
        worker.begin([1, 1, 1], Sampling())
        worker.look_ahead(chain, [Hypothesis(0, 2)], 9)
        abreast()
        worker.commit((2,))
        draft = worker.propose(1)
        assert (draft.hypothesis is None) == (passes == 0)
        assert [guess.token for guess in draft.guesses] == [3]


def test_no_draft_goes_past_the_last_place_of_the_context() -> None:
    with working(Ill(lambda: Guess(3)), TableTarget(context=4)) as worker:
        worker.begin([1, 1, 1], Sampling())
        assert tokens(worker, 9) == [3, 3]
        worker.commit((1, 1))
        assert worker.propose(9) == NO_DRAFT


def test_a_draft_that_never_ends_to_read_is_dropped() -> None:
    with working(EndlessReader(), TARGET) as worker:
        worker.begin([5] * 70, Sampling())
        wait_until(lambda: bool(worker.ready() or worker.errors))
        assert worker.error == "The draft never ends to read a text of 70 tokens."
