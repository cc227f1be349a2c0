"""Says whether `choose` would give the same token if every logit were a little different.

A row of logits that was computed in another order than plain decoding computes it may differ from
that one by a known bound. Where the choice does not hang on so little, the row may be used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.sampling import (
    Floats,
    Sampling,
    check_usable,
    contest,
    kth_largest,
    margin,
    penalised,
    rough_weights,
)

_ROUNDING = 1.01  # a hundredth of the bound covers float32's rounding of scores up to 1e5 bounds
_MASS_ROUNDING = 1e-5  # of float32 weights and their sums


def is_sure(
    logits: Floats,
    context: Sequence[int] | NDArray[np.integer],
    sampling: Sampling,
    bound: float,
) -> bool:
    """Whether `choose` gives one token for all logits within `bound` / 2 of these, each of them.

    Takes what `choose` takes; `bound` is in logits, 0 is always sure. The answer may be False for
    a token that is sure, never True for one that is not: the token that wins among all that could
    pass the filters must do so by more than the bound, and must surely pass them itself. Raises
    MirrorError as `choose` does.
    """
    if bound == 0:
        return True
    # The penalty stretches differences of the context's tokens at most so far.
    stretch = max(sampling.repetition_penalty, 1 / sampling.repetition_penalty)
    reach = bound * stretch * _ROUNDING
    scored = (sampling.top_k, sampling.top_p, sampling.min_p) != (0, 1, 0)
    if sampling.temperature == 0 or not scored:
        return margin(logits, context, sampling) > reach
    scores = penalised(logits, context, sampling.repetition_penalty)
    check_usable(scores.max())
    filters = _Filters.of(scores, sampling, reach)
    lowest = filters.lowest()
    ids = None if lowest == -math.inf else np.flatnonzero(scores >= lowest)
    ids, values = contest(scores, ids, len(context), sampling, 2)
    first = int(values.argmax())
    others = np.delete(values, first)
    lead = values[first] - others.max(initial=-math.inf)
    return bool(lead * sampling.temperature > reach) and filters.keep(float(scores[ids[first]]))


@dataclass(frozen=True, slots=True)
class _Filters:
    """The filters on scores of which any two may come nearer to each other by up to `reach`.

    pool: the scores that could pass top-k, from `possible_from` on; from `sure_from` on they do.
    weights: theirs, up to a constant, made only where top-p is on. top, second: the best of them.
    """

    sampling: Sampling
    reach: float
    pool: Floats
    possible_from: float
    sure_from: float
    weights: Floats
    top: np.float32
    second: float

    @classmethod
    def of(cls, scores: Floats, sampling: Sampling, reach: float) -> "_Filters":
        """Look at the scores of one row, float32 [vocabulary]."""
        pool, possible_from, sure_from = scores, -math.inf, -math.inf
        if 0 < sampling.top_k < scores.size:
            next_best = float(kth_largest(scores, sampling.top_k + 1))
            sure_from = next_best + reach
            pool = scores[scores >= next_best - reach]
            possible_from = float(kth_largest(pool, sampling.top_k)) - reach
            pool = pool[pool >= possible_from]
        top = scores.max()
        weights = pool[:0]
        if sampling.top_p < 1:
            weights = rough_weights(pool, top, sampling.temperature)
        second = float(kth_largest(pool, 2)) if pool.size > 1 else -math.inf
        return cls(sampling, reach, pool, possible_from, sure_from, weights, top, second)

    def lowest(self) -> float:
        """No score below this can pass."""
        return max(self.possible_from, self._lowest_nucleus(), self._min_p() - self.reach)

    def keep(self, score: float) -> bool:
        """Whether a token of this score, at least `lowest`, surely passes."""
        limit = self._min_p() + self.reach
        if score == self.top:  # nothing but the second best can then become the best
            limit += self.second - float(self.top)
        return score >= self.sure_from and score >= limit and self._nucleus_keeps(score)

    def _min_p(self) -> float:
        """The score that min-p asks for."""
        if self.sampling.min_p == 0:
            return -math.inf
        limit = self.sampling.temperature * math.log(self.sampling.min_p)
        return float(self.top) + max(limit, -3e38)

    def _lowest_nucleus(self) -> float:
        """The lowest score that the nucleus can reach down to.

        A token is out when those surely better than it hold `top_p` of the mass even where theirs
        shrank and all others' grew. (Where it passes top-k, all better ones do.)
        """
        if self.sampling.top_p == 1:
            return -math.inf
        total = float(self.weights.sum(dtype=np.float64))
        share = self._share(self.reach) + _MASS_ROUNDING
        # All tokens below this weight have too little together to be needed for that.
        least = np.float32((1 - share) * total / self.pool.size * 0.999)
        heavy = self.pool[self.weights >= least]
        ordered = np.sort(heavy)[::-1]
        weights = rough_weights(ordered, self.top, self.sampling.temperature)
        masses = np.cumsum(weights, dtype=np.float64)
        border = int(np.searchsorted(masses, share * total))
        return float(ordered[border]) - self.reach if border < ordered.size else -math.inf

    def _nucleus_keeps(self, score: float) -> bool:
        """Whether all that could be better hold less than `top_p` even where their mass grew."""
        if self.sampling.top_p == 1:
            return True
        better = self.pool >= score - self.reach
        if np.count_nonzero(better) == 1:
            return True
        worse = ~better & (self.pool >= self.sure_from)
        own = float(self.weights[self.pool == np.float32(score)][0])
        above = float(self.weights[better].sum(dtype=np.float64)) - own
        rest = float(self.weights[worse].sum(dtype=np.float64)) + own
        return above < (self._share(-self.reach) - _MASS_ROUNDING) * (above + rest)

    def _share(self, reach: float) -> float:
        """What `top_p` becomes where one side's scores move by `reach` against the other's."""
        shift = min(max(-reach / self.sampling.temperature, -700.0), 700.0)
        return self.sampling.top_p / (
            self.sampling.top_p + (1 - self.sampling.top_p) * math.exp(shift)
        )
