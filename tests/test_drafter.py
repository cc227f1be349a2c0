"""Tests of runtime/drafter.py: what is guessed after hand-made texts, and how far."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.drafter import Guess, LookupDrafter, ModelDrafter
from runtime.errors import MirrorError
from runtime.fused import FusedSession
from runtime.sampling import Sampling, choose, rank
from tests.table import TableTarget

Tokens = NDArray[np.int64]


def looked_up(text: str, count: int, *, longest: int = 3, runner_ups: int = 3) -> list[str]:
    """What is guessed after a text of letters: of each guess the token, then the runner-ups."""
    drafter = LookupDrafter(longest=longest, runner_ups=runner_ups)
    context = np.array([ord(letter) for letter in text], np.int64)
    assert drafter.catch_up(context)
    guesses = drafter.draft(context, count, Sampling())
    return ["".join(map(chr, (guess.token, *guess.runner_ups))) for guess in guesses]


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("", 4, []),
        ("a", 4, []),
        ("abcd", 4, []),
        ("aa", 4, ["a", "a", "a", "a"]),
        ("abcab", 4, ["c", "a", "b", "c"]),  # round and round
        ("abcab", 2, ["c", "a"]),
        ("abcab", 1, ["c"]),
        ("abcab", 0, []),
        ("abxabyab", 4, ["yx", "a", "b", "y"]),  # the latest place, then the other
        ("abxabxabyab", 4, ["yx", "a", "b", "y"]),
        ("xabc-yabd-xab", 2, ["c", "-"]),  # three tokens that match outweigh two that are nearer
        ("xabc-zabd-yab", 2, ["dc", "-"]),  # no three match: the latest of two
        ("ab-cb", 2, ["-", "c"]),  # only one token matches
        ("abacadaeaf-a", 1, ["fedc"]),  # at most three runner-ups, the latest first
    ],
)
def test_lookup(text: str, count: int, expected: list[str]) -> None:
    assert looked_up(text, count) == expected


def test_lookup_heeds_its_settings() -> None:
    assert looked_up("xabc-yabd-xab", 2, longest=2) == ["dc", "-"]
    assert looked_up("abacadaeaf-a", 1, runner_ups=1) == ["fe"]
    assert looked_up("abacadaeaf-a", 1, runner_ups=0) == ["f"]


class TableSession:
    """What a drafter sees of FusedSession, on a table."""

    def __init__(self, target: TableTarget, context: int) -> None:
        self.target = target
        self.context = context
        self.vocabulary = target.vocabulary
        self.chunks = 0

    def prefill(self, tokens: Tokens) -> bool:
        self.chunks += 1
        return self.chunks * 2 >= len(tokens)

    def extend(self, tokens: Tokens) -> NDArray[np.float32]:
        assert len(tokens) <= self.context
        return self.target.extend(tokens)


def model_drafter(
    session: TableSession, *, vocabulary: int = 4, runner_ups: int = 1
) -> ModelDrafter:
    return ModelDrafter(cast("FusedSession", session), vocabulary=vocabulary, runner_ups=runner_ups)


def after(context: Sequence[int], target: TableTarget, sampling: Sampling, count: int) -> list[int]:
    """What the target itself would say."""
    text = np.array(context, np.int64)
    for _ in range(count):
        text = np.append(text, choose(target.row(text), text, sampling))
    return [int(token) for token in text[len(context) :]]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_the_same_model_drafts_what_the_target_says_noise_and_penalty_included(
    temperature: float,
) -> None:
    target = TableTarget()
    for seed in range(20):
        sampling = Sampling(temperature=temperature, repetition_penalty=1.5, seed=seed)
        context = np.array([3, 1], np.int64)
        drafter = model_drafter(TableSession(target, 64), runner_ups=2)
        guesses = list(drafter.draft(context, 5, sampling))
        assert [guess.token for guess in guesses] == after([3, 1], target, sampling, 5)
        for guess in guesses:
            expected = rank(target.row(context), context, sampling, 3)
            assert [guess.token, *guess.runner_ups] == expected
            context = np.append(context, guess.token)


@pytest.mark.parametrize(
    ("length", "count", "expected"), [(3, 4, 4), (7, 4, 2), (8, 4, 1), (9, 4, 0), (12, 4, 0)]
)
def test_a_draft_with_a_shorter_context_steps_aside_when_it_is_full(
    length: int, count: int, expected: int
) -> None:
    drafter = model_drafter(TableSession(TableTarget(), context=8))
    context = np.zeros(length, np.int64)
    assert len(list(drafter.draft(context, count, Sampling()))) == expected


def test_a_text_is_read_in_chunks_and_one_that_does_not_fit_not_at_all() -> None:
    session = TableSession(TableTarget(), context=8)
    drafter = model_drafter(session)
    text = np.zeros(6, np.int64)
    assert [drafter.catch_up(text) for _ in range(3)] == [False, False, True]
    assert drafter.catch_up(np.zeros(9, np.int64))
    assert session.chunks == 3


def test_padding_ids_of_the_draft_are_never_guessed() -> None:
    table = np.zeros((1, 6, 6), np.float32)
    table[..., 4:] = 50
    table[..., 2] = 1
    drafter = model_drafter(TableSession(TableTarget(table=table), context=8), runner_ups=5)
    guesses = list(drafter.draft(np.zeros(2, np.int64), 3, Sampling()))
    assert guesses == [Guess(2, (0, 1, 3))] * 3


class OddSession(TableSession):
    """Gives whatever logits it was told to."""

    def __init__(self, logits: NDArray[Any]) -> None:
        super().__init__(TableTarget(), context=8)
        self._odd = logits

    def extend(self, tokens: Tokens) -> NDArray[Any]:
        return self._odd


@pytest.mark.parametrize(
    ("logits", "error"),
    [
        (np.zeros((1, 3), np.float32), r"shape \(1, 3\) in float32; \(1, 4\) in float32 was due"),
        (np.zeros((1, 5), np.float32), r"shape \(1, 5\)"),
        (np.zeros((2, 4), np.float32), r"shape \(2, 4\)"),
        (np.zeros((0, 4), np.float32), r"shape \(0, 4\)"),
        (np.zeros((1, 0), np.float32), r"shape \(1, 0\)"),
        (np.zeros(4, np.float32), r"shape \(4,\)"),
        (np.zeros((1, 1, 4), np.float32), r"shape \(1, 1, 4\)"),
        (np.zeros((1, 4), np.float64), "in float64"),
        (np.zeros((1, 4), np.int64), "in int64"),
        (np.array([[0, np.nan, 1, 2]], np.float32), "cannot be sampled from: the largest is nan"),
        (np.full((1, 4), np.inf, np.float32), "cannot be sampled from: the largest is inf"),
        (np.full((1, 4), -np.inf, np.float32), "cannot be sampled from: the largest is -inf"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_none_are_refused(
    logits: NDArray[Any], error: str, temperature: float
) -> None:
    drafts = model_drafter(OddSession(logits)).draft(
        np.zeros(2, np.int64), 3, Sampling(temperature=temperature)
    )
    with pytest.raises(MirrorError, match=error):
        next(drafts)
