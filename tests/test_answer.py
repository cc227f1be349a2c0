"""Tests of runtime/answer.py: text, tokens and metrics agree however an answer ends."""

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from runtime.answer import Answer, Blocks, StreamedAnswer
from runtime.engine import decode
from runtime.errors import ContextError
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive, Speculative, Strategy
from runtime.stream import TextStream
from runtime.worker import DraftWorker
from tests.small_text import small_text
from tests.table import (
    TableDrafter,
    TableTarget,
    add_up,
    mirror,
    new_metrics,
    right,
    speaking,
    working,
)

TEXT = small_text()
END = TEXT.encode("\n")[0]
PROMPT = TEXT.encode("hi")


def saying(script: str, *, context: int = 64) -> TableTarget:
    """A target that says `script` and then the end token."""
    tokens = [*TEXT.encode(script), END]
    return speaking(tokens, vocabulary=268, prompt_length=len(PROMPT), context=context)


def answering(
    target: TableTarget,
    strategy: Strategy,
    *,
    stops: Sequence[str] = (),
    prompt: Sequence[int] = PROMPT,
    max_new_tokens: int = 100,
) -> StreamedAnswer:
    """An answer of the real engine, with a stream of the small tokenizer."""
    metrics = new_metrics(strategy.name)

    def run(cancelled: Callable[[], bool]) -> Blocks:
        return decode(
            target,
            strategy,
            np.array(prompt, np.int64),
            Sampling(),
            max_new_tokens=max_new_tokens,
            end_tokens=frozenset({END}),
            metrics=metrics,
            cancelled=cancelled,
        )

    return StreamedAnswer(run, TextStream(TEXT, stops), metrics)


@pytest.fixture(params=["autoregressive", "speculative-3", "speculative-8", "mirror-3", "mirror-8"])
def strategy_for(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[TableTarget], Strategy]]:
    """A way to make one of five strategies, the drafts always right."""
    kind, _, width = request.param.partition("-")
    opened: list[DraftWorker] = []

    def make(target: TableTarget) -> Strategy:
        if kind == "autoregressive":
            return Autoregressive()
        worker = DraftWorker(
            lambda: TableDrafter(target, right),
            context=target.context,
            vocabulary=target.vocabulary,
        )
        opened.append(worker)
        chosen: Callable[..., Strategy] = mirror if kind == "mirror" else Speculative
        return chosen(worker, num_draft_tokens=int(width))

    yield make
    assert all(worker.close() for worker in opened)


StrategyFor = Callable[[TableTarget], Strategy]


@pytest.mark.parametrize(
    ("stops", "text", "kept", "reason"),
    [
        ((), "one the two STOP", "one the two STOP", "eos"),
        (("STOP",), "one the two ", "one the two ", "stop_string"),
        (("TO", "ST"), "one the two ", "one the two ", "stop_string"),
        ((" two",), "one the", "one the", "stop_string"),
        ((" t",), "one", "one", "stop_string"),
        (("the",), "one ", "one", "stop_string"),  # it begins inside the token " the"
        (("e t",), "on", "on", "stop_string"),
        (("o",), "", "", "stop_string"),
        (("wow", "two!", "STOPS"), "one the two STOP", "one the two STOP", "eos"),
    ],
)
def test_a_stop_string_ends_text_tokens_and_counts_in_every_strategy(
    strategy_for: StrategyFor, stops: tuple[str, ...], text: str, kept: str, reason: str
) -> None:
    target = saying("one the two STOP")
    answer = answering(target, strategy_for(target), stops=stops)
    pieces = list(answer)
    assert "".join(pieces) == answer.text == text
    assert all(pieces)
    assert TEXT.decode(answer.tokens) == kept
    assert answer.finish_reason == reason
    assert answer.metrics.emitted_tokens == len(answer.tokens)
    add_up(answer.metrics)


