"""Whatever bytes a JSON file holds, reading it gives an object or a sentence that names it."""

import contextlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from runtime.errors import BundleError
from runtime.strict_json import MOST_BYTES, read_dataclass, read_object


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    kind: Literal["a", "b"]
    inners: dict[str, Inner]
    places: list[int]
    more: Inner | None = None


VALID = {"name": "n", "share": 1, "kind": "a", "inners": {"x": {"number": 1}}, "places": [1, 2]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "does not hold an object"),
        (b"null", "does not hold an object"),
        (b'{"a": NaN}', "NaN is not allowed"),
        (b'{"a": -Infinity}', "-Infinity is not allowed"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'{"b": {"a": 1, "a": 1}}', "'a' stands twice"),
        (b'{"a": "\\u0000"}', "control character"),
        (b'{"a": "\\ud800"}', "half a character"),
        (b'{"\\udc00": 1}', "half a character"),
        (b'{"a": "\\u001b[2J"}', "control character"),
        (b'\xff\xfe{"a": 1}', "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * (MOST_BYTES + 1), "larger than 4 MB"),
        (b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
    ],
)
def test_what_is_refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(BundleError, match=message) as caught:
        read_object(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"not a bundle: it has no absent\.json"):
        read_object(tmp_path / "absent.json")
    with pytest.raises(BundleError, match="cannot be read"):
        read_object(tmp_path)


def test_a_pair_of_surrogates_is_a_character(file: Path) -> None:
    file.write_bytes(b'{"a": "\\ud83d\\ude00 \xc3\xbc"}')
    assert read_object(file) == {"a": "\N{GRINNING FACE} ü"}


def test_a_dataclass_is_read() -> None:
    assert read_dataclass(Outer, VALID, "it") == Outer("n", 1.0, "a", {"x": Inner(1)}, [1, 2])
    assert read_dataclass(Outer, VALID | {"more": {"number": 3}}, "it").more == Inner(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "it has the unknown key 'colour'"),
        ({"name": 1}, r"it\.name is 1 where str is needed"),
        ({"share": 10**400}, r"it\.share is 10{79} where a finite number is needed"),
        ({"share": 1e400}, r"it\.share is inf where a finite number is needed"),
        ({"share": True}, r"it\.share is True"),
        ({"kind": "c"}, r"it\.kind is 'c'"),
        ({"kind": []}, r"it\.kind is \[\]"),
        ({"inners": []}, r"it\.inners is \[\]"),
        ({"inners": {"x": {}}}, r"it\.inners\.x lacks the key 'number'"),
        ({"inners": {"x": None}}, r"it\.inners\.x is None where an object is needed"),
        ({"places": [1, 2.0]}, r"it\.places\[1\] is 2\.0 where int is needed"),
        ({"more": 3}, r"it\.more is 3"),
    ],
)
def test_other_values_are_refused_with_their_place(change: dict[str, object], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        read_dataclass(Outer, VALID | change, "it")


def test_changed_bytes_never_give_another_exception(file: Path) -> None:
    noise = random.Random(7)
    for _ in range(500):
        content = bytearray(json.dumps(VALID).encode())
        for _ in range(noise.randint(1, 4)):
            content[noise.randrange(len(content))] = noise.choice(b'{}[]",:0e9\\u\x00\xff')
        file.write_bytes(content)
        with contextlib.suppress(BundleError):
            read_dataclass(Outer, read_object(file), "it")
