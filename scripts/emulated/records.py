"""Recorded answers: what a target wrote, and what its draft guessed at every place of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.drafter import Drafter, Start
from runtime.sampling import Sampling
from scripts.draft.texts import Written

RANKS = 9  # a guess and its runner-ups
NONE = -1  # where the draft named no further token

Tokens = NDArray[np.int64]
Guesses = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A prompt, its answer from `start` to `end`, and what the target would have said after it.

    tokens [n]: all three; nothing comes after an answer that its budget ended. guesses
    [end - start, places, RANKS]: of one pass after each token before the answer's next, by place
    and rank, NONE where there are fewer.
    """

    kind: str
    tokens: Tokens
    start: int
    end: int
    guesses: Guesses

    @property
    def prompt(self) -> Tokens:
        """The tokens before the answer."""
        return self.tokens[: self.start]

    @property
    def answer(self) -> Tokens:
        """The answer, its end token included where it has one."""
        return self.tokens[self.start : self.end]

    @property
    def end_token(self) -> int | None:
        """The token that ended it; None where the budget did."""
        return int(self.tokens[self.end - 1]) if len(self.tokens) > self.end else None

    def cut(self, count: int) -> "Record":
        """The same where the budget is `count` tokens."""
        if len(self.answer) <= count:
            return self
        end = self.start + count
        return replace(self, tokens=self.tokens[:end], end=end, guesses=self.guesses[:count])

    def agreement(self) -> NDArray[np.float64]:
        """How often the first guess is right at each place of a pass, [places]."""
        places = self.guesses.shape[1]
        right = [
            self.guesses[: len(self.answer) - place, place, 0] == self.answer[place:]
            for place in range(places)
        ]
        return np.array([each.mean() if each.size else np.nan for each in right])


def record(text: Written, drafter: Drafter, sampling: Sampling, *, places: int) -> Record:
    """What `drafter` guesses, in passes of `places` guesses, at every place of an answer."""
    count = len(text.tokens) - text.start
    guesses = np.full((count, places, RANKS), NONE, np.int32)
    for number in range(count):
        length = text.start + number
        (rollout,) = drafter.draft(text.tokens[:length], [Start(length)], places, sampling)
        for place, guess in enumerate(rollout()):
            ranked = (guess.token, *guess.runner_ups)[:RANKS]
            guesses[number, place, : len(ranked)] = ranked
    tokens = np.append(text.tokens, text.after)
    return Record(text.kind, tokens, text.start, len(text.tokens), guesses)


def scripted(of: Record, agreement: float, *, places: int, seed: int = 0) -> Record:
    """The answer with a made-up draft that is right at each place with this probability.

    Where it is wrong, its first runner-up is right with the same probability, and so on.
    """
    ranks = np.random.default_rng(seed).geometric(agreement, (len(of.answer), places)) - 1
    guesses = np.full((len(of.answer), places, RANKS), NONE, np.int32)
    guesses[:] = of.tokens.max() + 1 + np.arange(RANKS)  # never what the target says
    for number, place in np.argwhere(ranks < RANKS):
        if of.start + number + place < len(of.tokens):
            guesses[number, place, ranks[number, place]] = of.tokens[of.start + number + place]
    return replace(of, guesses=guesses)


def compact(of: Record) -> tuple[Record, int]:
    """The same with the tokens that occur numbered from 0, and how many there are."""
    ids = np.unique(np.concatenate([of.tokens, of.guesses[of.guesses != NONE]]))
    guesses = np.where(of.guesses == NONE, NONE, np.searchsorted(ids, of.guesses)).astype(np.int32)
    return replace(of, tokens=np.searchsorted(ids, of.tokens), guesses=guesses), len(ids)


def save(path: Path, records: Sequence[Record]) -> None:
    """Write records as .npz."""
    np.savez_compressed(
        path,
        kinds=np.array([each.kind for each in records]),
        bounds=np.array([(len(each.tokens), each.start, each.end) for each in records]),
        tokens=np.concatenate([each.tokens for each in records]).astype(np.int32),
        guesses=np.concatenate([each.guesses for each in records]),
    )


def load(path: Path) -> list[Record]:
    """Read what `save` wrote."""
    with np.load(path) as file:
        kinds, bounds, tokens, guesses = (
            file[name] for name in ("kinds", "bounds", "tokens", "guesses")
        )
    counts = bounds[:, 2] - bounds[:, 1]
    texts = np.split(tokens.astype(np.int64), np.cumsum(bounds[:-1, 0]))
    drafts = np.split(guesses, np.cumsum(counts[:-1]))
    return [
        Record(str(kind), text, int(start), int(end), draft)
        for kind, text, (_, start, end), draft in zip(kinds, texts, bounds, drafts, strict=True)
    ]
