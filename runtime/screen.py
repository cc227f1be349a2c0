"""What the chat shows: answers on standard output, everything said about them on standard error."""

import contextlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    ord("\n"): ord("\n"),
    ord("\t"): ord("\t"),
}


class Screen:
    """Two streams and how to write to them.

    A terminal gets frames (where rich is installed), and control characters as pictures, so that no
    text can move its cursor or change its colours; a file or a pipe gets plain text as it is.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._stdout_is_terminal = stdout.isatty()
        self._framed = stderr.isatty() and importlib.util.find_spec("rich") is not None

    def piece(self, text: str) -> None:
        """Show a piece of an answer at once; it is never taken back."""
        self._stdout.write(text.translate(CONTROLS) if self._stdout_is_terminal else text)
        self._stdout.flush()

    def end_answer(self) -> None:
        """End the line of an answer."""
        self._stdout.write("\n")
        self._stdout.flush()

    def note(self, text: str) -> None:
        """Say something beside the answers; a closed standard error is no reason to stop."""
        with contextlib.suppress(OSError):
            self._stderr.write(text.translate(CONTROLS) + "\n")
            self._stderr.flush()

    def rows(self, title: str, rows: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Show names and values beside each other."""
        shown = [(name, shown_value(value)) for name, value in dict(rows).items()]
        if self._framed:
            with contextlib.suppress(OSError):
                _print_framed(title, shown, self._stderr)
            return
        width = max((len(name) for name, _ in shown), default=0)
        self.note("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in shown)]))


def shown_value(value: Any) -> str:
    """A setting or a metric in a few characters: floats with four digits, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown_value(item)}" for name, item in value.items()) or "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(shown_value(item) for item in value) or "-"
    return str(value)


def _print_framed(title: str, rows: Sequence[tuple[str, str]], stream: TextIO) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    # Text objects, not strings: brackets in a value are no markup.
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value.translate(CONTROLS)))
    Console(file=stream).print(Panel(table, title=Text(title), expand=False))
