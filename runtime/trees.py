"""Proposals that are trees: what else may follow, beside the likeliest path."""

from collections.abc import Sequence
from itertools import takewhile

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


def joined(first: Sequence[int], second: Sequence[int]) -> Proposal:
    """Two chains as one tree with `first` as the trunk; a common beginning is there once."""
    pairs = zip(first, second, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    tokens, parents = list(first), list(range(-1, len(first) - 1))
    parent = common - 1
    for token in second[common:]:
        parents.append(parent)
        parent = len(tokens)
        tokens.append(token)
    return Proposal(tuple(tokens), tuple(parents))
