"""Drafts that are wrong on purpose, and a planner that chooses at random."""

from collections.abc import Sequence

import numpy as np

from runtime.calibration import UNMEASURED
from runtime.drafter import Guess, Rollout, Start, Tokens
from runtime.planner import NOTHING, Choice, Planner
from runtime.sampling import Sampling

RUNNER_UPS = 8


class Adversary:
    """Guesses by place what is never right, or only as a runner-up; or tokens at random.

    `text` [n] int64 is what the target will have written, prompt included; whoever begins a text
    sets it. A place behind it is guessed at random.
    """

    source = "adversary"

    def __init__(self, kind: str, vocabulary: int) -> None:
        """kind: "wrong", "runner-up" or "random", of tokens from 0 up to `vocabulary`."""
        self.text = np.empty(0, np.int64)
        self._kind = kind
        self._vocabulary = vocabulary

    def catch_up(self, context: Tokens) -> bool:
        """There is nothing to read."""
        return True

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        """All that is asked for in one pass."""
        places = [len(start.after(text)) for start in starts]
        return [[self._guess(place + each) for each in range(count)].copy for place in places]

    def stop(self) -> None:
        """No pass takes long."""

    def _guess(self, place: int) -> Guess:
        if self._kind == "random" or place >= len(self.text):
            noise = np.random.default_rng(place)
            first, *others = noise.integers(self._vocabulary, size=1 + RUNNER_UPS).tolist()
            return Guess(first, tuple(others))
        right = int(self.text[place])
        first, *others = ((right + step) % self._vocabulary for step in range(1, 2 + RUNNER_UPS))
        if self._kind == "runner-up":
            others[0] = right
        return Guess(first, tuple(others))


class Dice(Planner):
    """Chooses each round at random, up to given numbers."""

    def __init__(
        self, seed: int, *, draft_tokens: int, hypotheses: int, siblings: int, of_exit: int = 0
    ) -> None:
        super().__init__(UNMEASURED)
        self._of_exit = of_exit
        self._draw = np.random.default_rng(seed)
        self._most = draft_tokens, hypotheses, siblings

    def choose(self, room: int, lookup_match_length: int, *, rollout: int = 0) -> Choice:
        """Any kind of round; a rollout at hand is taken half the time."""
        draft_tokens, hypotheses, siblings = self._most
        count = min(draft_tokens, room, rollout or room)
        if count < 1:
            return NOTHING
        followed = int(self._draw.choice([0, hypotheses]))
        leaves = int(self._draw.choice([0, siblings]))
        named = int(self._draw.choice([0, self._of_exit])) if followed and self._of_exit else 0
        choices = [
            NOTHING,
            Choice("none", count, hypotheses),
            Choice("lookup", count),
            *[Choice("model", count, followed, leaves, named)] * 3,
        ]
        return choices[int(self._draw.integers(len(choices)))]
