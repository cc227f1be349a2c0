"""Tests of runtime/drafter.py: what is guessed after hand-made texts, and how far."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.drafter import Drafter, Guess, LookupDrafter, LookupFirst, Start
from runtime.errors import MirrorError
from runtime.sampling import Sampling, choose, rank
from tests.table import TableTarget
from tests.table_session import TableSession, Tokens, model_drafter


def drafted(
    drafter: Drafter, text: Sequence[int], count: int, sampling: Sampling | None = None
) -> list[Guess]:
    """The guesses of one pass after a text."""
    tokens = np.array(text, np.int64)
    [rollout] = drafter.draft(tokens, [Start(len(text))], count, sampling or Sampling())
    return list(rollout())


def spelled(guesses: Sequence[Guess]) -> list[str]:
    """Of each guess the token, then the runner-ups, as letters."""
    return ["".join(map(chr, (guess.token, *guess.runner_ups))) for guess in guesses]


def looked_up(text: str, count: int, *, longest: int = 3, runner_ups: int = 3) -> list[str]:
    """What is guessed after a text of letters."""
    drafter = LookupDrafter(longest=longest, runner_ups=runner_ups)
    tokens = [ord(letter) for letter in text]
    assert drafter.catch_up(np.array(tokens, np.int64))
    return spelled(drafted(drafter, tokens, count))


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


def test_lookup_after_several_starts() -> None:
    text = np.array([ord(letter) for letter in "abxabyab"], np.int64)
    starts = [Start(8), Start(8, (ord("x"),)), Start(5, (ord("y"), ord("a"))), Start(2)]
    found = LookupDrafter().draft(text, starts, 2, Sampling())
    assert [spelled(rollout()) for rollout in found] == [["yx", "a"], ["a", "b"], ["b", "y"], []]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_the_same_model_drafts_what_the_target_says_noise_and_penalty_included(
    temperature: float,
) -> None:
    target = TableTarget()
    for seed in range(20):
        sampling = Sampling(temperature=temperature, repetition_penalty=1.5, seed=seed)
        drafter = model_drafter(TableSession(target, 64), runner_ups=2)
        text = np.array([3, 1], np.int64)
        for _ in range(5):
            [guess] = drafted(drafter, text.tolist(), 5, sampling)
            row = target.row(text)
            assert guess.token == choose(row, text, sampling)
            assert [guess.token, *guess.runner_ups] == rank(row, text, sampling, 3)
            text = np.append(text, guess.token)


@pytest.mark.parametrize(("length", "wanted"), [(3, 1), (7, 1), (8, 1), (9, 0), (12, 0)])
def test_a_draft_with_a_shorter_context_steps_aside_when_it_is_full(
    length: int, wanted: int
) -> None:
    session = TableSession(TableTarget(), context=8)
    assert len(drafted(model_drafter(session), [0] * length, 4)) == wanted
    assert len(session.fed) == wanted, "no pass where there is no room"


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
    for head, others in ((None, (0, 1, 3)), (np.array([1, 2, 3, 5]), (1, 3))):
        session = TableSession(TableTarget(table=table), context=8, head=head)
        drafter = model_drafter(session, runner_ups=5, head_tokens=head)
        assert drafted(drafter, [0, 0], 3) == [Guess(2, others)]


class OddSession(TableSession):
    """Gives whatever logits it was told to."""

    def __init__(self, logits: NDArray[Any]) -> None:
        super().__init__(TableTarget(), context=8)
        self._odd = logits

    def extend(self, tokens: Tokens, **_asked: Any) -> NDArray[Any]:
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
    drafter = model_drafter(OddSession(logits))
    with pytest.raises(MirrorError, match=error):
        drafted(drafter, [0, 0], 3, Sampling(temperature=temperature))


def test_logits_of_too_few_rows_or_columns_are_refused() -> None:
    for logits, due in ((np.zeros((2, 2)), "(3, 2)"), (np.zeros((3, 4)), "(3, 2)")):
        session = OddSession(logits.astype(np.float32))
        session.logits_width = 2
        drafter = model_drafter(session, tokens_per_pass=3, head_tokens=np.array([1, 3]))
        with pytest.raises(MirrorError, match=re.escape(f"{due} in float32 was due")):
            drafted(drafter, [0, 0], 3)


@pytest.mark.parametrize(
    ("text", "count", "given", "fed"),
    [
        ([0, 1, 2, 0, 1], 4, 4, 0),  # a pair stood before: all is copied
        ([0, 1, 2, 3, 1], 4, 3, 1),  # one token did: the model, what a pass gives
        ([0, 1, 2, 3, 1], 1, 1, 1),
        ([0, 1], 2, 2, 1),
        ([0, 1, 2, 0, 1], 0, 0, 0),
    ],
)
def test_a_model_is_asked_where_there_is_nothing_to_copy(
    text: list[int], count: int, given: int, fed: int
) -> None:
    session = TableSession(TableTarget(vocabulary=4), 64)
    drafter = LookupFirst(model_drafter(session, tokens_per_pass=3))
    found = drafted(drafter, text, count)
    assert len(found) == given
    assert len(session.fed) == fed
    if given and not fed:
        assert [guess.token for guess in found] == np.resize([2, 0, 1], count).tolist()


def test_a_model_is_asked_after_those_starts_where_there_is_nothing_to_copy() -> None:
    session = TableSession(TableTarget(vocabulary=4), 64)
    drafter = LookupFirst(model_drafter(session))
    text = np.array([0, 1, 2, 0], np.int64)
    starts = [Start(4, (3,)), Start(4, (1,)), Start(4)]
    found = [list(rollout()) for rollout in drafter.draft(text, starts, 2, Sampling())]
    assert [guess.token for guess in found[1]] == [2, 0]
    assert [(each.text, each.chains) for each in session.fed] == [(text.tolist(), [(4, [3])])]
    alone = model_drafter(TableSession(TableTarget(vocabulary=4), 64))
    assert found[0] == drafted(alone, [0, 1, 2, 0, 3], 2)
    assert found[2] == drafted(alone, [0, 1, 2, 0], 2)


def test_what_a_model_must_read_is_read_before_any_copying() -> None:
    session = TableSession(TableTarget(vocabulary=4), 64)
    drafter = LookupFirst(model_drafter(session))
    context = np.array([0, 1, 2, 0, 1], np.int64)
    while not drafter.catch_up(context):
        pass
    assert [each.text for each in session.fed] == [context.tolist()]
