"""Tests of runtime/payload.py: what is packed comes out as it went in, as far as there is room."""

import itertools

import pytest

from runtime.drafter import Guess
from runtime.hypotheses import Hypothesis
from runtime.payload import pack_guesses, pack_hypotheses, unpack_guesses, unpack_hypotheses

GUESSES = [Guess(0), Guess(3, (0,)), Guess(2**40, (1, 2, 3))]


@pytest.mark.parametrize("count", range(4))
def test_guesses_travel(count: int) -> None:
    for guesses in itertools.product(GUESSES, repeat=count):
        columns, tokens = pack_guesses(guesses, 12)
        assert len(tokens) == columns * count <= 12
        assert unpack_guesses(columns, tokens) == list(guesses)


@pytest.mark.parametrize(
    ("widest", "columns", "runner_ups"),
    [(12, 4, [(), (0,), (1, 2, 3)]), (11, 3, [(), (0,), (1, 2)]), (9, 3, [(), (0,), (1, 2)]),
     (8, 2, [(), (0,), (1,)]), (5, 1, [(), (), ()]), (3, 1, [(), (), ()])],
)  # fmt: skip
def test_the_last_runner_ups_are_left_out_where_there_is_no_room(
    widest: int, columns: int, runner_ups: list[tuple[int, ...]]
) -> None:
    packed = pack_guesses(GUESSES, widest)
    assert packed[0] == columns
    assert len(packed[1]) <= widest
    found = unpack_guesses(*packed)
    assert [guess.token for guess in found] == [0, 3, 2**40]
    assert [guess.runner_ups for guess in found] == runner_ups


def test_hypotheses_travel_but_for_their_sources() -> None:
    kinds = [
        Hypothesis(0, None, "masks"), Hypothesis(0, 0), Hypothesis(4, 7), Hypothesis(4, 9, "bonus")
    ]  # fmt: skip
    for count in range(4):
        for hypotheses in itertools.product(kinds, repeat=count):
            tokens = pack_hypotheses(hypotheses)
            assert len(tokens) == 2 * count
            found = unpack_hypotheses(tokens)
            assert [(each.accepted, each.final_token, each.tokens) for each in found] == [
                (each.accepted, each.final_token, each.tokens) for each in hypotheses
            ]
    assert Hypothesis(1, None).tokens == ()
    assert Hypothesis(1, 0).tokens == (0,)
