"""A model that is a table: the last token and the position's parity give the logits."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from runtime.drafter import Guess
from runtime.sampling import Sampling, choose


class TableTarget:
    """Logits from a table [2, vocabulary, vocabulary] by (position % 2, last token)."""

    def __init__(self, vocabulary: int = 4, *, context: int = 64, seed: int = 0) -> None:
        self.vocabulary = vocabulary
        self.context = context
        self.table = np.random.default_rng(seed).normal(size=(2, vocabulary, vocabulary)) * 2
        self.widths: list[int] = []

    def extend(self, tokens: NDArray[np.int64], *, num_logits: int = 1) -> NDArray[np.float32]:
        assert len(tokens) <= self.context
        self.widths.append(num_logits)
        places = np.arange(len(tokens) - num_logits, len(tokens))
        return self.table[places % 2, tokens[places]].astype(np.float32)


class TableDrafter:
    """Drafts what the table says; `agree` of the time, else the token after it."""

    source = "model"

    def __init__(self, target: TableTarget, *, agree: float = 1.0, seed: int = 1) -> None:
        self._target = target
        self._agree = agree
        self._random = np.random.default_rng(seed)

    def catch_up(self, context: NDArray[np.int64]) -> bool:
        return True

    def draft(
        self, context: NDArray[np.int64], count: int, sampling: Sampling
    ) -> Iterator[Guess]:
        for _ in range(count):
            logits = self._target.table[(len(context) - 1) % 2, context[-1]].astype(np.float32)
            token = choose(logits, context, sampling)
            other = (token + 1) % self._target.vocabulary
            if self._random.random() >= self._agree:
                token, other = other, token
            yield Guess(token, (other,))
            context = np.append(context, token)
