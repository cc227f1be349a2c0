"""Tests of runtime/drafter.py: what is guessed after hand-made texts, and how far."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.drafter import Guess, LookupDrafter, LookupFirst, ModelDrafter
from runtime.errors import MirrorError
from runtime.sampling import Sampling, choose, rank
from tests.table import TableTarget
from tests.table_session import TableSession, Tokens, model_drafter

Passes = list[list[Guess]]


def looked_up(text: str, count: int, *, longest: int = 3, runner_ups: int = 3) -> list[str]:
    """What is guessed after a text of letters: of each guess the token, then the runner-ups."""
    drafter = LookupDrafter(longest=longest, runner_ups=runner_ups)
    context = np.array([ord(letter) for letter in text], np.int64)
    assert drafter.catch_up(context)
    passes = list(drafter.draft(context, count, Sampling()))
    assert len(passes) <= 1, "it is one piece of work"
    guesses = [guess for found in passes for guess in found]
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


def drafted(drafter: ModelDrafter, text: Sequence[int], count: int, sampling: Sampling) -> Passes:
    return [list(found) for found in drafter.draft(np.array(text, np.int64), count, sampling)]


def expected(
    session: TableSession, text: Sequence[int], count: int, sampling: Sampling, per_pass: int
) -> Passes:
    """By the definition: whole rows, -inf where the head has no token, and the text so far."""
    context, passes = list(text), []  # type: list[int], Passes
    while count > 0:
        start, guesses = len(context), []  # type: int, list[Guess]
        for place in range(min(per_pass, count)):
            row = np.full(session.vocabulary, -np.inf, np.float32)
            row[session.head] = session.row(np.array(context[:start]), place)[session.head]
            token, *others = rank(row, context, sampling, 2)
            guesses.append(Guess(token, tuple(others)))
            context.append(token)
        passes.append(guesses)
        count -= len(guesses)
    return passes


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
        passes = drafted(drafter, [3, 1], 5, sampling)
        assert [guess.token for [guess] in passes] == after([3, 1], target, sampling, 5)
        for [guess] in passes:
            ranked = rank(target.row(context), context, sampling, 3)
            assert [guess.token, *guess.runner_ups] == ranked
            context = np.append(context, guess.token)


HEADS = [None, [0, 1, 2, 3], [1, 3], [2]]
SAMPLINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.8),
    *(Sampling(temperature=0.8, repetition_penalty=1.3, seed=seed) for seed in range(5)),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("per_pass", [1, 2, 3, 5, 8])
def test_several_tokens_a_pass(per_pass: int, head: list[int] | None, sampling: Sampling) -> None:
    tokens = None if head is None else np.array(head)
    for count in range(8):
        session = TableSession(TableTarget(), 64, head=tokens)
        drafter = model_drafter(session, tokens_per_pass=per_pass, head_tokens=tokens)
        found = drafted(drafter, [3, 1], count, sampling)
        assert found == expected(session, [3, 1], count, sampling, per_pass)
        assert len(session.fed) == len(found) == -(-count // per_pass)


def test_a_later_pass_reads_the_guesses_before_it_as_text() -> None:
    session = TableSession(TableTarget(), 64)
    drafter = model_drafter(session, tokens_per_pass=3)
    tokens = [each.token for found in drafted(drafter, [3, 1], 7, Sampling()) for each in found]
    assert session.fed == [
        [3, 1, 4, 5],
        [3, 1, *tokens[:3], 4, 5],
        [3, 1, *tokens[:6]],
    ]


@pytest.mark.parametrize("per_pass", [1, 2, 3, 8])
def test_masks_need_room_too(per_pass: int) -> None:
    for length in range(1, 12):
        session = TableSession(TableTarget(), context=8)
        drafter = model_drafter(session, tokens_per_pass=per_pass)
        text = [0] * length
        found = drafted(drafter, text, 4, Sampling())
        room = max(0, min(4, 8 - length + 1))
        assert found == expected(session, text, room, Sampling(), per_pass)
        assert all(len(each) <= 8 for each in session.fed)
        assert len(session.fed) == -(-room // per_pass)


def test_no_pass_is_made_before_its_guesses_are_asked_for() -> None:
    session = TableSession(TableTarget(), 64)
    passes = model_drafter(session, tokens_per_pass=2).draft(np.array([1]), 4, Sampling())
    assert session.fed == []
    assert len(next(passes)) == 2
    assert len(session.fed) == 1


@pytest.mark.parametrize(
    ("length", "count", "wanted"), [(3, 4, 4), (7, 4, 2), (8, 4, 1), (9, 4, 0), (12, 4, 0)]
)
def test_a_draft_with_a_shorter_context_steps_aside_when_it_is_full(
    length: int, count: int, wanted: int
) -> None:
    drafter = model_drafter(TableSession(TableTarget(), context=8))
    assert len(drafted(drafter, [0] * length, count, Sampling())) == wanted


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
        assert drafted(drafter, [0, 0], 3, Sampling()) == [[Guess(2, others)]] * 3


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
    drafts = model_drafter(OddSession(logits)).draft(
        np.zeros(2, np.int64), 3, Sampling(temperature=temperature)
    )
    with pytest.raises(MirrorError, match=error):
        next(drafts)


def test_logits_of_too_few_rows_or_columns_are_refused() -> None:
    for logits, due in ((np.zeros((2, 2)), "(3, 2)"), (np.zeros((3, 4)), "(3, 2)")):
        session = OddSession(logits.astype(np.float32))
        session.logits_width = 2
        drafter = model_drafter(session, tokens_per_pass=3, head_tokens=np.array([1, 3]))
        with pytest.raises(MirrorError, match=re.escape(f"{due} in float32 was due")):
            drafted(drafter, [0, 0], 3, Sampling())


@pytest.mark.parametrize(
    ("text", "count", "most", "passes", "fed"),
    [
        ([0, 1, 2, 0, 1], 4, None, [4], 0),  # a pair stood before: all is copied
        ([0, 1, 2, 0, 1], 4, 2, [4], 0),
        ([0, 1, 2, 3, 1], 4, None, [2, 2], 2),  # one token did: the model, pass by pass
        ([0, 1, 2, 3, 1], 4, 2, [2], 1),
        ([0, 1, 2, 3, 1], 1, 2, [1], 1),
        ([0, 1], 2, 3, [2], 1),
        ([0, 1, 2, 0, 1], 0, None, [], 0),
    ],
)
def test_a_model_is_asked_where_there_is_nothing_to_copy(
    text: list[int], count: int, most: int | None, passes: list[int], fed: int
) -> None:
    session = TableSession(TableTarget(vocabulary=4), 64)
    drafter = LookupFirst(model_drafter(session, tokens_per_pass=2), most=most)
    context = np.array(text, np.int64)
    found = list(drafter.draft(context, count, Sampling()))
    assert [len(each) for each in found] == passes
    assert len(session.fed) == fed
    if passes and not fed:
        assert [guess.token for guess in found[0]] == np.resize([2, 0, 1], count).tolist()


def test_what_a_model_must_read_is_read_before_any_copying() -> None:
    session = TableSession(TableTarget(vocabulary=4), 64)
    drafter = LookupFirst(model_drafter(session))
    context = np.array([0, 1, 2, 0, 1], np.int64)
    while not drafter.catch_up(context):
        pass
    assert session.fed == [context.tolist()]