@pytest.mark.parametrize("budget", range(1, 14))
def test_a_budget_that_ends_with_a_stop_string_or_before_it(
    strategy_for: StrategyFor, budget: int
) -> None:
    script = "one two STOP now"
    tokens = TEXT.encode(script)
    stop_ends = next(n for n in range(20) if "STOP" in TEXT.decode(tokens[:n]))
    target = saying(script)
    answer = answering(target, strategy_for(target), stops=["STOP"], max_new_tokens=budget)
    text = "".join(answer)
    if budget < stop_ends:
        assert text == TEXT.decode(tokens[:budget])
        assert (answer.tokens, answer.finish_reason) == (tokens[:budget], "max_new_tokens")
    else:
        assert (text, answer.finish_reason) == ("one two ", "stop_string")
    assert answer.metrics.emitted_tokens == len(answer.tokens)
    add_up(answer.metrics)


def test_a_character_split_over_tokens_and_blocks_comes_whole(strategy_for: StrategyFor) -> None:
    target = saying("a😀สวัสดี\ufffd!")
    answer = answering(target, strategy_for(target))
    assert sum(piece.count("\ufffd") for piece in answer) == 1  # the one that is in the text
    assert answer.text == "a😀สวัสดี\ufffd!"
    assert answer.tokens == TEXT.encode(answer.text)


def test_no_budget_is_an_answer_without_text(strategy_for: StrategyFor) -> None:
    target = saying("one")
    answer = answering(target, strategy_for(target), max_new_tokens=0)
    assert list(answer) == []
    assert (answer.text, answer.tokens, answer.finish_reason) == ("", [], "max_new_tokens")
    assert target.proposals == []


def test_before_and_while_it_is_written() -> None:
    target = saying("abc")
    answer = answering(target, Autoregressive())
    assert (answer.text, answer.tokens, answer.finish_reason) == ("", [], None)
    assert target.proposals == []  # nothing runs before it is iterated
    assert next(answer) == "a"
    assert (answer.text, answer.tokens, answer.finish_reason) == ("a", TEXT.encode("a"), None)
    assert list(answer) == ["b", "c"]
    assert answer.finish_reason == "eos"
    assert list(answer) == []


def test_the_clock_starts_when_the_answer_is_asked_for() -> None:
    target = saying("abc")
    answer = answering(target, Autoregressive())
    made = answer.metrics.started
    next(answer)
    assert answer.metrics.started > made


# Stopping early.


def test_cancel_stops_before_the_next_step_and_keeps_what_came(strategy_for: StrategyFor) -> None:
    target = saying("one two three four")
    answer = answering(target, strategy_for(target))
    pieces = [next(answer), next(answer)]
    runs = len(target.proposals)
    canceller = threading.Thread(target=answer.cancel)
    canceller.start()
    canceller.join()
    pieces += answer
    assert len(target.proposals) == runs
    assert answer.finish_reason == "cancelled"
    assert "".join(pieces) == answer.text == TEXT.decode(answer.tokens)
    assert "one two three four".startswith(answer.text)
    add_up(answer.metrics)


def test_cancel_during_a_step_lets_that_step_be_the_last(strategy_for: StrategyFor) -> None:
    target = saying("one two three four five six seven eight")
    answer = answering(target, strategy_for(target))

    def cancel_in_the_third_run() -> None:
        if len(target.proposals) == 3:
            canceller = threading.Thread(target=answer.cancel)
            canceller.start()
            canceller.join()

    target.meanwhile = cancel_in_the_third_run
    assert "".join(answer) == TEXT.decode(answer.tokens)
    assert len(target.proposals) == 3
    assert answer.finish_reason == "cancelled"
    # The step's own tokens are kept.
    assert len(answer.tokens) == 1 + sum(len(proposal) + 1 for proposal in target.proposals[1:])


def test_cancel_before_anything_ran() -> None:
    target = saying("one")
    answer = answering(target, Autoregressive())
    answer.cancel()
    assert list(answer) == []
    assert answer.finish_reason == "cancelled"
    assert target.proposals == []
    add_up(answer.metrics)


def test_what_was_held_back_for_a_stop_string_is_shown_after_a_cancel() -> None:
    target = saying("abSTab")
    answer = answering(target, Autoregressive(), stops=["STOP"])
    pieces = [next(answer), next(answer)]
    target.meanwhile = answer.cancel
    pieces += answer
    # The token "ST" came and could have been the start of the stop string.
    assert pieces == ["a", "b", "ST"]
    assert answer.tokens == TEXT.encode("abST")


