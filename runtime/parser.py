"""The parser of every command line: errors are UsageError, and a misspelt flag is answered."""

import argparse
import difflib
import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from runtime.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# What other programs call a flag, where the spelling does not lead to it.
ELSEWHERE = {
    "--ctx-size": "--context-length",
    "--n-predict": "--max-new-tokens",
    "--num-predict": "--max-new-tokens",
}


class Parser(argparse.ArgumentParser):
    """argparse's, which neither prints errors nor leaves the program at one."""

    def error(self, message: str) -> NoReturn:
        """Leave the choice of stream and exit code to the caller."""
        what, _, words = message.partition("unrecognized arguments: ")
        if not what and words:
            message += self._hint(words.split())
        raise UsageError(message)

    def _hint(self, words: Sequence[str]) -> str:
        """What was probably meant by the first of the words, as the end of a sentence."""
        known = list(_flags(self))
        if not words[0].startswith("-"):
            return '; a question is asked with --prompt "TEXT"' if "--prompt" in known else ""
        meant = likely(words[0].partition("=")[0], known)
        return f"; did you mean {' or '.join(meant)}?" if meant else ""

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """Print as argparse does, but let a full disk be an error."""
        (file or sys.stderr).write(message)


def new_parser(program: str, description: str, epilog: str) -> Parser:
    """A parser with --version alone, whose errors are UsageError."""
    parser = Parser(
        prog=program,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{program} {version()}")
    return parser


def likely(flag: str, known: Sequence[str]) -> list[str]:
    """The flags of `known` that an unknown one may mean: named so elsewhere, begun so, or alike."""
    if not flag.startswith("--") or flag in known:
        return []
    if ELSEWHERE.get(flag) in known:
        return [ELSEWHERE[flag]]
    begun = [name for name in known if name.startswith(flag)]
    return begun if 0 < len(begun) < 4 else difflib.get_close_matches(flag, known, n=1, cutoff=0.7)


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The long flags of a parser and of its subcommands."""
    for action in parser._actions:
        yield from (name for name in action.option_strings if name.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _flags(inner)


def version() -> str:
    """The version of this package."""
    try:
        return importlib.metadata.version("mirror-sd")
    except importlib.metadata.PackageNotFoundError:
        return "(a source tree, not installed)"
