"""Tests of runtime/checks.py: what each check takes, and the sentence for what it does not."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import checks
from runtime.errors import UsageError


def test_what_is_taken() -> None:
    assert checks.whole("n", 3, least=0) == 3
    assert type(checks.whole("n", np.int64(3), least=3, most=3)) is int
    assert checks.whole("n", 2**64, least=0) == 2**64
    assert type(checks.real("x", np.float32(0.5))) is float
    assert checks.real("x", 7) == 7.0
    assert checks.real("x", 10**400) == math.inf
    assert math.isnan(checks.real("x", math.nan))
    assert checks.many("m", iter([1, 2])) == (1, 2)
    assert checks.texts("t", ["a", "b"]) == ("a", "b")
    assert checks.texts("t", ()) == ()
    assert checks.text("t", "") == ""
    assert checks.path("p", "a") == checks.path("p", Path("a")) == Path("a")


def whole(value: object) -> int:
    return checks.whole("it", value, least=1, most=9)


def named(check: Callable[[str, object], Any]) -> Callable[[object], Any]:
    return lambda value: check("it", value)


@pytest.mark.parametrize(
    "value", [0, 10, -1, 2.0, 2.5, math.nan, math.inf, True, "3", None, [], 1j]
)
def test_what_is_no_whole_number_in_its_limits(value: object) -> None:
    with pytest.raises(UsageError, match=r"^it must be a whole number, 1 to 9; it is "):
        whole(value)


@pytest.mark.parametrize(
    ("check", "values"),
    [
        (checks.real, [True, "1", None, [], 1j, b"1"]),
        (checks.many, ["abc", b"abc", None, 5, {"a": 1}]),
        (checks.texts, ["abc", None, [1], [None], [b"x"], [["a"]], {"a": "b"}]),
        (checks.text, [None, 5, b"x", []]),
        (checks.path, [None, 5, b"x", [], "a\0b", "\ud800"]),
    ],
)
def test_what_is_refused(check: Callable[[str, object], Any], values: list[object]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=r"^it(\[0\])? must be a "):
            named(check)(value)


def test_a_long_value_is_cut_short() -> None:
    with pytest.raises(UsageError) as error:
        checks.real("it", "x" * 10**6)
    assert len(str(error.value)) < 200
