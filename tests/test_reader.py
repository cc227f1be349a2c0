import io
import os
import stat
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from runtime.reader import editing_reader, open_reader, plain_reader


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def typed(keys: str, history: Path) -> str:
    """What the editing prompt returns when `keys` are pressed."""
    with create_pipe_input() as keyboard:
        keyboard.send_text(keys)
        with create_app_session(input=keyboard, output=DummyOutput()):
            return editing_reader(history)()


def test_plain_lines_and_continued_lines() -> None:
    prompts = io.StringIO()
    read = plain_reader(io.StringIO("one\n\ntwo\\\n\\\nthree\nfour"), prompts)
    assert [read(), read(), read(), read()] == ["one", "", "two\n\nthree", "four"]
    with pytest.raises(EOFError):
        read()
    assert prompts.getvalue() == "> > > . . > > \n"


def test_input_that_ends_inside_a_continued_line_is_not_lost() -> None:
    read = plain_reader(io.StringIO("one\\\n"), io.StringIO())
    assert read() == "one\n"
    with pytest.raises(EOFError):
        read()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("one\r", "one"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("  one\x1b\rtwo\r", "  one\ntwo"),
        ("a\\b\r", "a\\b"),
        ("\r", ""),
        ("\x1b[200~one\ntwo\x1b[201~\r", "one\ntwo"),
        ("Grüße 😀\r", "Grüße 😀"),
    ],
)
def test_keys_of_the_editing_prompt(keys: str, text: str, tmp_path: Path) -> None:
    assert typed(keys, tmp_path / "history") == text


def test_ctrl_c_and_ctrl_d_of_the_editing_prompt(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed("half\x03", tmp_path / "history")
    with pytest.raises(EOFError):
        typed("\x04", tmp_path / "history")


def test_history_is_kept_for_the_user_alone(tmp_path: Path) -> None:
    history = tmp_path / "cache" / "history"
    assert typed("one\\\rtwo\r", history) == "one\ntwo"
    assert typed("\x1b[A\r", history) == "one\ntwo"
    if os.name == "posix":
        assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_history_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert typed("one\r", tmp_path / "file" / "history") == "one"


def test_the_editing_prompt_is_for_terminals(tmp_path: Path) -> None:
    history = tmp_path / "history"
    stderr = io.StringIO()
    for stdout, plain in ((io.StringIO(), False), (Terminal(), True)):
        read = open_reader(Terminal("one\n"), stdout, stderr, history=history, plain=plain)
        assert read() == "one"
    assert stderr.getvalue() == "> > "
    assert not history.exists()
