"""Show an answer while it is written: whole characters only, and nothing of a stop string."""

import codecs
from bisect import bisect_right
from collections.abc import Sequence

from runtime.checks import texts
from runtime.errors import UsageError
from runtime.text import Text


class TextStream:
    """Turns tokens into pieces of text that are safe to show and are never taken back.

    The pieces joined are `text.decode(tokens)`, up to where the first stop string begins. The first
    stop string is the one that is complete first, as if the text came character by character; of
    two that end together, the longer. `stopped` tells that one was found; `tokens_kept` is the
    number of tokens that lie wholly before it, or of all tokens so far. Raises UsageError for an
    empty stop string, and for what is no list of texts.
    """

    def __init__(self, text: Text, stops: Sequence[str] = ()) -> None:
        self._stops = texts("stop", stops)
        if "" in self._stops:
            raise UsageError("A stop string must hold at least one character.")
        self.stopped = False
        self.tokens_kept = 0
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._shown = 0
        self._skip = text.leading_spaces
        self._ends: list[int] = []

    def push(self, token: int) -> str:
        """Take the next token; give the text that is now certain, which may be none."""
        if self.stopped:
            return ""
        self._hold(self._decoder.decode(self._text.token_bytes(token)))
        unfinished = bool(self._decoder.getstate()[0])
        # Bytes of an unfinished character will make one character, whether it is valid or not.
        self._ends.append(self._shown + len(self._held) + unfinished)
        self.tokens_kept += 1
        return self._release()

    def finish(self) -> str:
        """End the text: give what was held back, with U+FFFD for an unfinished character."""
        if self.stopped:
            return ""
        self._hold(self._decoder.decode(b"", final=True))
        piece = self._release()
        if not self.stopped:
            piece += self._held
            self._shown, self._held = self._shown + len(self._held), ""
        return piece

    def _hold(self, new: str) -> None:
        """Take decoded characters, less the spaces at the start that the tokenizer added."""
        spaces = len(new) - len(new.lstrip(" "))
        dropped = min(spaces, self._skip)
        self._skip = self._skip - dropped if spaces == len(new) else 0
        self._held += new[dropped:]

    def _release(self) -> str:
        """Cut the held text at a stop string, or keep back the longest start of one at its end."""
        found = [
            (place + len(stop), place)
            for stop in self._stops
            if (place := self._held.find(stop)) >= 0
        ]
        if found:
            self.stopped = True
            cut = min(found)[1]
            self.tokens_kept = bisect_right(self._ends, self._shown + cut)
        else:
            cut = len(self._held) - self._start_of_a_stop()
        piece = self._held[:cut]
        self._held = "" if self.stopped else self._held[cut:]
        self._shown += cut
        return piece

    def _start_of_a_stop(self) -> int:
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
