"""Drafters that count, and that a test can hold or make fail before every piece of work."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from runtime.drafter import Guess
from runtime.sampling import Sampling

Tokens = NDArray[np.int64]


class Counter:
    """Says each token's successor, with the token ten above that as the runner-up.

    `texts` lists what was drafted after, `read` the lengths of the texts that were read, in chunks
    of `chunk` tokens. `before_pass` is called with the text before every token.
    """

    source = "counter"

    def __init__(self, *, chunk: int = 1000) -> None:
        self.texts: list[list[int]] = []
        self.read: list[int] = []
        self.before_pass: Callable[[Tokens], object] = len
        self.before_chunk: Callable[[], object] = list
        self._chunk = chunk
        self._done = 0

    def catch_up(self, context: Tokens) -> bool:
        self.before_chunk()
        self.read.append(len(context))
        self._done += self._chunk
        return self._done >= len(context)

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Guess]:
        self.texts.append(context.tolist())
        for _ in range(count):
            self.before_pass(context)
            token = int(context[-1]) + 1
            yield Guess(token, (token + 10,))
            context = np.append(context, token)

    def stop(self) -> None:
        pass


class Ill(Counter):
    """A drafter whose every guess is what `fault` gives."""

    def __init__(self, fault: Callable[[], object]) -> None:
        super().__init__()
        self._fault = fault

    def draft(self, context: Tokens, count: int, sampling: Sampling) -> Iterator[Guess]:
        while True:
            yield self._fault()  # type: ignore[misc]


def raising(error: BaseException) -> Callable[..., object]:
    """What raises `error` when it is called."""

    def fault(*_given: object) -> object:
        raise error

    return fault
