"""Tests of runtime/growth.py: bounds on what filters, methods and formats make, against Python."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from runtime import growth
from runtime.allowance import ITEM


@pytest.mark.parametrize(
    ("name", "value", "given", "named", "units"),
    [
        ("indent", "a\nb", (), {}, 8),
        ("indent", "a\nb", (3,), {}, 6),
        ("indent", "a\nb", ("ab",), {"first": True}, 4),
        ("indent", "a\nb", (), {"width": 9}, 18),
        ("join", ["a", "b", "c"], ("--",), {}, 6),
        ("join", ["a", "b", "c"], (), {"d": "----"}, 12),
        ("replace", "aaa", ("a", "bb"), {}, 6),
        ("replace", "aaa", (), {"old": "", "new": "bb"}, 8),
        ("round", 1.5, (2,), {}, 0),
        ("batch", [1], (7,), {}, 7 * ITEM),
        ("trim", "x" * 80, ("ab" * 8,), {}, 160),
        ("tojson", ["a"] * 9, (), {}, 0),
        ("upper", "abc", (), {}, 0),
        ("list", "abc", (), {}, 3 * ITEM),
        ("list", ["abc"], (), {}, 0),
        ("join", "abc", ("-",), {}, 3 * ITEM + 3),
    ],
)
def test_filters(
    name: str, value: Any, given: Sequence[Any], named: dict[str, Any], units: int
) -> None:
    assert growth.of_filter(name, value, given, named) == units


@pytest.mark.parametrize(
    ("name", "text", "given", "units"),
    [
        ("center", "a", (9,), 9),
        ("zfill", "a", (-9,), 0),
        ("expandtabs", "\ta\t", (), 16),
        ("expandtabs", "\ta\t", (5,), 10),
        ("join", "--", (["a", "b"],), 4),
        ("join", "--", ("ab",), 4 + 2 * ITEM),
        ("replace", "aXbXc", ("X", "--"), 4),
        ("rfind", "x" * 80, ("b" * 16,), 160),
        ("rsplit", "x" * 80, (), 40 * ITEM),
        ("split", "a b c", (" ",), 2 * ITEM),
        ("split", "a b c", (None, 1), 2 * ITEM),
        ("strip", "x" * 80, (), 0),
        ("upper", "abc", (), 0),
    ],
)
def test_methods_of_texts(name: str, text: str, given: Sequence[Any], units: int) -> None:
    assert growth.of_method(name, text, given, {}) == units
    made = getattr(text, name)(*given)
    assert not isinstance(made, str) or len(made) <= len(text) + units + len("ab")


def test_a_keyword_is_as_good_as_a_place() -> None:
    assert growth.of_method("rsplit", "x" * 80, (), {"sep": "b" * 16}) == 160
    assert growth.of_method("split", "a,b", (), {"sep": ",", "maxsplit": 1}) == ITEM
    assert growth.of_method("expandtabs", "\t", (), {"tabsize": 3}) == 3


@pytest.mark.parametrize("value", [[[1, [2]], {"a": {"b": []}}], [], {"x": [1] * 9}, 3, "text"])
@pytest.mark.parametrize("indent", [1, 4, "--"])
def test_indented_json_is_no_longer_than_its_bound(value: Any, indent: Any) -> None:
    units = growth.of_filter("tojson", value, (), {"indent": indent})
    grown = len(json.dumps(value, indent=indent)) - len(json.dumps(value))
    assert grown <= units
    assert growth.of_filter("tojson", value, (False, indent), {}) == units


def test_separators_of_json_count() -> None:
    units = growth.of_filter("tojson", [1] * 9, (), {"separators": ("x" * 100, "y" * 100)})
    assert units >= 8 * 100


def test_formats() -> None:
    assert growth.of_format("a {} b {:>30} {{}}", 7) == 2 * 7 + 30
    assert growth.of_format("{0}{0}{0}", 7) == 21
    assert growth.of_format("no field", 7) == 0
    assert growth.of_percent("%s and %5.3f%%", 7) == 4 * 7 + 5 + 3
    assert growth.of_percent("no field", 7) == 0


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (growth.of_format, "{:999999}"),
        (growth.of_format, "{:{}}"),
        (growth.of_format, "{:.1000000}"),
        (growth.of_percent, "%999999d"),
        (growth.of_percent, "%*d"),
        (growth.of_percent, "%.1000000f"),
        (growth.of_percent, "%((x))1000000d"),
    ],
)
def test_wide_formats_are_refused(act: Any, text: str) -> None:
    with pytest.raises(SecurityError):
        act(text, 1)


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("indent", (10**9,), {}),
        ("indent", (), {"width": "x" * 10_001}),
        ("batch", (10_001,), {}),
        ("round", (-(10**9),), {}),
        ("round", (), {"precision": 101}),
        ("tojson", (), {"indent": 10**9}),
    ],
)
def test_huge_widths_are_refused(name: str, given: Sequence[Any], named: dict[str, Any]) -> None:
    with pytest.raises(SecurityError):
        growth.of_filter(name, "x", given, named)