def test_cancel_after_the_end_changes_nothing() -> None:
    target = saying("ab")
    answer = answering(target, Autoregressive())
    assert list(answer) == ["a", "b"]
    answer.cancel()
    answer.close()
    assert answer.finish_reason == "eos"
    assert answer.text == "ab"


class Spy:
    """Blocks of tokens whose end is noticed."""

    def __init__(self, *blocks: tuple[int, ...] | BaseException) -> None:
        self.blocks = blocks
        self.ends = 0

    def run(self, cancelled: Callable[[], bool]) -> Blocks:
        del cancelled
        try:
            for block in self.blocks:
                if isinstance(block, BaseException):
                    raise block
                yield block
        finally:
            self.ends += 1


def spied(*blocks: tuple[int, ...] | BaseException) -> tuple[Spy, StreamedAnswer]:
    spy = Spy(*blocks)
    return spy, StreamedAnswer(spy.run, TextStream(TEXT), new_metrics())


A, B = TEXT.encode("ab")


def test_close_ends_the_blocks_and_keeps_what_came() -> None:
    spy, answer = spied((A,), (B,))
    assert next(answer) == "a"
    assert spy.ends == 0
    answer.close()
    assert spy.ends == 1
    assert (answer.text, answer.tokens, answer.finish_reason) == ("a", [A], "cancelled")
    assert list(answer) == []
    answer.close()
    assert answer.finish_reason == "cancelled"


def test_close_before_the_first_piece() -> None:
    _, answer = spied((A,))
    answer.close()
    assert answer.finish_reason == "cancelled"
    assert list(answer) == []
    assert answer.tokens == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyboardInterrupt(), "cancelled"),
        (ValueError("bad graph"), "failed"),
        (MemoryError(), "failed"),
    ],
)
def test_what_is_raised_reaches_the_reader_and_the_text_stays(
    error: BaseException, reason: str
) -> None:
    spy, answer = spied((A,), (B,), error)
    pieces = [next(answer), next(answer)]
    with pytest.raises(type(error)) as caught:
        next(answer)
    assert caught.value is error
    assert spy.ends == 1
    assert (answer.text, answer.tokens, answer.finish_reason) == ("ab", [A, B], reason)
    assert pieces == ["a", "b"]
    assert list(answer) == []


def test_an_interrupted_run_of_the_target_leaves_model_and_draft_usable() -> None:
    target = saying("one two three four")
    with working(TableDrafter(target, right), target) as worker:
        strategy = mirror(worker, num_draft_tokens=3)
        answer = answering(target, strategy)
        first = next(answer)

        def interrupt() -> None:
            target.meanwhile = lambda: None
            raise KeyboardInterrupt

        target.meanwhile = interrupt
        with pytest.raises(KeyboardInterrupt):
            next(answer)
        assert (answer.text, answer.finish_reason) == (first, "cancelled")
        assert "".join(answering(target, strategy)) == "one two three four"
        assert worker.error is None


def test_a_prompt_that_does_not_fit_fails_when_iterated() -> None:
    target = saying("one", context=4)
    answer = answering(target, Autoregressive(), prompt=[A] * 5)
    with pytest.raises(ContextError, match="5 tokens and the context holds 4"):
        next(answer)
    assert answer.finish_reason == "failed"


def test_an_answer_that_is_pushed_from_outside() -> None:
    metrics = new_metrics()
    answer = Answer(TextStream(TEXT, ["STOP"]), metrics)
    tokens = TEXT.encode("abSTOPab")
    pieces = []
    for place in range(0, len(tokens), 3):
        block = tuple(tokens[place : place + 3])
        metrics.committed(len(block), len(block))
        pieces.append(answer.push(block))
        if answer.finish_reason:
            break
    assert pieces == ["ab"]
    assert (answer.text, answer.tokens, answer.finish_reason) == ("ab", [A, B], "stop_string")
    assert answer.finish() == ""
    assert (metrics.emitted_tokens, metrics.tokens_discarded) == (2, 1)
