"""Which graphs of a fixed number of rows do a call."""

from collections.abc import Mapping

Run = tuple[int, int]  # the rows of a graph, and how many of them it does for the call


class Runs:
    """The graphs there are, by their rows, with the number of rows that have logits in each."""

    def __init__(self, graphs: Mapping[int, int]) -> None:
        self._graphs = dict(sorted(graphs.items(), reverse=True))  # of equal ways the widest first
        self._known: dict[tuple[int, int], tuple[Run, ...]] = {(0, 0): ()}

    def of(self, count: int, plain: int) -> tuple[Run, ...]:
        """The fewest runs that do `count` rows; of several ways the one that computes fewest rows.

        plain: so many of the first rows need no logits.
        """
        if (count, plain) not in self._known:
            ways = []
            for rows, logits in self._graphs.items():
                done = min(count, rows, plain + logits)
                ways.append(((rows, done), *self.of(count - done, max(0, plain - done))))
            self._known[count, plain] = min(ways, key=_cost)
        return self._known[count, plain]


def _cost(runs: tuple[Run, ...]) -> tuple[int, int]:
    return len(runs), sum(rows for rows, _ in runs)
