"""Few combinations of many factors, in which any two values of two factors meet."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np


def product(
    *factors: Sequence[Any], allowed: Callable[..., bool] = lambda *_: True
) -> list[tuple[Any, ...]]:
    """All combinations, one value of each factor, that `allowed(*values)` lets through."""
    return [case for case in itertools.product(*factors) if allowed(*case)]


def pairwise(
    *factors: Sequence[Any], allowed: Callable[..., bool] = lambda *_: True
) -> Iterator[tuple[Any, ...]]:
    """Combinations in which two values meet at least once if any allowed combination has both.

    Each is the one, of all that are allowed, with most pairs that have not met yet. The values of a
    factor must differ.
    """
    cases = product(*factors, allowed=allowed)
    random.Random(1).shuffle(cases)  # else the first values would be had wherever two are as good
    ends = np.cumsum([0, *map(len, factors)])
    numbers = [
        {value: int(start) + place for place, value in enumerate(factor)}
        for start, factor in zip(ends, factors, strict=False)
    ]
    rows = np.array(
        [[of[value] for of, value in zip(numbers, case, strict=True)] for case in cases]
    )
    first, second = np.triu_indices(len(factors), 1)
    pairs = rows[:, first] * ends[-1] + rows[:, second]
    apart = np.zeros(ends[-1] ** 2, bool)
    apart[pairs] = True
    while apart.any():
        best = int(apart[pairs].sum(axis=1).argmax())
        apart[pairs[best]] = False
        yield cases[best]
