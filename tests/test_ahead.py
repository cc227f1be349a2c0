"""Tests of runtime/ahead.py: which rollout foresaw what was committed, and what is left of it."""

import itertools
from collections.abc import Sequence

import pytest

from runtime.ahead import Ahead, Branch
from runtime.drafter import Guess, Start

BASE = 10  # committed tokens
CHAIN = (1, 2)


def grown(start: Start, *passes: Sequence[int], looked: bool = True) -> Branch:
    """A branch to which each pass gave these tokens; whether the last was looked at."""
    branch = Branch(start, 9, 9)
    for number, tokens in enumerate(passes, 1):
        guesses = [Guess(token) for token in tokens]
        branch.grow(guesses.copy)
        if looked or number < len(passes):
            assert branch.look() == len(tokens)
    return branch


def taken(block: Sequence[int], *branches: Branch) -> tuple[int, list[int]] | None:
    """The number of the branch that foresaw a block, and the tokens it guessed next."""
    found = Ahead(BASE, CHAIN, branches).take(block)
    return None if found is None else (found[0], [guess.token for guess in found[1]])


def named(accepted: int, final_token: int, *passes: Sequence[int], looked: bool = True) -> Branch:
    return grown(Start(BASE + accepted, (final_token,)), *passes, looked=looked)


def left_open(accepted: int, *passes: Sequence[int], looked: bool = True) -> Branch:
    return grown(Start(BASE + accepted), *passes, looked=looked)


@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_a_named_outcome_is_foreseen_and_no_other_is(accepted: int, looked: bool) -> None:  # noqa: FBT001
    blocks = [(*CHAIN[:place], token) for place in range(3) for token in range(9)]
    for block in blocks:
        expected = (0, [5, 6]) if block == (*CHAIN[:accepted], 7) else None
        assert taken(block, named(accepted, 7, (5, 6), looked=looked)) == expected


def test_of_several_the_one_that_leads_there_is_taken() -> None:
    branches = [named(2, 3, (4,)), named(0, 7, (5,)), named(1, 7, (6,)), named(1, 8, (3,))]
    assert taken((1, 2, 3), *branches) == (0, [4])
    assert taken((7,), *branches) == (1, [5])
    assert taken((1, 7), *branches) == (2, [6])
    assert taken((1, 8), *branches) == (3, [3])
    assert taken((1, 9), *branches) is None
    assert taken((1, 7)) is None


def test_an_outcome_nothing_was_drafted_for_is_none() -> None:
    assert taken((7,), named(0, 7)) is None
    assert taken((7,), named(0, 7, ())) is None
    assert taken((7,), left_open(0)) is None
    assert taken((7,), left_open(0, ())) is None
    assert taken((7,), named(0, 7, ()), named(0, 7, (5,))) == (1, [5])


def test_one_that_names_the_token_goes_before_one_that_leaves_it_open() -> None:
    for branches in itertools.permutations([left_open(0, (7, 3)), named(0, 7, (4,))]):
        number, left = taken((7,), *branches) or (None, [])
        assert left == [4]
        assert branches[number or 0].start.tokens


def test_what_follows_in_a_rollout_is_foreseen_too() -> None:
    branch = named(0, 7, (5, 6, 4))
    assert taken((7, 5), branch) == (0, [6, 4])
    assert taken((7, 5, 6), branch) == (0, [4])
    assert taken((7, 5, 6, 4), branch) == (0, [])
    assert taken((7, 4), branch) is None
    assert taken((7, 5, 4), branch) is None
    assert taken((7, 5, 6, 4, 1), branch) is None


def test_an_open_place_holds_whatever_came() -> None:
    # Without the token that it guessed there, what masks said of the places behind is left.
    assert taken((1, 5), left_open(1, (5, 6, 7))) == (0, [6, 7])
    assert taken((1, 9), left_open(1, (5, 6, 7))) == (0, [6, 7])
    assert taken((1, 9, 6), left_open(1, (5, 6, 7))) == (0, [7])
    assert taken((1, 9, 7), left_open(1, (5, 6, 7))) is None
    assert taken((2, 5), left_open(1, (5, 6, 7))) is None


def test_later_passes_read_the_guess_at_an_open_place_and_hold_only_with_it() -> None:
    for looked in (True, False):
        branch = left_open(1, (5, 6), (7, 8), looked=looked)
        assert taken((1, 5), branch) == (0, [6, 7, 8])
        assert taken((1, 9), left_open(1, (5, 6), (7, 8), looked=looked)) == (0, [6])
    # A lone guess for the open place says nothing of what stands behind another token.
    assert taken((1, 9), left_open(1, (5,), (7, 8))) is None
    assert taken((1, 9, 6), left_open(1, (5, 6), (7, 8))) is None


@pytest.mark.parametrize("start", [Start(BASE), Start(BASE, (7,))])
def test_the_first_pass_decides_whatever_there_was_time_for(start: Start) -> None:
    """Over all blocks of up to three tokens: later passes only lengthen what is left."""
    known = start.tokens
    for size, first in itertools.product(range(4), ((5,), (5, 6), (5, 6, 8))):
        for further in itertools.product((5, 6, 8, 9), repeat=size):
            if not (known or further):
                continue
            short = taken((*known, *further), grown(start, first))
            long = taken((*known, *further), grown(start, first, (8, 5), (6,)))
            # After a whole outcome all guesses are of use, elsewhere those of the first pass.
            if short and further == (() if known else first[:1]):
                short[1].extend((8, 5, 6))
            assert long == short


def test_a_branch_knows_where_its_next_guess_belongs_and_when_it_is_finished() -> None:
    branch = Branch(Start(12, (7,)), 3, 4)
    assert (branch.frontier, branch.room, branch.unfinished) == (Start(12, (7,)), 4, True)
    branch.grow([Guess(5), Guess(6)].copy)
    assert (branch.frontier, branch.room, branch.unfinished) == (Start(12, (7,)), 4, True)
    assert branch.look() == 2
    assert branch.look() == 0
    assert (branch.frontier, branch.room, branch.unfinished) == (Start(12, (7, 5, 6)), 2, True)
    branch.grow([Guess(8)].copy)
    branch.look()
    assert (branch.frontier, branch.room, branch.unfinished) == (Start(12, (7, 5, 6, 8)), 1, False)
    assert not Branch(Start(12), 0, 1).unfinished


def test_nobody_makes_the_guesses_of_other_outcomes() -> None:
    made = []

    def note(number: int) -> list[Guess]:
        made.append(number)
        return [Guess(4)]

    branches = [Branch(Start(BASE + place, (7,)), 1, 1) for place in range(3)]
    for place, branch in enumerate(branches):
        branch.grow(lambda place=place: note(place))  # type: ignore[misc]
    assert taken((1, 7), *branches) == (1, [4])
    assert made == [1]
