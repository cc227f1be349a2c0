"""Refuse values of a wrong kind where they come in, with the setting's name in the sentence."""

import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from runtime.errors import UsageError


def whole(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """`value` as an int from `least` to `most`; a bool is none, nor is a float without fraction."""
    if not isinstance(value, bool) and isinstance(value, Integral):
        number = int(value)
        if number >= least and (most is None or number <= most):
            return number
    limits = f"{least} or more" if most is None else f"{least} to {most}"
    raise UsageError(f"{name} must be a whole number, {limits}; it is {value!r:.80}.")


def real(name: str, value: object) -> float:
    """`value` as a float, infinity for one too large; a bool is none."""
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    raise UsageError(f"{name} must be a number; it is {value!r:.80}.")


def many(name: str, values: object) -> tuple[Any, ...]:
    """`values` as a tuple; a lone text is refused, which would be a list of its letters."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{name} must be a list; it is {values!r:.80}.")
    return tuple(values)


def texts(name: str, values: object) -> tuple[str, ...]:
    """`values` as a tuple of texts; a lone text is refused."""
    return tuple(text(f"{name}[{place}]", value) for place, value in enumerate(many(name, values)))


def text(name: str, value: object) -> str:
    """`value`, which must be a text."""
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a text; it is {value!r:.80}.")
    return value


def one_of(what: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse what is none of `known`."""
    if value not in known:
        raise UsageError(f"The {what} {value!r} is not one of {', '.join(known)}.")


def path(name: str, value: Any) -> Path:
    """`value` as a path; its text must be one that a file system can take."""
    try:
        found = Path(value)
        usable = b"\0" not in os.fsencode(found)
    except (TypeError, ValueError):
        usable = False
    if not usable:
        raise UsageError(f"{name} must be a path; it is {value!r:.80}.")
    return found
