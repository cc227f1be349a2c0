"""Drafters: what guesses the next tokens. A wrong guess costs time, never a different text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runtime.branches import Branches
from runtime.errors import DraftError
from runtime.sampling import Sampling, rank
from runtime.session import GraphSession

Tokens: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Guess:
    """A drafted token and the tokens that came next in rank at its place, best first."""

    token: int
    runner_ups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Where guesses begin: after the first `place` tokens of a text, and then `tokens`."""

    place: int
    tokens: tuple[int, ...] = ()

    def after(self, text: Tokens) -> Tokens:
        """All that the guesses come after, [n] int64."""
        return np.append(text[: self.place], np.array(self.tokens, np.int64))


Rollout: TypeAlias = Callable[[], Sequence[Guess]]  # its guesses, made when they are asked for


class Drafter(Protocol):
    """Guesses what follows a text; used by one thread."""

    source: str

    def catch_up(self, context: Tokens) -> bool:
        """Do one bounded piece of the work that `context` needs; True when none is left."""

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        """One pass: for each of `starts` in `text` [n] int64, up to `count` guesses.

        There are fewer where a pass gives fewer, and none where the drafter steps aside.
        """

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
        runner_ups: int = 8,
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
        self._masks = tuple(range(session.vocabulary, session.vocabulary + tokens_per_pass - 1))
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

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        """All starts side by side, as branches of one text: its own tokens, then masks.

        Those that the draft's own context has no room for, which are the last, get no guesses.
        """
        room = self._session.context - len(text)
        packed = _Packed(text)
        for start in starts if room >= 0 else ():
            masks = self._masks[: max(0, min(count - 1, room - len(start.tokens)))]
            if len(start.tokens) + len(masks) > room or count < 1:
                break
            room -= len(start.tokens) + len(masks)
            packed.add(start, masks)
        rows = packed.run(self._session) if packed.rows else []

        def rollout(start: Start, logits: NDArray[np.float32]) -> Rollout:
            return lambda: self._guesses(start.after(text), logits, sampling)

        found = [rollout(start, logits) for start, logits in zip(starts, rows, strict=False)]
        return found + [list] * (len(starts) - len(found))

    def _guesses(
        self, context: Tokens, logits: NDArray[np.float32], sampling: Sampling
    ) -> list[Guess]:
        """The guesses that rows of logits [n, width] give for the places after `context`."""
        guesses = []
        count = 1 + self._runner_ups
        for row in logits:
            scores = row[: self._vocabulary if self._head is None else len(self._head)]
            token, *others = rank(scores, context, sampling, count, tokens=self._head)
            guesses.append(Guess(token, tuple(others)))
            context = np.append(context, token)
        return guesses

    def stop(self) -> None:
        """End the pass by an error in its own thread."""
        self._session.stop()


class _Packed:
    """Starts side by side in one call: what is fed, and which rows of logits belong to each."""

    def __init__(self, text: Tokens) -> None:
        self.rows: list[list[int]] = []  # places in the text, then in the nodes behind it
        self._text = text
        self._tokens: list[int] = []
        self._parents: list[int] = []

    def add(self, start: Start, masks: Sequence[int]) -> None:
        """Hang the start's tokens, and masks behind them, from its place."""
        above = start.place - 1
        rows = [] if start.tokens else [above]
        for depth, token in enumerate((*start.tokens, *masks), 1):
            self._parents.append(above)
            self._tokens.append(token)
            above = len(self._text) + len(self._tokens) - 1
            if depth >= len(start.tokens):
                rows.append(above)
        self.rows.append(rows)

    def run(self, session: GraphSession[Any]) -> list[NDArray[np.float32]]:
        """Run the call; the logits [guesses, width] of each start, which are the caller's own."""
        first = min(min(rows) for rows in self.rows)
        first = min(first, len(self._text) - 1)
        branches = Branches(tuple(self._tokens), tuple(self._parents))
        given = session.extend(self._text, num_logits=len(self._text) - first, branches=branches)
        due = (len(self._text) - first + len(branches), session.logits_width)
        if given.shape != due or given.dtype != np.float32:
            raise DraftError(
                f"The draft gave logits of shape {given.shape} in {given.dtype}; {due} in float32 "
                "was due."
            )
        return [given[np.array(rows) - first] for rows in self.rows]


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

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        """Copy `count` tokens; where the text that is copied from ends, it goes round."""
        found = [self.copied(start.after(text), count)[1] for start in starts]
        return [guesses.copy for guesses in found]

    def copied(self, context: Tokens, count: int) -> tuple[int, list[Guess]]:
        """How many tokens at the text's end stood before, and the guesses of what follows them."""
        matched, places = self._matches(context)
        if not places.size or count < 1:
            return 0, []
        others = tuple(dict.fromkeys(int(token) for token in context[places[::-1]]))
        first, *rest = np.resize(context[places[-1] :], count).tolist()
        return matched, [Guess(first, others[1 : 1 + self._runner_ups]), *map(Guess, rest)]

    def stop(self) -> None:
        """No pass takes long."""

    def _matches(self, context: Tokens) -> tuple[int, Tokens]:
        """The longest n-gram of the end that occurred earlier: its size, and the places behind."""
        size, found = 0, np.arange(1, len(context))
        for longer in range(1, min(self._longest, len(context) - 1) + 1):
            places = found[int(found[0] < longer) :]  # ascending: one place at most is too early
            places = places[context[places - longer] == context[-longer]]
            if not places.size:
                break
            size, found = longer, places
        return (size, found) if size >= self._shortest else (0, found[:0])


class LookupFirst:
    """Prompt lookup where the last two tokens stood before, which costs nothing; else a model.

    For models that share one processor, where a pass of the draft delays the target's. In this
    project's held-out answers a repeated pair was followed by the same token in 0.5 of cases, four
    repeated tokens in 0.9.
    """

    source = "model"

    def __init__(self, model: Drafter) -> None:
        """Ask `model` where there is nothing to copy."""
        self._model, self._lookup = model, LookupDrafter(shortest=2)

    def catch_up(self, context: Tokens) -> bool:
        """The model's work."""
        return self._model.catch_up(context)

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        """What followed elsewhere, or the model's guesses."""
        copied = {start: self._lookup.copied(start.after(text), count)[1] for start in starts}
        rest = [start for start in starts if not copied[start]]
        own = (
            dict(zip(rest, self._model.draft(text, rest, count, sampling), strict=True))
            if rest
            else {}
        )
        return [own.get(start, copied[start].copy) for start in starts]

    def stop(self) -> None:
        """End the model's pass."""
        self._model.stop()
