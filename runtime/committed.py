"""The committed tokens of one text, the only truth, and how many more there may be."""

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ContextError
from runtime.metrics import Metrics


class Committed:
    """A prompt and what was added to it; says when the answer is over, and why, in the metrics."""

    def __init__(
        self,
        prompt: NDArray[np.int64],
        context: int,
        max_new_tokens: int,
        end_tokens: frozenset[int],
        metrics: Metrics,
    ) -> None:
        """Start from `prompt` [n] int64.

        Raises ContextError for a prompt that is empty or longer than the context.
        """
        _check_prompt(prompt, context)
        # The last token's keys are never computed, so it may stand one place past the context.
        self._tokens = np.empty(context + 1, np.int64)
        self._length = self._prompt_length = len(prompt)
        self._tokens[: self._length] = prompt
        self._context = context
        self._left = max_new_tokens
        self._end_tokens = end_tokens
        self._metrics = metrics
        self._check_limits()

    @property
    def finished(self) -> bool:
        """Whether nothing may follow; the metrics say why."""
        return self._metrics.finish_reason is not None

    @property
    def begun(self) -> bool:
        """Whether a token was added to the prompt."""
        return self._length > self._prompt_length

    @property
    def length(self) -> int:
        """How many tokens are committed."""
        return self._length

    @property
    def free(self) -> int:
        """How many nodes a proposal may have: all of them are in the context at once."""
        return self._context - self._length

    @property
    def room(self) -> int:
        """How deep a proposal may be: a path and a final token must fit in budget and context."""
        return min(self._left - 1, self.free)

    def followed_by(self, tokens: tuple[int, ...]) -> NDArray[np.int64]:
        """The committed tokens and then `tokens`, [n] int64; valid until the next call."""
        end = self._length + len(tokens)
        self._tokens[self._length : end] = tokens
        return self._tokens[:end]

    def commit(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """Add a block of at most `room` + 1 tokens; return what comes before an end token."""
        ends = [place for place, token in enumerate(block) if token in self._end_tokens]
        kept = block[: ends[0]] if ends else block
        if ends:
            self._metrics.finish_reason = "eos"
        self._length = len(self.followed_by(kept))
        self._left -= len(kept)
        self._metrics.committed(len(block), len(kept))
        if not self.finished:
            self._check_limits()
        return kept

    def _check_limits(self) -> None:
        if self._left == 0:
            self._metrics.finish_reason = "max_new_tokens"
        elif self._length > self._context:
            self._metrics.finish_reason = "context_full"


def _check_prompt(prompt: NDArray[np.int64], context: int) -> None:
    if len(prompt) == 0:
        raise ContextError("The prompt is empty: there is nothing to continue.")
    if len(prompt) > context:
        raise ContextError(
            f"The prompt has {len(prompt)} tokens and the context holds {context}: shorten the "
            "prompt, or start anew."
        )
