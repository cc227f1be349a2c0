"""Drafters: what guesses the next tokens. A wrong guess costs time, never a different text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DraftError
from runtime.sampling import Sampling, rank
from runtime.session import GraphSession

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Guess:
    """A drafted token and the tokens that came next in rank at its place, best first."""

    token: int
    runner_ups: tuple[int, ...] = ()


class Drafter(Protocol):
    """Guesses what follows a text; used by one thread."""

    source: str

    def catch_up(self, context: Tokens) -> bool:
        """Do one bounded piece of the work that `context` needs; True when none is left."""

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Guess]:
        """Guess up to `count` tokens after `context` [n] int64, one pass of work for each."""

    def stop(self) -> None:
        """End a pass that is under way, where that can be; called by another thread."""


class ModelDrafter:
    """A draft model, one token a pass, choosing with the target's own noise.

    The shared noise makes draft and target agree more often at temperature > 0 (Daliri, Musco,
    Suresh 2024, drafter-invariant speculative decoding).
    """

    source = "model"

    def __init__(self, session: GraphSession[Any], *, vocabulary: int, runner_ups: int = 1) -> None:
        """Draft with `session`; each guess names `runner_ups` other tokens.

        vocabulary: ids from there up are the draft's own padding, never a guess.
        """
        self._session = session
        self._vocabulary = vocabulary
        self._runner_ups = runner_ups

    def catch_up(self, context: Tokens) -> bool:
        """Feed one chunk of `context`; a context longer than the draft's own is given up."""
        if len(context) <= self._session.context:
            if not self._session.prefill(context):
                return False
            self._session.extend(context)
        return True

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Guess]:
        """One pass a token; ends early where the draft's own context is full."""
        count = min(count, self._session.context - len(context) + 1)
        for _ in range(count):
            logits = self._session.extend(context)
            _check(logits, self._session.vocabulary)
            row = logits[0, : self._vocabulary]
            token, *others = rank(row, context, sampling, 1 + self._runner_ups)
            yield Guess(token, tuple(others))
            context = np.append(context, token)

    def stop(self) -> None:
        """End the pass by an error in its own thread."""
        self._session.stop()


class LookupDrafter:
    """Prompt lookup: what followed the last tokens where they stood before (Saxena 2023).

    Needs no model. The longest n-gram that occurred earlier wins, of its places the latest; the
    tokens that followed it elsewhere are the runner-ups.
    """

    source = "lookup"

    def __init__(self, *, longest: int = 3, runner_ups: int = 3) -> None:
        """Match n-grams of `longest` down to one token; name up to `runner_ups` other tokens."""
        self._longest = longest
        self._runner_ups = runner_ups

    def catch_up(self, context: Tokens) -> bool:
        """Nothing is kept between calls."""
        return True

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Guess]:
        """Copy `count` tokens; where the text that is copied from ends, it goes round."""
        places = self._matches(context)
        if not places.size:
            return
        others = tuple(dict.fromkeys(int(token) for token in context[places[::-1]]))
        copied = np.resize(context[places[-1] :], count)
        for index, token in enumerate(copied):
            yield Guess(int(token), others[1 : 1 + self._runner_ups] if index == 0 else ())

    def stop(self) -> None:
        """No pass takes long."""

    def _matches(self, context: Tokens) -> Tokens:
        """The places that follow an earlier occurrence of the longest known n-gram, ascending."""
        for size in range(min(self._longest, len(context) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(context[:-1], size)
            places = np.flatnonzero((windows == context[-size:]).all(axis=1)) + size
            if places.size:
                return places
        return np.empty(0, np.int64)


def _check(logits: NDArray[np.float32], vocabulary: int) -> None:
    """Refuse, with a DraftError, all but one row of logits as `choose` takes it."""
    if logits.shape != (1, vocabulary) or logits.dtype != np.float32:
        raise DraftError(
            f"The draft gave logits of shape {logits.shape} in {logits.dtype}; "
            f"(1, {vocabulary}) in float32 was due."
        )
