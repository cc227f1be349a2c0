"""Verify a proposal: walk it with the target's own choices, as far as they agree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.branches import Branches
from runtime.errors import DraftError


@dataclass(frozen=True, slots=True)
class Proposal:
    """A small tree of tokens for the target to verify, most often a chain.

    `parents[i]` is the node before node i, always an earlier one; -1 is the pending token. The
    first nodes that each follow the one before are the trunk: its rows of logits are those of plain
    decoding. Raises DraftError for anything else.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise DraftError(
                f"A proposal of {len(self.tokens)} tokens came with {len(self.parents)} parents."
            )
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if token < 0:
                raise DraftError(f"Node {node} of a proposal has the token id {token}, below 0.")
            if not -1 <= parent < node:
                raise DraftError(
                    f"Node {node} of a proposal has the parent {parent}; "
                    f"it must be -1 or an earlier node."
                )

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "Proposal":
        """Make a proposal in which each token follows the one before it."""
        return cls(tuple(int(token) for token in tokens), tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def trunk(self) -> int:
        """How many nodes the trunk has; all of them in a chain."""
        places = enumerate(self.parents)
        return next((node for node, parent in places if parent != node - 1), len(self))

    def branches(self, length: int) -> Branches:
        """The nodes off the trunk, which hang from a text of `length` tokens and the trunk."""
        trunk = self.trunk
        parents = tuple(length + parent for parent in self.parents[trunk:])
        return Branches(self.tokens[trunk:], parents)

    def cut(self, count: int) -> "Proposal":
        """Its first `count` nodes, which are a proposal too; itself where it has no more."""
        return self if len(self) <= count else Proposal(self.tokens[:count], self.parents[:count])

    def child(self, node: int, token: int) -> int | None:
        """Find the first child of `node` (-1: the pending token) with this token."""
        for other in range(node + 1, len(self.tokens)):
            if self.parents[other] == node and self.tokens[other] == token:
                return other
        return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round ended: the last accepted node, and the target's own token after it.

    Node -1 is the pending token: nothing of the proposal was accepted.
    """

    node: int
    final_token: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a walk found: the outcome, the accepted tokens, and whether a guard ended it."""

    outcome: Outcome
    path: tuple[int, ...]
    guarded: bool = False


def verify(
    proposal: Proposal,
    row: Callable[[int], NDArray[np.float32]],
    choose: Callable[[NDArray[np.float32], tuple[int, ...]], int],
    sure: Callable[[NDArray[np.float32], tuple[int, ...]], bool],
) -> Verdict:
    """Follow the proposal while it holds the token that the target chooses itself.

    `row(0)` gives the logits after the pending token, `row(1 + i)` those after node i; only rows on
    the path are asked for. `choose(logits, path)` and `sure(logits, path)` are told the accepted
    tokens so far. Rows of nodes off the trunk were added up in another order than plain decoding's:
    where one is not sure, the node's own token, which its parent's row chose, is the final one.
    """
    trunk = proposal.trunk
    node, path = -1, ()  # type: int, tuple[int, ...]
    while True:
        logits = row(node + 1)
        if node >= trunk and not sure(logits, path):
            return Verdict(Outcome(proposal.parents[node], path[-1]), path[:-1], guarded=True)
        token = choose(logits, path)
        following = proposal.child(node, token)
        if following is None:
            return Verdict(Outcome(node, token), path)
        node, path = following, (*path, token)
