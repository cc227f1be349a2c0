"""By how much filters, methods and formats of templates can outgrow what they are given."""

import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from jinja2.exceptions import SecurityError

from runtime.allowance import ITEM, MOST_DEPTH

MOST_WIDTH = 10_000  # of a field, an indentation, a line of a batch
_MOST_DIGITS = 100  # to round to


def of_filter(name: str, value: Any, given: Sequence[Any], named: Mapping[str, Any]) -> int:
    """The units that a filter may take beyond reading its input; SecurityError for any number."""
    grow = _FILTERS.get(name)
    return 0 if grow is None else grow(value, *given, **named)


def of_method(name: str, text: str, given: Sequence[Any], named: Mapping[str, Any]) -> int:
    """The units that a method of a text may take beyond reading its input."""
    grow = _METHODS.get(name)
    return 0 if grow is None else grow(text, *given, **named)


def of_format(text: str, each: int) -> int:
    """The units of `text.format(…)` with values that take `each` units to write once."""
    fields = [spec for _, name, spec, _ in Formatter().parse(text) if name is not None]
    return _of_fields([spec or "" for spec in fields], each)


def of_percent(text: str, each: int) -> int:
    """The units of `text % values` with values that take `each` units to write once."""
    return _of_fields(text.split("%")[1:], each)


def _of_fields(fields: Sequence[str], each: int) -> int:
    """Bound what fields write; a width that another value gives cannot be bounded."""
    digits = [number for field in fields for number in re.findall(r"\d+", field)]
    if any(mark in field for field in fields for mark in "{*"):
        raise SecurityError("a value gives the width that a text is formatted to")
    if any(len(number) > len(str(MOST_WIDTH)) for number in digits):
        raise SecurityError(f"a text is formatted to more than {MOST_WIDTH:,} characters")
    return sum(map(int, digits)) + each * len(fields)


# The parameters have the names that templates know.
def _indent(s: Any, width: Any = 4, *_rest: Any, **_others: Any) -> int:
    return (str(s).count("\n") + 1) * _width(width)


def _join(value: Any, d: Any = "", *_rest: Any, **_others: Any) -> int:
    return _spread(value) + (len(value) * len(str(d)) if hasattr(value, "__len__") else 0)


def _join_by(separator: str, items: Any) -> int:
    return _join(items, separator)


def _split(text: str, sep: Any = None, *_rest: Any, **_others: Any) -> int:
    """One part for each separator; white space, which may be any, at every second place."""
    return ITEM * (text.count(sep) if isinstance(sep, str) and sep else len(text) // 2)


def _spread(value: Any, *_rest: Any, **_others: Any) -> int:
    """A text is taken apart into its characters, each of which is then an element of a list."""
    return ITEM * len(value) if isinstance(value, str) else 0


def _replace(s: Any, old: Any, new: Any, *_rest: Any, **_others: Any) -> int:
    return str(s).count(str(old)) * len(str(new))


def _round(_value: Any, precision: Any = 0, *_rest: Any, **_others: Any) -> int:
    if not -_MOST_DIGITS <= precision <= _MOST_DIGITS:
        raise SecurityError(f"it rounds to more than {_MOST_DIGITS} digits")
    return 0


def _batch(_value: Any, linecount: Any, *_rest: Any, **_others: Any) -> int:
    return ITEM * _width(linecount)


def _json(
    value: Any,
    _ensure_ascii: Any = None,
    indent: Any = None,
    separators: Any = None,
    *_rest: Any,
    **_others: Any,
) -> int:
    # Each value and bracket may have a line of its own, and each of those the whole depth.
    line = MOST_DEPTH * _width(indent or 0) + sum(map(len, map(str, separators or ())))
    return line * _leaves(value) if line else 0


def _leaves(value: Any) -> int:
    if isinstance(value, Mapping):
        return 2 + sum(map(_leaves, value.values()))
    return 2 + sum(map(_leaves, value)) if isinstance(value, list | tuple) else 1


def _pad(_text: str, width: Any, *_fill: Any) -> int:
    return _width(width)


def _tabs(text: str, tabsize: Any = 8) -> int:
    return text.count("\t") * _width(tabsize)


def _seek(text: Any, *given: Any, **named: Any) -> int:
    """Sought from the end, or as a set: at worst each character at each place, eight a unit."""
    wanted = max(
        (len(each) for each in (*given, *named.values()) if isinstance(each, str)), default=0
    )
    return len(str(text)) * (wanted // 8)


def _width(value: Any) -> int:
    """A width as it was given, or that of the text which is written for it."""
    width = len(value) if isinstance(value, str) else int(value)
    if width > MOST_WIDTH:
        raise SecurityError(f"a width is {width:,}; the most is {MOST_WIDTH:,}")
    return max(width, 0)


_FILTERS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("list", "sort", "unique"), _spread),
    "batch": _batch,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "tojson": _json,
    "trim": _seek,
}
_METHODS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _pad),
    **dict.fromkeys(("lstrip", "rstrip", "strip", "rfind", "rindex"), _seek),
    "rpartition": _seek,
    "rsplit": lambda *given, **named: _seek(*given, **named) + _split(*given, **named),
    "split": _split,
    "expandtabs": _tabs,
    "join": _join_by,
    "replace": _replace,
}
