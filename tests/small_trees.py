"""All proposals of few nodes over few tokens."""

import itertools
from collections.abc import Iterator

from runtime.verify import Proposal


def every_tree(nodes: int, vocabulary: int) -> Iterator[Proposal]:
    """Each tree of up to so many nodes, whatever the order of its nodes and tokens."""
    for count in range(nodes + 1):
        every_parents = itertools.product(*(range(-1, node) for node in range(count)))
        every_tokens = itertools.product(range(vocabulary), repeat=count)
        for parents, tokens in itertools.product(every_parents, every_tokens):
            yield Proposal(tokens, parents)
