"""Drafters: what guesses the next tokens. A wrong guess costs time, never a different text."""

from collections.abc import Iterator, Sequence
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

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Sequence[Guess]]:
        """Guess up to `count` tokens after `context` [n] int64; each item is one pass of work."""

    def stop(self) -> None:
        """End a pass that is under way, where that can be; called by another thread."""


class ModelDrafter:
    """A draft model, one token or several a pass, choosing with the target's own noise.

    The shared noise makes draft and target agree more often at temperature > 0 (Daliri, Musco,
    Suresh 2024, drafter-invariant speculative decoding). Several tokens come of mask tokens behind
    the text, each trained to guess one place further on (Monea et al. 2023, PaSS; An et al. 2025,
    PARD).
    """

    source = "model"

    def __init__(
        self,
        session: GraphSession[Any],
        *,
        vocabulary: int,
        runner_ups: int = 1,
        tokens_per_pass: int = 1,
        head_tokens: Tokens | None = None,
    ) -> None:
        """Draft with `session`; each guess names `runner_ups` other tokens.

        vocabulary: ids from there up are the draft's own padding, never a guess. tokens_per_pass:
        k, for which the model knows k - 1 mask tokens, with the ids that follow its vocabulary.
        head_tokens [n], ascending: the tokens that the columns of its logits are about; None: all.
        """
        self._session = session
        self._vocabulary = vocabulary
        self._runner_ups = runner_ups
        self._masks = session.vocabulary + np.arange(tokens_per_pass - 1)
        self._head = head_tokens
        if head_tokens is not None:
            self._head = head_tokens[head_tokens < vocabulary]

    def catch_up(self, context: Tokens) -> bool:
        """Feed one chunk of `context`; a context longer than the draft's own is given up."""
        if len(context) <= self._session.context:
            if not self._session.prefill(context):
                return False
            self._session.extend(context)
        return True

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Sequence[Guess]]:
        """As few passes as it takes; ends early where the draft's own context is full."""
        count = min(count, self._session.context - len(context) + 1)
        while count > 0:
            masks = self._masks[: count - 1]
            logits = self._session.extend(np.append(context, masks), num_logits=len(masks) + 1)
            _check(logits, (len(masks) + 1, self._session.logits_width))
            guesses = []
            for row in logits:
                guesses.append(self._guess(row, context, sampling))
                context = np.append(context, guesses[-1].token)
            yield guesses
            count -= len(guesses)

    def _guess(self, row: NDArray[np.float32], context: Tokens, sampling: Sampling) -> Guess:
        """The guess that a row of logits gives for the place after `context`."""
        scores = row[: self._vocabulary if self._head is None else len(self._head)]
        token, *others = rank(scores, context, sampling, 1 + self._runner_ups, tokens=self._head)
        return Guess(token, tuple(others))

    def stop(self) -> None:
        """End the pass by an error in its own thread."""
        self._session.stop()


class LookupDrafter:
    """Prompt lookup: what followed the last tokens where they stood before (Saxena 2023).

    Needs no model. The longest n-gram that occurred earlier wins, of its places the latest; the
    tokens that followed it elsewhere are the runner-ups.
    """

    source = "lookup"

    def __init__(self, *, longest: int = 3, shortest: int = 1, runner_ups: int = 3) -> None:
        """Match n-grams of `longest` down to `shortest` tokens; name up to `runner_ups` others."""
        self._longest, self._shortest = longest, shortest
        self._runner_ups = runner_ups

    def catch_up(self, context: Tokens) -> bool:
        """Nothing is kept between calls."""
        return True

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Sequence[Guess]]:
        """Copy `count` tokens; where the text that is copied from ends, it goes round."""
        places = self._matches(context)
        if not places.size or count < 1:
            return
        others = tuple(dict.fromkeys(int(token) for token in context[places[::-1]]))
        first, *rest = np.resize(context[places[-1] :], count).tolist()
        yield [Guess(first, others[1 : 1 + self._runner_ups]), *map(Guess, rest)]

    def stop(self) -> None:
        """No pass takes long."""

    def _matches(self, context: Tokens) -> Tokens:
        """The places that follow an earlier occurrence of the longest known n-gram, ascending."""
        for size in range(min(self._longest, len(context) - 1), self._shortest - 1, -1):
            windows = np.lib.stride_tricks.sliding_window_view(context[:-1], size)
            places = np.flatnonzero((windows == context[-size:]).all(axis=1)) + size
            if places.size:
                return places
        return np.empty(0, np.int64)


class LookupFirst:
    """Prompt lookup where the last two tokens stood before, which costs nothing; else a model.

    For models that share one processor, where a pass of the draft delays the target's. In this
    project's held-out answers a repeated pair was followed by the same token in 0.5 of cases, four
    repeated tokens in 0.9.
    """

    source = "model"

    def __init__(self, model: Drafter, *, most: int | None = None) -> None:
        """Ask `model` where there is nothing to copy, for `most` tokens at most."""
        self._model, self._lookup, self._most = model, LookupDrafter(shortest=2), most

    def catch_up(self, context: Tokens) -> bool:
        """The model's work."""
        return self._model.catch_up(context)

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Sequence[Guess]]:
        """What followed elsewhere, or the model's guesses."""
        copied = list(self._lookup.draft(context, count, sampling))
        asked = count if self._most is None else min(count, self._most)
        yield from copied or self._model.draft(context, asked, sampling)

    def stop(self) -> None:
        """End the model's pass."""
        self._model.stop()


def _check(logits: NDArray[np.float32], due: tuple[int, int]) -> None:
    """Refuse, with a DraftError, all but such rows of logits as `rank` takes."""
    if logits.shape != due or logits.dtype != np.float32:
        raise DraftError(
            f"The draft gave logits of shape {logits.shape} in {logits.dtype}; {due} in float32 "
            "was due."
        )
