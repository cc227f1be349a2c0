"""Reads JSON from anywhere into dataclasses; what is not expected is refused, with its place."""

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

from runtime.errors import BundleError

MOST_BYTES = 4 << 20  # a manifest has a few thousand
T = TypeVar("T")


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises BundleError for a file that is missing, unreadable, larger than MOST_BYTES or a Git LFS
    pointer, for JSON that is broken, nested too deeply or not an object, for a key that stands
    twice in an object, for NaN and infinities, and for control characters and unpaired surrogates.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise BundleError(f"{path.parent} is not a bundle: it has no {path.name}.") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(content) > MOST_BYTES:
        raise BundleError(f"{path} is larger than {MOST_BYTES >> 20} MB, too large for what it is.")
    if is_lfs_pointer(content):
        raise BundleError(lfs_sentence(path))
    try:
        data = json.loads(
            content.decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise BundleError(f"{path} is nested too deeply.") from None
    except ValueError as error:
        raise BundleError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(data, dict):
        raise BundleError(f"{path} does not hold an object.")
    return data


def is_lfs_pointer(content: bytes) -> bool:
    """Whether a file that begins with `content` is the text that Git LFS keeps in place of it."""
    return content.startswith(b"version ") and b"git-lfs" in content.partition(b"\n")[0]


def lfs_sentence(path: Path) -> str:
    """What to say of a Git LFS pointer in a file's place."""
    return f"{path} is a Git LFS pointer, not the file itself: fetch it with git lfs pull."


def read_dataclass(kind: type[T], value: Any, where: str) -> T:
    """Turn a parsed object into `kind`, made of dataclasses, lists, dicts and plain values.

    Raises BundleError, naming the place, for a key that is unknown or missing and for a value of
    another type.
    """
    if not isinstance(value, dict):
        raise BundleError(f"{where} is {value!r:.80} where an object is needed.")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(value) - set(hints))
    if unknown:
        raise BundleError(f"{where} has the unknown key {unknown[0]!r:.80}.")
    required = {
        item.name
        for item in dataclasses.fields(typing.cast(Any, kind))
        if item.default is item.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - set(value))
    if missing:
        raise BundleError(f"{where} lacks the key {missing[0]!r}.")
    fields = {key: _read(hints[key], item, f"{where}.{key}") for key, item in value.items()}
    try:
        return kind(**fields)
    except BundleError as error:
        raise BundleError(f"{where}: {error}") from error


def _read(kind: Any, value: Any, where: str) -> Any:
    """Turn parsed JSON into `kind`, a dataclass or one of the types its fields use."""
    if dataclasses.is_dataclass(kind):
        return read_dataclass(typing.cast(type[Any], kind), value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal and isinstance(value, str) and value in arguments:
        return value
    if origin is types.UnionType:
        present = next(argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else _read(present, value, where)
    if origin is list and isinstance(value, list):
        return [_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _read(arguments[1], item, f"{where}.{key:.80}") for key, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _float(value, where)
    if kind in (int, str) and type(value) is kind:
        return value
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    raise BundleError(f"{where} is {value!r:.80} where {name} is needed.")


def _float(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BundleError(f"{where} is {value!r:.80} where a finite number is needed.")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.80} stands twice in one object")
        for text in (key, value):
            if isinstance(text, str):
                _check_text(text)
        found[key] = value
    return found


def _check_text(text: str) -> None:
    if any(mark < " " or mark == "\x7f" or "\ud800" <= mark <= "\udfff" for mark in text):
        raise ValueError(f"{text!r:.80} holds a control character or half a character")


def _refuse_constant(text: str) -> float:
    raise ValueError(f"the number {text} is not allowed")
