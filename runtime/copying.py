"""Prompt lookup in a text that grows: where its end stood before, without reading it all anew."""

from collections.abc import Iterable
from itertools import cycle, islice


class Copies:
    """What `LookupDrafter.copied` finds (Saxena 2023), in time that hardly grows with the text."""

    def __init__(self, longest: int) -> None:
        """Match n-grams of up to `longest` tokens, at least two."""
        self._longest = longest
        self._text: list[int] = []
        self._pairs: dict[tuple[int, int], list[int]] = {}  # places of each one's second token
        self._latest: dict[int, int] = {}  # the place of each token, the text's last one left out

    def add(self, tokens: Iterable[int]) -> None:
        """The text goes on with these."""
        text = self._text
        for token in tokens:
            if text:
                self._latest[text[-1]] = len(text) - 1
                self._pairs.setdefault((text[-1], token), []).append(len(text))
            text.append(token)

    def copied(self, count: int) -> tuple[int, list[int]]:
        """How many tokens at the end stood before, and the `count` tokens after them there.

        The longest n-gram wins, of its places the latest. Where the text that is copied from ends,
        it goes round.
        """
        size, place = self._match()
        if not size:
            return 0, []
        followed = self._text[place + 1 : place + 1 + count]
        return size, list(islice(cycle(followed), count))

    def _match(self) -> tuple[int, int]:
        """The length of the longest n-gram that stood before, and the place of its last token."""
        text = self._text
        if len(text) < 2:
            return 0, 0
        size, place = 0, 0
        for other in reversed(self._pairs[text[-2], text[-1]][:-1]):
            length = 2
            while length < min(self._longest, other + 1) and text[other - length] == text[~length]:
                length += 1
            if length > size:
                size, place = length, other
            if size == self._longest:
                break
        if not size and (latest := self._latest.get(text[-1])) is not None:
            return 1, latest
        return size, place
