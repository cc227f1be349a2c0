"""Tests of runtime/drafter.py: several starts in one pass, each as if it were alone."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from runtime.drafter import Guess, Start
from runtime.sampling import Sampling, rank
from tests.table import TableTarget
from tests.table_session import TableSession, model_drafter

RUNNER_UPS = 2
TEXT = [3, 1, 0, 2, 2]  # the last two are a chain that is being verified, say
STARTS = [Start(5), Start(5, (0,)), Start(3, (3,)), Start(4, (1,)), Start(4), Start(3, (0, 1, 2))]
HEADS = [None, [0, 1, 2, 3], [1, 3], [2]]
SAMPLINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.8),
    *(Sampling(temperature=0.8, repetition_penalty=1.3, seed=seed) for seed in range(3)),
]


def expected(
    session: TableSession, context: Sequence[int], count: int, sampling: Sampling
) -> list[Guess]:
    """By the definition: whole rows, -inf where the head has no token, and the text so far."""
    text = np.array(context, np.int64)
    guesses: list[Guess] = []
    for masks in range(count):
        row = np.full(session.vocabulary, -np.inf, np.float32)
        row[session.head] = session.row(np.array(context), masks)[session.head]
        token, *others = rank(row, text, sampling, 1 + RUNNER_UPS)
        guesses.append(Guess(token, tuple(others)))
        text = np.append(text, token)
    return guesses


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("per_pass", [1, 2, 3, 5])
def test_a_pass_gives_start_by_start_what_each_alone_gives(
    per_pass: int, head: list[int] | None, sampling: Sampling
) -> None:
    tokens = None if head is None else np.array(head)
    session = TableSession(TableTarget(), 64, head=tokens)
    drafter = model_drafter(
        session, tokens_per_pass=per_pass, head_tokens=tokens, runner_ups=RUNNER_UPS
    )
    text = np.array(TEXT)
    for number, count in itertools.product((1, 2, len(STARTS)), (1, 3, 7)):
        for starts in itertools.islice(itertools.permutations(STARTS, number), 0, 400, 71):
            session.fed.clear()
            rollouts = drafter.draft(text, starts, count, sampling)
            given = [
                expected(session, start.after(text).tolist(), min(count, per_pass), sampling)
                for start in starts
            ]
            assert [rollout() for rollout in rollouts] == given
            assert len(session.fed) == 1


def test_what_is_fed_is_the_text_and_each_starts_own_tokens_and_masks() -> None:
    session = TableSession(TableTarget(), 64)
    drafter = model_drafter(session, tokens_per_pass=3)
    drafter.draft(np.array(TEXT[:3]), [Start(3)], 3, Sampling())
    drafter.draft(np.array(TEXT), STARTS, 3, Sampling())
    drafter.draft(np.array(TEXT), STARTS[1:4], 2, Sampling())
    drafter.draft(np.array(TEXT), [], 3, Sampling())
    drafter.draft(np.array(TEXT), STARTS, 0, Sampling())
    first, masks = [4], [4, 5]
    assert session.fed == [
        (TEXT[:3], TEXT[:3], [(3, masks)]),
        # An open start at the fourth place takes the logits of the token before it.
        (TEXT, TEXT[3:], [
            (5, masks), (5, [0, *masks]), (3, [3, *masks]), (4, [1, *masks]), (4, masks),
            (3, [0, 1, 2, *masks]),
        ]),
        (TEXT, TEXT[4:], [(5, [0, *first]), (3, [3, *first]), (4, [1, *first])]),
    ]  # fmt: skip


def test_an_open_start_far_back_has_that_row_computed_again() -> None:
    session = TableSession(TableTarget(), 64)
    drafter = model_drafter(session)
    text = np.array(TEXT)
    for place in (5, 2, 1):
        [rollout] = drafter.draft(text, [Start(place)], 1, Sampling())
        assert rollout()[0].token == rank(session.row(text[:place], 0), TEXT, Sampling(), 1)[0]
    assert [each.new for each in session.fed] == [TEXT, TEXT[1:], TEXT]


def test_a_rollout_is_not_changed_by_a_later_pass() -> None:
    session = TableSession(TableTarget(), 64)
    given = session.extend

    def in_one_buffer(*of: object, **asked: object) -> object:
        logits = given(*of, **asked)  # type: ignore[arg-type]
        buffer[: len(logits)] = logits
        return buffer[: len(logits)]

    buffer = np.zeros((40, 4), np.float32)
    session.extend = in_one_buffer  # type: ignore[method-assign, assignment]
    drafter = model_drafter(session, tokens_per_pass=3, runner_ups=RUNNER_UPS)
    text = np.array(TEXT)
    rollouts = drafter.draft(text, STARTS, 3, Sampling())
    buffer[:] = 0
    assert [rollout() for rollout in rollouts] == [
        expected(session, start.after(text).tolist(), 3, Sampling()) for start in STARTS
    ]


@pytest.mark.parametrize("per_pass", [1, 2, 3, 8])
def test_masks_need_room_too(per_pass: int) -> None:
    for length in range(1, 12):
        session = TableSession(TableTarget(), context=8)
        drafter = model_drafter(session, tokens_per_pass=per_pass, runner_ups=RUNNER_UPS)
        text = [0] * length
        [rollout] = drafter.draft(np.array(text), [Start(length)], 4, Sampling())
        room = max(0, min(per_pass, 4, 8 - length + 1))
        assert rollout() == expected(session, text, room, Sampling())
        assert len(session.fed) == min(room, 1)


def test_the_last_starts_find_no_room_first() -> None:
    starts = [Start(5, (0,)), Start(4, (1,)), Start(3, (3,)), Start(5)]
    text = np.array(TEXT)
    for context in range(3, 20):
        session = TableSession(TableTarget(), context=context)
        drafter = model_drafter(session, tokens_per_pass=3, runner_ups=RUNNER_UPS)
        found = [rollout() for rollout in drafter.draft(text, starts, 3, Sampling())]
        room, given = context - len(TEXT), []
        for start in starts:
            own, left = len(start.tokens), max(0, room)
            masks = min(2, left - own)
            given.append(1 + masks if masks >= 0 and room >= 0 else 0)
            room = room - own - masks if given[-1] else -1  # none after one that does not fit
        assert [len(guesses) for guesses in found] == given
        for start, guesses in zip(starts, found, strict=True):
            context_of = start.after(text).tolist()
            assert guesses == expected(session, context_of, len(guesses), Sampling())
