"""Drafters that count, and that a test can hold or make fail before every piece of work."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from runtime.drafter import Guess
from runtime.sampling import Sampling

Tokens = NDArray[np.int64]


class Counter:
    """Says each token's successor, with the token ten above that as the runner-up.

    `texts` lists what was drafted after, `read` the lengths of the texts that were read, in chunks
    of `chunk` tokens. `before_pass` is called with the text before every pass, which gives
    `per_pass` guesses.
    """

    source = "counter"

    def __init__(self, *, chunk: int = 1000, per_pass: int = 1) -> None:
        self.texts: list[list[int]] = []
        self.read: list[int] = []
        self.before_pass: Callable[[Tokens], object] = len
        self.before_chunk: Callable[[], object] = list
        self._chunk, self._per_pass = chunk, per_pass
        self._done = 0

    def catch_up(self, context: Tokens) -> bool:
        self.before_chunk()
        self.read.append(len(context))
        self._done += self._chunk
        return self._done >= len(context)

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Sequence[Guess]]:
        self.texts.append(context.tolist())
        for start in range(0, count, self._per_pass):
            self.before_pass(context)
            tokens = int(context[-1]) + 1 + np.arange(min(self._per_pass, count - start))
            yield [Guess(token, (token + 10,)) for token in tokens.tolist()]
            context = np.append(context, tokens)

    def stop(self) -> None:
        pass


class Ill(Counter):
    """A drafter whose every guess is what `fault` gives."""

    def __init__(self, fault: Callable[[], object]) -> None:
        super().__init__()
        self._fault = fault

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Sequence[Guess]]:
        while True:
            yield [self._fault()]  # type: ignore[list-item]


def raising(error: BaseException) -> Callable[..., object]:
    """What raises `error` when it is called."""

    def fault(*_given: object) -> object:
        raise error

    return fault
