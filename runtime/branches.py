"""Branches: tokens that hang from places of a text, and what each of them sees."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HIDDEN = -30000.0  # a score that no row can outweigh, finite also in float16


@dataclass(frozen=True, slots=True)
class Branches:
    """Nodes that hang from places of a text, or from each other.

    parents: of node i an index below n + i into the text of n tokens followed by the nodes.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def behind(self, length: int) -> "Rows":
        """The nodes as rows behind a text of `length` tokens.

        Each sees the text up to where its path leaves it, its ancestors and itself. Raises
        ValueError for a parent that does not stand before its node.
        """
        count = len(self.tokens)
        if len(self.parents) != count:
            raise ValueError(f"{count} nodes have {len(self.parents)} parents")
        positions = np.empty(count, np.int64)
        sees = np.zeros((count, length + count), bool)
        for node, parent in enumerate(self.parents):
            if not 0 <= parent < length + node:
                raise ValueError(f"node {node} behind {length} tokens has the parent {parent}")
            if parent < length:
                positions[node] = parent + 1
                sees[node, : parent + 1] = True
            else:
                positions[node] = positions[parent - length] + 1
                sees[node] = sees[parent - length]
            sees[node, length + node] = True
        return Rows(np.array(self.tokens, np.int64), positions, sees)


NO_BRANCHES = Branches((), ())


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a call, the last of all places: tokens and positions [r] int64, sees [r, places].

    A place is an index into what is cached followed by the rows of the call.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    sees: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)

    def after(self, tokens: NDArray[np.int64], cached: int) -> "Rows":
        """These rows behind a chain of `tokens` [n], which follow `cached` ones."""
        count = len(tokens)
        chain = np.tri(count, cached + count + len(self), cached, dtype=bool)
        return Rows(
            np.concatenate([tokens, self.tokens]),
            np.concatenate([np.arange(cached, cached + count), self.positions]),
            np.concatenate([chain, self.sees]),
        )

    def trees(self) -> list[NDArray[np.int64]]:
        """These rows by their first ancestor among them: the numbers of each tree's, in order."""
        roots = self.sees[:, -len(self) :].argmax(axis=1) if len(self) else np.zeros(0, np.int64)
        return [np.flatnonzero(roots == root) for root in np.unique(roots)]

    def some(self, numbers: NDArray[np.int64]) -> "Rows":
        """Those of these rows [r], which must be whole trees, without the places of the others."""
        before = self.sees.shape[1] - len(self)
        places = np.concatenate([np.arange(before), before + numbers])
        return Rows(
            self.tokens[numbers], self.positions[numbers], self.sees[np.ix_(numbers, places)]
        )
