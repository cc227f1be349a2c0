"""Drafters that count, and that a test can hold or make fail before every piece of work."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.drafter import Guess, Rollout, Start
from runtime.sampling import Sampling

Tokens = NDArray[np.int64]


class Counter:
    """Says each token's successor, with the token ten above that as the runner-up.

    `passes` lists of every pass the texts that were drafted after, `read` the lengths of the texts
    that were read, in chunks of `chunk` tokens. `before_pass` is called with these texts before
    every pass, which gives `per_pass` guesses.
    """

    source = "counter"

    def __init__(self, *, chunk: int = 1000, per_pass: int = 1000) -> None:
        self.passes: list[list[list[int]]] = []
        self.read: list[int] = []
        self.before_pass: Callable[[list[list[int]]], object] = len
        self.before_chunk: Callable[[], object] = list
        self._chunk, self._per_pass = chunk, per_pass
        self._done = 0

    def catch_up(self, context: Tokens) -> bool:
        self.before_chunk()
        self.read.append(len(context))
        self._done += self._chunk
        return self._done >= len(context)

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        texts = [start.after(text).tolist() for start in starts]
        self.passes.append(texts)
        self.before_pass(texts)
        return [partial(successors, each[-1], min(count, self._per_pass)) for each in texts]

    def stop(self) -> None:
        pass


def successors(token: int, count: int) -> list[Guess]:
    """The guesses of a Counter after `token`."""
    return [Guess(each, (each + 10,)) for each in range(token + 1, token + 1 + count)]


class Odd(Counter):
    """A drafter whose every pass gives whatever `given` does, called with the starts."""

    def __init__(self, given: Callable[[Sequence[Start]], object]) -> None:
        super().__init__()
        self._given = given

    def draft(self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling) -> Any:
        return self._given(starts)


class Ill(Odd):
    """A drafter whose every guess, one a pass, is what `fault` gives."""

    def __init__(self, fault: Callable[[], object]) -> None:
        def given(starts: Sequence[Start]) -> object:
            guess = fault()
            return [lambda: [guess]] * len(starts)

        super().__init__(given)


def raising(error: BaseException) -> Callable[..., object]:
    """What raises `error` when it is called."""

    def fault(*_given: object) -> object:
        raise error

    return fault
