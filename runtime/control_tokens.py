"""Keep the control tokens of a chat template apart from the same characters in a user's text."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runtime.errors import TextError

# Noncharacters: Unicode keeps them for use inside a program, so texts hardly ever hold one.
_NONCHARACTERS = [*range(0xFDD0, 0xFDF0), *range(0x1FFFE, 0x110000, 0x10000)]


class ControlTokens:
    """The control tokens of a tokenizer; `added` are its added tokens by id.

    Before a template is rendered, `hide` puts a stand-in for the first character of every control
    token in a user's text; the rendered text is then cut at the control tokens that are left, which
    are the template's own. A stand-in is one character for one, so that a template which measures,
    strips or compares a text finds what it would have found.
    """

    def __init__(self, added: Mapping[int, Any]) -> None:
        special = [(token.content, number, token) for number, token in added.items()]
        special = [entry for entry in special if entry[2].special]
        special.sort(key=lambda entry: len(entry[0]), reverse=True)
        self._contents = [content for content, _, _ in special]
        self._ids = [number for _, number, _ in special]
        # A lookahead, so that tokens which overlap are all found.
        self._starts = re.compile(f"(?={'|'.join(map(re.escape, self._contents))})")
        self._cutter = re.compile(
            "|".join(
                (r"\s*" if token.lstrip else "")
                + f"({re.escape(content)})"
                + (r"\s*" if token.rstrip else "")
                for content, _, token in special
            )
        )

    def stand_ins(self, texts: Iterable[str]) -> dict[str, str]:
        """Pick a noncharacter that is in none of `texts` for each first character of a token.

        Raises TextError when there are not enough of them.
        """
        present = set().union(*texts)
        free = [mark for mark in map(chr, _NONCHARACTERS) if mark not in present]
        firsts = sorted({content[0] for content in self._contents})
        if len(free) < len(firsts):
            raise TextError(
                "The messages hold nearly all of Unicode's noncharacters; remove some of them."
            )
        return dict(zip(firsts, free, strict=False))

    def hide(self, text: str, stand_ins: Mapping[str, str]) -> str:
        """Hide the control tokens in a text, and the start of one at its end.

        What follows in the template, or in the next message, could complete that start.
        """
        if not self._contents:
            return text
        places = [match.start() for match in self._starts.finditer(text)]
        for place in range(max(len(text) - len(self._contents[0]) + 1, 0), len(text)):
            if any(content.startswith(text[place:]) for content in self._contents):
                places.append(place)
        characters = list(text)
        for place in set(places):
            characters[place] = stand_ins[text[place]]
        return "".join(characters)

    def split(self, rendered: str, stand_ins: Mapping[str, str]) -> Iterator[str | int]:
        """Cut a rendered text into control token ids and the text between them, unhidden."""
        shown = {ord(mark): first for first, mark in stand_ins.items()}
        start = 0
        for match in self._cutter.finditer(rendered) if self._contents else ():
            if match.start() > start:
                yield rendered[start : match.start()].translate(shown)
            yield self._ids[(match.lastindex or 1) - 1]
            start = match.end()
        if start < len(rendered):
            yield rendered[start:].translate(shown)
