"""All proposals of few nodes over few tokens, and a strategy that proposes given ones."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from runtime.metrics import Metrics
from runtime.sampling import Sampling
from runtime.verify import Outcome, Proposal

Tokens = NDArray[np.int64]


def every_tree(nodes: int, vocabulary: int) -> Iterator[Proposal]:
    """Each tree of up to so many nodes, whatever the order of its nodes and tokens."""
    for count in range(nodes + 1):
        every_parents = itertools.product(*(range(-1, node) for node in range(count)))
        every_tokens = itertools.product(range(vocabulary), repeat=count)
        for parents, tokens in itertools.product(every_parents, every_tokens):
            yield Proposal(tokens, parents)


class Given:
    """A strategy that proposes what `next_tree(room)` gives."""

    name = "given"

    def __init__(self, next_tree: Callable[[int], Proposal]) -> None:
        self.next_tree = next_tree
        self.verified: list[Proposal] = []
        self.outcomes: list[tuple[Outcome, tuple[int, ...]]] = []

    def begin(self, prompt: Tokens, sampling: Sampling, metrics: Metrics) -> None:
        pass

    def propose(self, room: int) -> Proposal:
        return self.next_tree(room)

    def verifying(self, proposal: Proposal) -> None:
        self.verified.append(proposal)

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        if outcome is not None:
            self.outcomes.append((outcome, block))
