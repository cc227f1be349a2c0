"""Where the chat's questions come from: an editing prompt on a terminal, or plain lines."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from runtime.chat_flags import well_formed

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "
CONTINUATION = ". "

Read = Callable[[], str]


def open_reader(
    stdin: TextIO, stdout: TextIO, stderr: TextIO, *, history: Path, plain: bool
) -> Read:
    """A function that returns the next question.

    It raises EOFError at the end of the input and KeyboardInterrupt for Ctrl-C. The editing prompt
    serves where both ends are a terminal, prompt_toolkit is installed, and not `plain`.
    """
    terminal = stdin.isatty() and stdout.isatty()
    if terminal and not plain and importlib.util.find_spec("prompt_toolkit") is not None:
        return editing_reader(history)
    return plain_reader(stdin, stderr)


def plain_reader(stdin: TextIO, prompts: TextIO) -> Read:
    """Reads lines; one that ends with a backslash goes on with the next."""

    def read() -> str:
        lines: list[str] = []
        while True:
            prompts.write(CONTINUATION if lines else PROMPT)
            prompts.flush()
            try:
                line = stdin.readline()
            except KeyboardInterrupt:
                prompts.write("\n")
                raise
            if not line and not lines:
                prompts.write("\n")
                raise EOFError
            text = line.removesuffix("\n")
            if line and text.endswith("\\"):
                lines.append(text[:-1])
                continue
            return "\n".join([*lines, text])

    return read


def editing_reader(history: Path) -> Read:
    """Reads with editing and a history file; Alt-Enter or a backslash at the end adds a line."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation=CONTINUATION,
        key_bindings=_key_bindings(),
        history=_open_history(history),
    )
    return lambda: well_formed(session.prompt())


def _key_bindings() -> "KeyBindings":
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


def _open_history(path: Path) -> "History":
    """The history in `path`, for the user's eyes only; in memory where it cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class KeptHistory(FileHistory):
        def store_string(self, string: str) -> None:
            """Append to the file; a full disk, or half a character, is no reason to stop."""
            try:
                super().store_string(string)
            except (OSError, UnicodeError):
                return

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.read_bytes()
    except OSError:
        return InMemoryHistory()
    return KeptHistory(path)
