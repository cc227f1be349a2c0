"""The engine: one loop that commits tokens, whatever the strategy.

A round: the strategy proposes, the target runs over the pending token and the proposal, `verify`
walks the rows with the target's own choices, and the accepted path and the final token are
committed. Only `choose` decides what the text is.
"""

from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ContextError
from runtime.metrics import Metrics
from runtime.sampling import Sampling, choose
from runtime.strategy import Strategy
from runtime.verify import verify


class Target(Protocol):
    """The model whose text it is: GraphSession, or a table of logits in a test."""

    context: int
    vocabulary: int

    def extend(self, tokens: NDArray[np.int64], *, num_logits: int = 1) -> NDArray[np.float32]:
        """The last `num_logits` rows of logits of the text `tokens`, [num_logits, vocabulary]."""


def decode(
    target: Target,
    strategy: Strategy,
    prompt: NDArray[np.int64],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    end_tokens: frozenset[int],
    metrics: Metrics,
    cancelled: Callable[[], bool],
) -> Generator[tuple[int, ...], None, None]:
    """Continue `prompt` [n] int64, a block of committed tokens at a time.

    A block ends before an end token, at the budget, or where the context is full; the reason goes
    to `metrics.finish_reason`. Raises ContextError for a prompt that is empty or longer than the
    context; nothing has run by then.
    """
    _check_prompt(prompt, target.context)
    text = _Text(prompt, target.context, max_new_tokens, end_tokens, metrics)
    if text.finished:
        return
    strategy.begin(prompt, sampling, metrics)
    with metrics.target_run():
        logits = target.extend(prompt)
    block = (choose(logits[0], prompt, sampling),)
    strategy.observe(None, block)
    kept = text.commit(block)
    while True:
        if kept:
            yield kept
        if text.finished:
            return
        if cancelled():
            metrics.finish_reason = "cancelled"
            return
        with metrics.round():
            proposal = strategy.propose(text.room)
            strategy.verifying(proposal)
            with metrics.target_run():
                logits = target.extend(text.followed_by(proposal.tokens), num_logits=len(proposal) + 1)
            outcome, path = verify(
                proposal,
                logits.__getitem__,
                lambda row, path: choose(row, text.followed_by(path), sampling),
            )
            block = (*path, outcome.final_token)
            metrics.verified(proposal, outcome)
            strategy.observe(outcome, block)
            kept = text.commit(block)


class _Text:
    """The committed tokens, the only truth, and how many more there may be."""

    def __init__(
        self,
        prompt: NDArray[np.int64],
        context: int,
        max_new_tokens: int,
        end_tokens: frozenset[int],
        metrics: Metrics,
    ) -> None:
        # The last token's keys are never computed, so it may stand one place past the context.
        self._tokens = np.empty(context + 1, np.int64)
        self._length = len(prompt)
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
    def room(self) -> int:
        """How long a proposal may be: it and a final token must fit in budget and context."""
        return min(self._left - 1, self._context - self._length)

    def followed_by(self, tokens: tuple[int, ...]) -> NDArray[np.int64]:
        """The committed tokens and then `tokens`, [n] int64; valid until the next call."""
        end = self._length + len(tokens)
        self._tokens[self._length : end] = tokens
        return self._tokens[:end]

    def commit(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """Add a block; return what the answer keeps of it."""
        ends = [place for place, token in enumerate(block) if token in self._end_tokens]
        kept = block[: ends[0]] if ends else block
        if len(kept) > self._left:
            kept = kept[: self._left]
        elif ends:
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
