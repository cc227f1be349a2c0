"""Tests of runtime/draft_loop.py: when it reads, and what it takes from a drafter."""

from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import numpy as np
import pytest

from runtime.channel import Kind, Message, TokenChannel
from runtime.draft_loop import DraftLoop
from runtime.drafter import Guess
from runtime.sampling import Sampling
from runtime.verify import Outcome, Proposal
from tests.counter import Counter, Ill, Tokens, raising
from tests.table import Abreast, TableTarget, wait_until, working

TARGET = TableTarget(vocabulary=100, context=400)
CHAIN = Proposal.chain


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
        Message(Kind.BEGIN, node=5),
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
        assert worker.propose(2) == CHAIN(())
        assert len(worker.errors) == 1
        assert worker.errors[0].startswith(error)


def test_numbers_of_any_whole_kind_are_tokens() -> None:
    with working(Ill(guess(np.uint16(3), (np.int8(4),))), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == CHAIN((3, 3))
        assert worker.error is None


def test_nonsense_in_a_rollout_is_dropped_too() -> None:
    with working(Counter(), TARGET) as worker:
        worker.begin([87], Sampling())
        worker.look_ahead(worker.propose(1), 2)  # 88, then 89, and 90 with the runner-up 100
        wait_until(lambda: not worker.ready())
        assert worker.rollout(Outcome(0, 89)) is None
    assert worker.error == "The draft proposed the token 100, outside the vocabulary of 100."


def test_more_guesses_than_were_asked_for_are_not_taken() -> None:
    with working(Ill(lambda: Guess(3)), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == CHAIN((3, 3))
    assert worker.error is None


class Passes(Counter):
    """Gives the same pass again and again, whatever it is."""

    def __init__(self, given: object) -> None:
        super().__init__()
        self._given = given

    def draft(self, context: object, count: int, sampling: Sampling) -> Iterator[Any]:
        while True:
            yield self._given


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], "The draft gave no guess in a pass."),
        ((), "The draft gave no guess in a pass."),
        ("ab", "The draft gave a str where the guesses of a pass were due."),
        (Guess(3), "The draft gave a Guess where the guesses of a pass were due."),
        (iter([Guess(3)]), "The draft gave a list_iterator where the guesses of a pass were due."),
        ([Guess(3), 3], "The draft gave a int where a guess was due."),
        ([Guess(3), Guess(100)], f"The draft proposed the token 100, {OUTSIDE}"),
    ],
)
def test_a_pass_that_is_none_drops_the_draft(given: object, error: str) -> None:
    with working(Passes(given), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == CHAIN(())
        assert worker.error == error


def test_a_pass_of_more_than_is_wanted_is_cut() -> None:
    with working(Passes((Guess(3), Guess(4), Guess(100))), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(2) == CHAIN((3, 4))
        assert worker.error is None


@pytest.mark.parametrize(
    ("per_pass", "passes"), [(1, [2, 3, 2, 2]), (2, [1, 2, 1, 1]), (3, [1] * 4), (9, [1] * 4)]
)
def test_passes_of_several_tokens(per_pass: int, passes: list[int]) -> None:
    """A proposal of two tokens, then the look-ahead's rollouts, of two tokens too."""
    drafter = Counter(per_pass=per_pass)
    made: dict[int, int] = {}

    def count(_text: object) -> None:
        made[len(drafter.texts)] = made.get(len(drafter.texts), 0) + 1

    drafter.before_pass = count
    with working(drafter, TARGET) as worker:
        abreast = Abreast(worker)
        worker.begin([5], Sampling())
        abreast()
        read = worker.work.passes
        worker.look_ahead(worker.propose(2), 2)
        abreast()
        assert worker.rollout(Outcome(1, 8)) == CHAIN((9, 10))
        assert worker.rollout(Outcome(-1, 16)) == CHAIN((17, 18))
        assert worker.rollout(Outcome(0, 17)) == CHAIN((18, 19))
        assert worker.work.passes - read == sum(passes)
    assert list(made.values()) == passes


def test_what_a_pass_adds_to_a_rollout_is_published_at_once() -> None:
    drafter, held, may = Counter(per_pass=2), Event(), Event()

    def hold(text: Tokens) -> None:
        if text.tolist() == [5, 6, 7, 8, 9]:
            held.set()
            assert may.wait(5)

    drafter.before_pass = hold
    with working(drafter, TARGET, hang=may) as worker:
        worker.begin([5], Sampling())
        worker.look_ahead(worker.propose(2), 4)
        assert held.wait(5)
        assert worker.rollout(Outcome(1, 8)) == CHAIN((9,))
        may.set()
        wait_until(lambda: worker.rollout(Outcome(1, 8)) == CHAIN((9, 10, 11, 12)))


def test_more_tokens_than_a_message_holds_are_an_error_and_no_endless_wait() -> None:
    with working(Ill(lambda: Guess(3)), TARGET) as worker:
        worker.begin([5], Sampling())
        assert worker.propose(65) == CHAIN(())
        assert worker.error == "A message of 65 tokens; 64 fit."


def test_no_draft_goes_past_the_last_place_of_the_context() -> None:
    with working(Ill(lambda: Guess(3)), TableTarget(context=4)) as worker:
        worker.begin([1, 1, 1], Sampling())
        assert worker.propose(9) == CHAIN((3, 3))
        worker.commit((1, 1))
        assert worker.propose(9) == CHAIN(())


def test_a_draft_that_never_ends_to_read_is_dropped() -> None:
    with working(EndlessReader(), TARGET) as worker:
        worker.begin([5] * 70, Sampling())
        wait_until(lambda: bool(worker.ready() or worker.errors))
        assert worker.error == "The draft never ends to read a text of 70 tokens."
