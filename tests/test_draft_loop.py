"""Tests of runtime/draft_loop.py: when it reads, and what it takes from a drafter."""

from collections.abc import Callable

import numpy as np
import pytest

from runtime.channel import Kind, Message, TokenChannel
from runtime.draft_loop import DraftLoop
from runtime.drafter import Guess
from runtime.sampling import Sampling
from runtime.verify import Outcome, Proposal
from tests.counter import Counter, Ill, raising
from tests.table import TableTarget, wait_until, working

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
