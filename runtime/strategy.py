"""Strategies: where the next proposal comes from. One interface, three answers.

The engine calls them in this order, every round: `propose`, `verifying`, then, when the target has
spoken, `observe`. What they propose changes speed, never text.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.drafter import Guess, LookupDrafter
from runtime.early_exit import EarlyExit
from runtime.hypotheses import USUAL_SOURCES, Fan, Hypothesis, Source
from runtime.metrics import Metrics
from runtime.sampling import Sampling
from runtime.trees import joined, with_siblings
from runtime.verify import Outcome, Proposal
from runtime.worker import Draft, DraftWorker

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
        self,
        worker: DraftWorker,
        *,
        num_draft_tokens: int,
        num_siblings: int = 0,
        num_copied_tokens: int = 0,
        in_turn: bool = False,
        one_pass: bool = False,
    ) -> None:
        """Propose `num_draft_tokens` tokens a round from `worker`.

        num_siblings: so many runner-ups stand beside them, as leaves of a tree. num_copied_tokens:
        and a chain of so many that followed where the last two tokens stood before. one_pass: fewer
        tokens where a pass of the draft gives fewer. in_turn: draft and target need the same cores,
        so the draft reads a prompt when the target has, and is waited for; else it reads beside the
        target, which goes on without it meanwhile.
        """
        self._worker = worker
        self._num_draft_tokens = num_draft_tokens
        self._num_siblings = num_siblings
        self._num_copied_tokens = num_copied_tokens
        self._lookup = LookupDrafter(shortest=2)
        self._one_pass = one_pass
        self._in_turn = in_turn

    def begin(self, prompt: NDArray[np.int64], sampling: Sampling, metrics: Metrics) -> None:
        """The draft reads the prompt beside the target, or rests until its turn."""
        self._text, self._sampling, self._metrics = prompt, sampling, metrics
        self._worker.forgive()
        if self._reads_at_once:
            self._start(prompt)

    @property
    def _reads_at_once(self) -> bool:
        """Whether the draft reads the prompt while the target does."""
        return not self._in_turn

    def propose(self, room: int) -> Proposal:
        """Wait for the draft, except while there is none or it reads beside the target."""
        self._room = room
        count = min(self._num_draft_tokens, room)
        if count < 1:
            return NOTHING
        with self._metrics.waiting():
            is_there = self._worker.wait_read() if self._in_turn else self._worker.ready()
            return self._ask(count) if is_there else NOTHING

    def _ask(self, count: int) -> Proposal:
        """What the draft proposes, at most `count` tokens deep."""
        draft = self._worker.propose(1 if self._one_pass else count, count)
        return self._tree(draft.guesses, self._num_siblings)

    def _tree(self, guesses: Sequence[Guess], siblings: int) -> Proposal:
        """The guesses as a trunk, and what else may stand."""
        tree = with_siblings(guesses, siblings)
        if not self._num_copied_tokens:
            return tree
        _, copied = self._lookup.copied(self._text, min(self._num_copied_tokens, self._room))
        return joined(tree, [guess.token for guess in copied])

    def verifying(self, proposal: Proposal) -> None:
        """The draft rests."""

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """The draft learns what was committed."""
        self._text = np.append(self._text, block)
        if outcome is None and self._in_turn:
            self._start(self._text)
        else:
            self._worker.commit(block)

    def _start(self, text: NDArray[np.int64]) -> None:
        self._worker.begin(text, self._sampling)
        self._metrics.draft = self._worker.work


class Mirror(Speculative):
    """While the target verifies, the draft works on what may come next (Mirror-SD, 2510.13161).

    Every round it follows some hypotheses, all in one pass where it gives several tokens in one. A
    hit is an outcome that was among them: the next proposal is there. On a miss the draft starts
    anew, as in plain speculation, or works on while the target verifies the bare pending token.
    """

    name = "mirror"

    def __init__(
        self,
        worker: DraftWorker,
        *,
        num_draft_tokens: int,
        num_hypotheses: int,
        num_siblings: int = 0,
        num_copied_tokens: int = 0,
        sources: Collection[Source] = USUAL_SOURCES,
        redraft: bool = True,
        early_exit: EarlyExit | None = None,
    ) -> None:
        """Propose `num_draft_tokens` tokens and follow `num_hypotheses` outcomes a round.

        sources: where hypotheses come from; half of them come of the early exit where it is one of
        these, in a further pass. redraft: on a miss wait for a new draft; else verify
        the pending token alone while the draft works on what follows any token, once in a row.
        """
        super().__init__(
            worker,
            num_draft_tokens=num_draft_tokens,
            num_siblings=num_siblings,
            num_copied_tokens=num_copied_tokens,
        )
        self._num_hypotheses = num_hypotheses
        self._sources = sources
        self._redraft = redraft
        self._early_exit = early_exit
        self._of_exit = 0  # of the hypotheses
        if early_exit is not None:
            self._of_exit = num_hypotheses // (1 if len(sources) == 1 else 2)
        self._fan = Fan()

    def begin(self, prompt: NDArray[np.int64], sampling: Sampling, metrics: Metrics) -> None:
        """As plain speculation."""
        super().begin(prompt, sampling, metrics)
        self._guesses: Sequence[Guess] = ()
        self._followed: Sequence[Hypothesis] = ()
        self._chain: tuple[int, ...] = ()
        self._named: Sequence[Sequence[int]] = ()  # by the early exit, for each place
        self._was_bare = False
        if self._early_exit is not None:
            self._early_exit.tell(None)

    def propose(self, room: int) -> Proposal:
        """The rollout of the outcome that came, else a new draft or nothing."""
        self._guesses = ()
        return super().propose(room)

    def _ask(self, count: int) -> Proposal:
        redraft = self._redraft or self._was_bare
        draft = self._worker.propose(count, count + 1, redraft=redraft)
        self._foreseen(draft)
        self._guesses = draft.guesses
        return self._tree(draft.guesses[:count], self._num_siblings)

    def _foreseen(self, draft: Draft) -> None:
        """Count whether the outcome was among the hypotheses, where there were any."""
        if self._followed:
            hit = None if draft.hypothesis is None else draft.hypothesis.source
            self._metrics.foreseen({each.source for each in self._followed}, hit)

    def verifying(self, proposal: Proposal) -> None:
        """Have the draft follow the likeliest outcomes."""
        self._chain = chain = proposal.tokens[: proposal.trunk]
        self._followed, self._was_bare, self._named = (), not chain, ()
        looks_ahead = self._num_hypotheses > 0 and self._worker.ready()
        if self._early_exit is not None:
            follows = looks_ahead and self._of_exit > 0
            self._early_exit.tell(self._follow_exit if follows else None)
        if looks_ahead:
            count = self._num_hypotheses - self._of_exit
            self._followed = self._fan.hypotheses(
                self._guesses, len(chain), count, sources=self._sources
            )
            self._worker.look_ahead(chain, self._followed, self._num_draft_tokens)

    def _follow_exit(self, tokens: NDArray[np.int64]) -> None:
        """Have the draft follow what the early exit names, while the target goes on."""
        self._named = tokens[: len(self._chain) + 1].tolist()
        found = self._fan.of_exit(self._named, self._chain, self._followed)[: self._of_exit]
        if not found:
            return
        if self._worker.follow(self._chain, found, self._num_draft_tokens):
            self._followed = (*self._followed, *found)
        else:
            self._metrics.early_exits_dropped += 1

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """Learn how proposals break, and tell the draft what was committed."""
        self._learn_breaks(outcome, block)
        super().observe(outcome, block)

    def _learn_breaks(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        if outcome is not None and self._guesses:
            self._fan.learn(self._guesses, block)
        if outcome is not None and self._named:
            self._fan.learn_exit(self._named, self._chain, block)
