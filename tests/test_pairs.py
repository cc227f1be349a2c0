"""Tests of scripts/equality/pairs.py: every pair of values that is allowed, and few cases."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from scripts.equality.pairs import pairwise, product


def met(cases: Iterable[Sequence[Any]]) -> set[tuple[Any, ...]]:
    """The pairs of two factors' values, each with its factor."""
    return {pair for case in cases for pair in itertools.combinations(enumerate(case), 2)}


@pytest.mark.parametrize(
    ("factors", "most"),
    [
        (("ab", "cde", "fg"), 7),
        (("ab",) * 8, 8),
        (("abcd", "abc", "abcde", (True, False), (0, 1, 2), "ab"), 26),
        (("abc", "d"), 3),
    ],
)
def test_any_two_values_of_two_factors_meet(factors: Sequence[Sequence[Any]], most: int) -> None:
    found = list(pairwise(*factors))
    assert met(found) == met(itertools.product(*factors))
    assert len(found) <= most
    assert found == list(pairwise(*factors))


def test_what_is_not_allowed_is_left_out_and_all_else_meets() -> None:
    factors = ("abc", (0, 1, 2), (True, False), "xyz")

    def allowed(letter: str, number: int, *rest: object) -> bool:
        return (letter == "a") == (number == 0) and rest != (False, "z")

    found = list(pairwise(*factors, allowed=allowed))
    every = product(*factors, allowed=allowed)
    assert {*found} <= {*every}
    assert met(found) == met(every)
    assert ((0, "a"), (1, 1)) not in met(found)
    assert len(every) == 25
    assert len(found) <= 12
