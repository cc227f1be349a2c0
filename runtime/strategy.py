"""Strategies: where the next proposal comes from. One interface, three answers.

The engine calls them in this order, every round: `propose`, `verifying`, then, when the target has
spoken, `observe`. What they propose changes speed, never text.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.metrics import Metrics
from runtime.sampling import Sampling
from runtime.verify import Outcome, Proposal
from runtime.worker import DraftWorker

NOTHING = Proposal.chain(())


class Strategy(Protocol):
    """One way to get proposals."""

    name: str

    def begin(self, prompt: NDArray[np.int64], sampling: Sampling, metrics: Metrics) -> None:
        """A text starts; called before the target reads the prompt."""

    def propose(self, room: int) -> Proposal:
        """What to verify next, at most `room` tokens deep; may be empty."""

    def verifying(self, proposal: Proposal) -> None:
        """The target is about to run on `proposal`."""

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """The round ended in `outcome` and `block` was committed; None: the prompt's own token."""


class Autoregressive:
    """No draft: every round verifies only the pending token."""

    name = "autoregressive"

    def begin(self, prompt: NDArray[np.int64], sampling: Sampling, metrics: Metrics) -> None:
        """Nothing to prepare."""

    def propose(self, room: int) -> Proposal:
        """Nothing, always."""
        return NOTHING

    def verifying(self, proposal: Proposal) -> None:
        """Nothing to do meanwhile."""

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """Nothing to learn."""


class Speculative:
    """Draft, then verify (Leviathan, Kalman, Matias 2023), one after the other."""

    name = "speculative"

    def __init__(
        self, worker: DraftWorker, *, num_draft_tokens: int, in_turn: bool = False
    ) -> None:
        """Propose `num_draft_tokens` tokens a round from `worker`.

        in_turn: draft and target need the same cores, so the draft reads a prompt when the target
        has, and is waited for; else it reads beside the target, which goes on without it meanwhile.
        """
        self._worker = worker
        self._num_draft_tokens = num_draft_tokens
        self._in_turn = in_turn

    def begin(self, prompt: NDArray[np.int64], sampling: Sampling, metrics: Metrics) -> None:
        """The draft reads the prompt beside the target, or rests until its turn."""
        self._prompt, self._sampling, self._metrics = prompt, sampling, metrics
        if not self._in_turn:
            self._start(prompt)

    def propose(self, room: int) -> Proposal:
        """Wait for the draft, except while there is none or it reads beside the target."""
        count = min(self._num_draft_tokens, room)
        if count < 1:
            return NOTHING
        with self._metrics.waiting():
            is_there = self._worker.wait_read() if self._in_turn else self._worker.ready()
            return self._worker.propose(count) if is_there else NOTHING

    def verifying(self, proposal: Proposal) -> None:
        """The draft rests."""

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """The draft learns what was committed."""
        if outcome is None and self._in_turn:
            self._start(np.append(self._prompt, block))
        else:
            self._worker.commit(block)

    def _start(self, text: NDArray[np.int64]) -> None:
        self._worker.begin(text, self._sampling)
        self._metrics.draft = self._worker.work


class Mirror(Speculative):
    """While the target verifies, the draft works on what may come next (Mirror-SD, 2510.13161).

    A hit is an outcome that the draft had guessed and drafted for: the next proposal is there at
    no cost. On a miss the draft starts anew, as in plain speculation.
    """

    name = "mirror"

    def begin(self, prompt: NDArray[np.int64], sampling: Sampling, metrics: Metrics) -> None:
        """As plain speculation."""
        super().begin(prompt, sampling, metrics)
        self._ahead: Proposal | None = None
        self._looking = False

    def propose(self, room: int) -> Proposal:
        """The rollout of the outcome that came, else a new draft."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return super().propose(room)
        return ahead if len(ahead) <= room else Proposal.chain(ahead.tokens[:room])

    def verifying(self, proposal: Proposal) -> None:
        """Have the draft guess how the round will end."""
        self._looking = self._worker.ready()
        if self._looking:
            self._worker.look_ahead(proposal, self._num_draft_tokens)

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """Take the rollout on a hit, then tell what was committed."""
        if outcome is not None and self._looking:
            self._ahead = self._worker.rollout(outcome)
            self._metrics.hypothesis(self._worker.source, hit=self._ahead is not None)
        super().observe(outcome, block)
