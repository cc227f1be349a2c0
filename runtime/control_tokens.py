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
        self._tokens = {
            token.content: (number, token) for number, token in added.items() if token.special
        }
        # One alternative for each token would be tried at every place of a text; a model may have
        # thousands of them, and nearly all begin with the same character.
        self._lengths = sorted(set(map(len, self._tokens)), reverse=True)
        firsts = "".join({content[0] for content in self._tokens})
        self._starts = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    def stand_ins(self, texts: Iterable[str]) -> dict[str, str]:
        """Pick a noncharacter that is in none of `texts` for each first character of a token.

        Raises TextError when there are not enough of them.
        """
        present = set().union(*texts)
        free = [mark for mark in map(chr, _NONCHARACTERS) if mark not in present]
        firsts = sorted({content[0] for content in self._tokens})
        if len(free) < len(firsts):
            raise TextError(
                "The messages hold nearly all of Unicode's noncharacters; remove some of them."
            )
        return dict(zip(firsts, free, strict=False))

    def hide(self, text: str, stand_ins: Mapping[str, str]) -> str:
        """Hide the control tokens in a text, and the start of one at its end.

        What follows in the template, or in the next message, could complete that start.
        """
        places = [place for place, _ in self._found(text)]
        longest = self._lengths[0] if self._lengths else 1
        for place in range(max(len(text) - longest + 1, 0), len(text)):
            if any(content.startswith(text[place:]) for content in self._tokens):
                places.append(place)
        characters = list(text)
        for place in set(places):
            characters[place] = stand_ins[text[place]]
        return "".join(characters)

    def split(self, rendered: str, stand_ins: Mapping[str, str]) -> Iterator[str | int]:
        """Cut a rendered text into control token ids and the text between them, unhidden."""
        shown = {ord(mark): first for first, mark in stand_ins.items()}
        start = 0
        for place, content in self._found(rendered):
            if place < start:
                continue
            number, token = self._tokens[content]
            text = rendered[start:place]
            if text := text.rstrip() if token.lstrip else text:
                yield text.translate(shown)
            yield number
            start = place + len(content)
            while token.rstrip and rendered[start : start + 1].isspace():
                start += 1
        if start < len(rendered):
            yield rendered[start:].translate(shown)

    def _found(self, text: str) -> Iterator[tuple[int, str]]:
        """Where control tokens stand, those that overlap too; of those at one place the longest."""
        for match in self._starts.finditer(text) if self._starts else ():
            place = match.start()
            for length in self._lengths:
                if text[place : place + length] in self._tokens:
                    yield place, text[place : place + length]
                    break
