"""Tests of runtime/committed.py: what is kept of a block, the room left, why a text ends."""

from collections.abc import Sequence

import numpy as np
import pytest

from runtime.committed import Committed
from runtime.errors import ContextError, UsageError
from tests.table import new_metrics

END = 9


def begin(prompt: Sequence[int] = (1, 2), *, context: int = 8, budget: int = 100) -> Committed:
    return Committed(
        np.array(prompt, np.int64), context, budget, frozenset({END, END + 1}), new_metrics()
    )


def state(text: Committed) -> tuple[list[int], int, str | None]:
    """The tokens, the room for a proposal, and why the text ended."""
    return text.followed_by(()).tolist(), text.room, text._metrics.finish_reason


@pytest.mark.parametrize(
    ("budget", "blocks", "expected"),
    [
        (100, [], ([1, 2], 6, None)),
        (100, [(3,)], ([1, 2, 3], 5, None)),
        (100, [(3, 4), (5,)], ([1, 2, 3, 4, 5], 3, None)),
        # The last token may stand past the context, since it is never fed.
        (100, [(3, 4, 5, 6, 7, 8)], ([1, 2, 3, 4, 5, 6, 7, 8], 0, None)),
        (100, [(3, 4, 5, 6, 7, 8, 3)], ([1, 2, 3, 4, 5, 6, 7, 8, 3], -1, "context_full")),
        (0, [], ([1, 2], -1, "max_new_tokens")),
        (1, [], ([1, 2], 0, None)),
        (1, [(3,)], ([1, 2, 3], -1, "max_new_tokens")),
        (3, [(3,)], ([1, 2, 3], 1, None)),
        (3, [(3,), (4, 5)], ([1, 2, 3, 4, 5], -1, "max_new_tokens")),
        (7, [(3, 4, 5, 6, 7, 8, 3)], ([1, 2, 3, 4, 5, 6, 7, 8, 3], -1, "max_new_tokens")),
        (100, [(END,)], ([1, 2], 6, "eos")),
        (100, [(END + 1,)], ([1, 2], 6, "eos")),
        (100, [(3, END, 4)], ([1, 2, 3], 5, "eos")),
        (100, [(3, END, END, 4)], ([1, 2, 3], 5, "eos")),
        (3, [(3, 4, END)], ([1, 2, 3, 4], 0, "eos")),
        (100, [(3, 4, 5, 6, 7, 8, END)], ([1, 2, 3, 4, 5, 6, 7, 8], 0, "eos")),
    ],
)
def test_blocks(
    budget: int, blocks: list[tuple[int, ...]], expected: tuple[list[int], int, str | None]
) -> None:
    text = begin(budget=budget)
    for block in blocks:
        assert not text.finished
        text.commit(block)
    assert state(text) == expected
    assert text.length == len(expected[0])
    assert text.free == 8 - text.length
    finished = text.finished
    assert finished == (expected[2] is not None)


def test_every_block_that_fits_the_room_fits_the_text() -> None:
    for context in range(1, 7):
        for length in range(1, context + 1):
            for budget in range(1, 8):
                text = begin([1] * length, context=context, budget=budget)
                while not text.finished:
                    proposal = (3,) * text.room
                    assert len(text.followed_by(proposal)) <= context
                    assert text.commit((*proposal, 4)) == (*proposal, 4)
                total = text._metrics.emitted_tokens
                assert total == min(budget, context + 1 - length)
                # Where both limits meet, the budget is named.
                reason = "max_new_tokens" if total == budget else "context_full"
                assert text._metrics.finish_reason == reason


def test_what_is_kept_and_what_is_discarded_is_counted() -> None:
    text = begin()
    assert text.commit((3, 4)) == (3, 4)
    assert text.commit((5, END, 6)) == (5,)
    assert text._metrics.emitted_tokens == 3
    assert text._metrics.tokens_discarded == 2


def test_an_end_token_in_the_prompt_ends_nothing() -> None:
    assert not begin([END, 1, END]).finished


def test_followed_by_commits_nothing() -> None:
    text = begin()
    assert text.followed_by((5, 6)).tolist() == [1, 2, 5, 6]
    assert text.followed_by((7,)).tolist() == [1, 2, 7]
    assert text.followed_by(()).tolist() == [1, 2]


@pytest.mark.parametrize("budget", [0, 5])
def test_a_prompt_that_cannot_be_continued_is_refused(budget: int) -> None:
    with pytest.raises(ContextError, match="prompt is empty"):
        begin([], budget=budget)
    with pytest.raises(ContextError, match="has 9 tokens and the context holds 8"):
        begin([1] * 9, budget=budget)
    assert issubclass(ContextError, UsageError)
    begin([1] * 8, budget=budget)
