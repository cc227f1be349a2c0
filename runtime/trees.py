"""Proposals that are trees: what else may follow, beside the likeliest path."""

from collections.abc import Sequence

from runtime.drafter import Guess
from runtime.verify import Proposal


def with_siblings(guesses: Sequence[Guess], count: int) -> Proposal:
    """A trunk of `guesses` with up to `count` of their runner-ups as leaves beside it.

    A later place is reached only where all before it stand, so of equal rank the earlier place
    comes first; a better rank comes before any place.
    """
    ranked = sorted(
        (rank, place, token)
        for place, guess in enumerate(guesses)
        for rank, token in enumerate(guess.runner_ups)
    )[:count]
    trunk = Proposal.chain([guess.token for guess in guesses])
    return Proposal(
        trunk.tokens + tuple(token for _, _, token in ranked),
        trunk.parents + tuple(place - 1 for _, place, _ in ranked),
    )


def joined(tree: Proposal, chain: Sequence[int]) -> Proposal:
    """A tree with a further chain from its root; a common beginning is there once."""
    node, common = -1, 0
    while common < len(chain) and (child := tree.child(node, chain[common])) is not None:
        node, common = child, common + 1
    rest = tuple(chain[common:])
    parents = (node, *range(len(tree), len(tree) + len(rest) - 1))[: len(rest)]
    return Proposal(tree.tokens + rest, tree.parents + parents)
