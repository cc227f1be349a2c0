"""The engine: one loop that commits tokens, whatever the strategy.

A round: the strategy proposes, the target runs over the pending token and the proposal, `verify`
walks the rows with the target's own choices, and the accepted path and the final token are
committed. Only `choose` decides what the text is. Of a tree the trunk is fed as text, the rest as
branches, whose rows a guard distrusts.
"""

from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.committed import Committed
from runtime.guard import is_sure
from runtime.metrics import Metrics
from runtime.sampling import Sampling, choose, margin
from runtime.strategy import Strategy
from runtime.verify import verify


class Target(Protocol):
    """The model whose text it is: GraphSession, or a table of logits in a test."""

    @property
    def context(self) -> int:
        """How many tokens fit."""

    def prefill(self, tokens: NDArray[np.int64]) -> bool:
        """Do one bounded piece of what `extend` has to do; True when little is left."""

    def extend(
        self, tokens: NDArray[np.int64], *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        """Logits of the last `num_logits` tokens, then of the branches, [rows, vocabulary]."""


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

    The text ends before an end token, at the budget, where the context is full, or before the next
    step when `cancelled`; the reason goes to `metrics.finish_reason`. Raises ContextError for a
    prompt that is empty or longer than the context; nothing has run by then.
    """
    text = Committed(prompt, target.context, max_new_tokens, end_tokens, metrics)
    if not text.finished:
        strategy.begin(prompt, sampling, metrics)
    while not text.finished and not cancelled():
        step = _round if text.begun else _read_prompt
        if kept := step(target, strategy, text, sampling, metrics):
            yield kept
    metrics.finish_reason = metrics.finish_reason or "cancelled"


def _read_prompt(
    target: Target, strategy: Strategy, text: Committed, sampling: Sampling, metrics: Metrics
) -> tuple[int, ...]:
    """Read a piece of the prompt; after the last, commit the first token."""
    prompt = text.followed_by(())
    with metrics.target_run("read"):
        if not target.prefill(prompt):
            return ()
        logits = target.extend(prompt)
    block = (next_token(logits[0], prompt, sampling, metrics),)
    strategy.observe(None, block)
    return text.commit(block)


def _round(
    target: Target, strategy: Strategy, text: Committed, sampling: Sampling, metrics: Metrics
) -> tuple[int, ...]:
    """Propose, verify and commit; return the tokens that belong to the text."""
    with metrics.round():
        proposal = strategy.propose(text.room).cut(text.free)
        strategy.verifying(proposal)
        trunk = proposal.tokens[: proposal.trunk]
        with metrics.target_run("verify", len(proposal) + 1):
            logits = target.extend(
                text.followed_by(trunk),
                num_logits=len(trunk) + 1,
                branches=proposal.branches(text.length),
            )
        verdict = verify(
            proposal,
            logits.__getitem__,
            lambda row, path: next_token(row, text.followed_by(path), sampling, metrics),
            lambda row, path: is_sure(row, text.followed_by(path), sampling, metrics.tree_bound),
        )
        block = (*verdict.path, verdict.outcome.final_token)
        metrics.verified(proposal, verdict.outcome, guarded=verdict.guarded)
        strategy.observe(verdict.outcome, block)
        return text.commit(block)


def next_token(
    row: NDArray[np.float32], context: NDArray[np.int64], sampling: Sampling, metrics: Metrics
) -> int:
    """The next token; counted where logits known up to `near_tie_bound` leave it in doubt."""
    bound = metrics.near_tie_bound
    if bound and margin(row, context, sampling) <= 2 * bound:
        metrics.near_ties += 1
    return choose(row, context, sampling)
