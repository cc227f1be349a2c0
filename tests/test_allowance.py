"""Tests of runtime/allowance.py: what values cost, to the unit."""

from typing import Any

import pytest
from jinja2 import Undefined
from jinja2.exceptions import SecurityError

from runtime.allowance import ITEM, MOST_BITS, MOST_DEPTH, STEP, Allowance, check_number


def spent(act: str, value: Any, **options: Any) -> int:
    allowance = Allowance()
    allowance.refill(10**9)
    getattr(allowance, act)(value, **options)
    return 10**9 - allowance._left


@pytest.mark.parametrize(
    ("value", "units"),
    [
        ("", 0),
        ("four", 4),
        ([], 0),
        (["four", "four"], 2 * ITEM),
        ({"a": "b"}, ITEM),
        ({"a": 1}.items(), ITEM),
        (range(10**6), 10**6 * ITEM),
        (7, 0),
        (0.5, 0),
        (None, 0),
        (Undefined(), 0),
        (iter([1, 2]), 0),
    ],
)
def test_holding_costs_the_top_of_a_value(value: Any, units: int) -> None:
    assert spent("hold", value) == STEP + units


def test_reading_costs_every_leaf_as_often_as_it_is_met() -> None:
    assert spent("read", "four") == ITEM + 4
    assert spent("read", "x" * 64, share=16) == ITEM + 4
    assert spent("read", ["ab", {"c": ("d", 1)}]) == 7 * ITEM + 4
    twice = ["ab"]
    for level in range(1, 11):
        twice = [twice, twice]  # type: ignore[list-item]
        assert spent("read", twice) == (2**level * 3 - 1) * ITEM + 2**level * 2
    assert spent("read", range(5)) == 6 * ITEM


def test_reading_returns_its_cost() -> None:
    allowance = Allowance()
    allowance.refill(100)
    assert allowance.read("four") == ITEM + 4
    with pytest.raises(SecurityError, match="more than 100 steps"):
        allowance.read("x" * 100)


def test_counting_stops_at_the_item_that_cannot_be_paid() -> None:
    allowance = Allowance()
    allowance.refill(3 * STEP)
    items = allowance.counted("abcd")
    assert [next(items), next(items), next(items)] == ["a", "b", "c"]
    with pytest.raises(SecurityError):
        next(items)


def test_depth_and_strange_values_are_refused() -> None:
    nested: Any = 1
    for _ in range(MOST_DEPTH):
        nested = (nested,)
    assert spent("read", nested) == (MOST_DEPTH + 1) * ITEM
    with pytest.raises(SecurityError, match="deep"):
        spent("read", (nested,))
    for strange in (object(), len, Allowance):
        with pytest.raises(SecurityError, match="cannot be read"):
            spent("read", [strange])


def test_numbers_have_so_many_bits() -> None:
    for number in (2**MOST_BITS - 1, True, 1e300, "x"):
        check_number(number)
    with pytest.raises(SecurityError, match="bits"):
        check_number(-(2**MOST_BITS))
