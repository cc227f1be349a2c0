import io
from typing import Any

import pytest

from runtime.screen import Screen, shown_value


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_answers_and_notes_go_to_their_streams() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    screen = Screen(stdout, stderr)
    screen.piece("a\x1b[31m")
    screen.piece("b")
    screen.end_answer()
    screen.note("said")
    assert (stdout.getvalue(), stderr.getvalue()) == ("a\x1b[31mb\n", "said\n")


def test_a_terminal_sees_control_characters_as_pictures() -> None:
    stdout = Terminal()
    Screen(stdout, io.StringIO()).piece("a\n\tb\x1b[2J\r\x7f\x9b😀 สวัสดี")
    assert stdout.getvalue() == "a\n\tb␛[2J␍␡\ufffd😀 สวัสดี"


def test_a_closed_stderr_is_no_error_and_a_closed_stdout_is() -> None:
    screen = Screen(Closed(), Closed())
    screen.note("said")
    screen.rows("title", {"a": 1})
    with pytest.raises(BrokenPipeError):
        screen.piece("a")


def test_rows_without_a_terminal_are_plain_lines() -> None:
    stderr = io.StringIO()
    Screen(io.StringIO(), stderr).rows("title", {"a": 1, "longer": 0.123456})
    assert stderr.getvalue() == "title\n  a       1\n  longer  0.1235\n"


def test_rows_on_a_terminal_are_framed_and_brackets_are_no_markup() -> None:
    stderr = Terminal()
    Screen(io.StringIO(), stderr).rows("commands", [("name", "[bold]x[/nonsense]\x1b")])
    for word in ("commands", "name", "[bold]x[/nonsense]␛", "╭"):
        assert word in stderr.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (3, "3"),
        (1234567, "1234567"),
        (1 / 3, "0.3333"),
        ("text", "text"),
        ([], "-"),
        ([0.5, 1], "0.5, 1"),
        ({"a": 1, "b": None}, "a 1, b -"),
        ({}, "-"),
    ],
)
def test_values_in_few_characters(value: Any, shown: str) -> None:
    assert shown_value(value) == shown
