"""Is one way of decoding ever slower than the best of others? Paired ratios and their interval.

The best way is chosen on one half of the answers and compared on the other, both halves in turn, so
that luck in choosing is no part of the comparison.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

LEAST_TOKENS = 128  # of what is compared
DRAWS = 10_000
SHARE = 0.95

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Took:
    """An answer, or several in a row: its kind, tokens, and seconds that they took."""

    kind: str
    tokens: int
    seconds: float

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Compared:
    """How fast one way is against the best fixed one of each half; geometric mean, interval.

    best: of the first and of the second half, chosen by the other. pairs: how many were compared.
    """

    best: tuple[str, str]
    mean: float
    low: float
    high: float
    pairs: int


def joined(answers: Iterable[Took], least: int = LEAST_TOKENS) -> list[Took]:
    """Short answers joined with the next of their kind until there are `least` tokens.

    What is left over at the end of a kind belongs to the last that is long enough.
    """
    found = []
    in_order = sorted(answers, key=lambda each: each.kind)
    for _, of_kind in groupby(in_order, key=lambda each: each.kind):
        own: list[Took] = []
        for each in of_kind:
            if own and own[-1].tokens < least:
                own[-1] = _both(own[-1], each)
            else:
                own.append(each)
        if len(own) > 1 and own[-1].tokens < least:
            own[-2:] = [_both(*own[-2:])]
        found += own
    return found


def compare(speeds: Mapping[str, Sequence[float]], claimed: str, *, seed: int = 0) -> Compared:
    """Compare `claimed` with the best of the other ways, answer by answer.

    speeds: of every way, of the same answers in the same order. Every other answer is of the first
    half; the best way has the highest geometric mean there.
    """
    logs = {way: np.log(np.asarray(of, np.float64)) for way, of in speeds.items()}
    own = logs.pop(claimed)
    if len(own) < 2:
        raise ValueError("two answers or more are needed, one for each half")
    halves = np.arange(len(own)) % 2
    ratios = np.empty_like(own)
    best = []
    for half in (0, 1):
        here, other = halves == half, halves != half
        best.append(max(logs, key=lambda way: logs[way][other].mean()))
        ratios[here] = own[here] - logs[best[-1]][here]
    low, high = interval(ratios, seed=seed)
    return Compared(
        (best[0], best[1]),
        float(np.exp(ratios.mean())),
        float(np.exp(low)),
        float(np.exp(high)),
        len(own),
    )


def interval(values: Floats, *, seed: int = 0) -> tuple[float, float]:
    """A bootstrap's interval of the mean of `values` [n] (percentiles; Efron 1979)."""
    random = np.random.default_rng(seed)
    drawn = random.integers(len(values), size=(DRAWS, len(values)))
    tails = 100 * np.array([(1 - SHARE) / 2, (1 + SHARE) / 2])
    low, high = np.percentile(values[drawn].mean(axis=1), tails).tolist()
    return low, high


def _both(one: Took, other: Took) -> Took:
    return Took(one.kind, one.tokens + other.tokens, one.seconds + other.seconds)
