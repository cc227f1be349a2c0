"""Choose tokens: filters in a fixed order, then an exact sample by position-keyed Gumbel noise.

The noise of a token is a pure function of seed, position and token id, so the choice at a position
depends on nothing but the logits and the tokens before it: not on who proposed the token, nor on
how many positions were computed together (Daliri, Musco, Suresh 2024, drafter-invariant speculative
decoding). The filters are those of Hugging Face's logits processors, in their order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from runtime.errors import MirrorError, UsageError

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint32]

_MASK64 = 2**64 - 1
_FEW = 2048  # so few tokens get their noise at once; among more, those that cannot win are found


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    `temperature` 0 is the most likely token. `top_k` 0, `top_p` 1, `min_p` 0 and
    `repetition_penalty` 1 are off. Raises UsageError for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        rules = (
            ("temperature", 0 <= self.temperature < math.inf, "a finite number, 0 or more"),
            ("top_k", _whole(self.top_k) and self.top_k >= 0, "a whole number, 0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1 (off)"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 (off) and 1"),
            ("repetition_penalty", 1e-6 <= self.repetition_penalty <= 1e6,
             "between 1e-6 and 1e6 (1 is off)"),
            ("seed", _whole(self.seed) and 0 <= self.seed <= _MASK64,
             "a whole number from 0 to 2**64 - 1"),
        )  # fmt: skip
        for name, holds, wanted in rules:
            if not holds:
                raise UsageError(f"{name} must be {wanted}; it is {getattr(self, name)!r}.")


def choose(
    logits: Floats, context: Sequence[int] | NDArray[np.integer], sampling: Sampling
) -> int:
    """Choose the token that follows `context`.

    `logits`: float32 [vocabulary]; `context`: every token before the position, which is its length.
    Ties go to the lowest id. Raises MirrorError when no logit is a usable number.
    """
    scores = _penalised(logits, context, sampling.repetition_penalty)
    best = int(scores.argmax())
    _check(scores[best])
    if sampling.temperature == 0:
        return best
    ids, values = _contest(scores, len(context), sampling, 1)
    return int(ids[values.argmax()])


def rank(
    logits: Floats, context: Sequence[int] | NDArray[np.integer], sampling: Sampling, count: int
) -> list[int]:
    """List the first `count` tokens in the order in which `choose` prefers them.

    Takes what `choose` takes; `rank(...)[0]` is its answer. The list is shorter where fewer tokens
    survive the filters. Raises MirrorError as `choose` does.
    """
    if count < 1:
        return []
    scores = _penalised(logits, context, sampling.repetition_penalty)
    _check(scores.max())
    if sampling.temperature == 0:
        ids = np.flatnonzero(scores >= _kth_largest(scores, count))
        values = scores[ids].astype(np.float64)
    else:
        ids, values = _contest(scores, len(context), sampling, count)
    order = np.argsort(-values, kind="stable")[:count]
    return [int(ids[place]) for place in order if values[place] > -math.inf]


def probabilities(
    logits: Floats, context: Sequence[int] | NDArray[np.integer], sampling: Sampling
) -> Doubles:
    """Give the law that `choose` samples from: float64 [vocabulary], 0 where a filter removed it.

    At temperature 0 all of it lies on one token. Raises MirrorError as `choose` does.
    """
    law = np.zeros(logits.size)
    if sampling.temperature == 0:
        law[choose(logits, context, sampling)] = 1.0
        return law
    scores = _penalised(logits, context, sampling.repetition_penalty)
    _check(scores.max())
    ids = _survivors(scores, sampling)
    weights = np.exp(_scaled(scores[ids], scores.max(), sampling.temperature))
    law[ids] = weights / weights.sum()
    return law


def gumbel(seed: int, position: int, token_ids: NDArray[np.integer]) -> Doubles:
    """Give the noise of tokens at a position: float64, the shape of `token_ids`.

    A standard Gumbel variable from a counter-based hash of (seed, position, id), made from 52 bits
    and the half between two steps, so the uniform number under it is never 0 or 1 and the noise
    lies between -3.7 and 36.8.
    """
    ids = np.asarray(token_ids).astype(np.uint32)
    high, low = _keys(seed, position)
    bits = _hash(ids, high).astype(np.float64) * 2.0**20 + (_hash(ids, low) >> np.uint32(12))
    return -np.log(-np.log((bits + 0.5) * 2.0**-52))


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(best: np.float32) -> None:
    """Refuse scores whose largest value is no finite number (NaN counts as the largest)."""
    if not math.isfinite(best):
        raise MirrorError(
            f"The model's logits cannot be sampled from: the largest is {best}. "
            "The graph may be damaged, or made for another device; build the bundle again."
        )


def _penalised(
    logits: Floats, context: Sequence[int] | NDArray[np.integer], penalty: float
) -> Floats:
    """Apply the repetition penalty (Keskar et al. 2019, CTRL) to the tokens of the context, once."""
    if penalty == 1 or len(context) == 0:
        return logits
    seen = np.asarray(context, dtype=np.int64)
    scores = logits.copy()
    old = logits[seen]
    factor = np.float32(penalty)
    scores[seen] = np.where(old < 0, old * factor, old / factor)
    return scores


def _scaled(scores: Floats, top: np.float32, temperature: float) -> Doubles:
    """Give log-probabilities up to a constant, 0 for the best: float64."""
    with np.errstate(over="ignore"):
        return (scores.astype(np.float64) - np.float64(top)) / temperature


def _weights(scores: Floats, top: np.float32, temperature: float) -> Floats:
    """Give probabilities up to a constant, 1 for the best, in float32: quick and approximate."""
    # Bounded, since 0 times an infinite inverse would be NaN.
    inverse = np.float32(min(1 / temperature, 1e30))
    with np.errstate(over="ignore", under="ignore"):
        return np.exp((scores - top) * inverse)


def _kth_largest(values: Floats, k: int) -> np.float32:
    """Find the k-th largest value, or the smallest where there are fewer."""
    if k >= values.size:
        return np.float32(values.min())
    # The k-th largest of some columns' maxima bounds the answer from below and leaves few values.
    columns = values.size // 64
    if 2 * k < columns:
        peaks = values[: columns * 64].reshape(64, columns).max(axis=0)
        values = values[values >= np.partition(peaks, columns - k)[columns - k]]
    return np.float32(np.partition(values, values.size - k)[values.size - k])


def _survivors(scores: Floats, sampling: Sampling) -> Ids:
    """Apply top-k, top-p and min-p: the ids of the tokens that stay, ascending."""
    ids: Ids = np.arange(scores.size)
    if 0 < sampling.top_k < scores.size:
        ids = np.flatnonzero(scores >= _kth_largest(scores, sampling.top_k))
    if sampling.top_p < 1:
        ids = ids[_nucleus(scores[ids], sampling.temperature, sampling.top_p)]
    if sampling.min_p > 0:
        kept = scores[ids]
        limit = max(sampling.temperature * math.log(sampling.min_p), -3e38)
        ids = ids[kept - kept.max() >= np.float32(limit)]
    return ids


def _nucleus(scores: Floats, temperature: float, top_p: float) -> Ids:
    """Keep each token whose betters together have less than `top_p` (Holtzman et al. 2020).

    At the border the highest id among equals stays, as in Hugging Face's ascending sort. Returns
    places in `scores`, ascending.
    """
    top = scores.max()
    weights = _weights(scores, top, temperature)
    total = float(weights.sum(dtype=np.float64))
    # All tokens below this weight have at most 1 - top_p together: none of them can stay.
    places = np.flatnonzero(weights >= np.float32((1 - top_p) * total / scores.size * 0.999))
    ordered = np.sort(scores[places])[::-1]
    masses = np.cumsum(np.exp(_scaled(ordered, top, temperature))) / total
    count = min(1 + int(np.searchsorted(masses, top_p)), ordered.size)
    border = ordered[count - 1]
    kept = scores[places]
    above, equal = places[kept > border], places[kept == border]
    return np.sort(np.concatenate([above, equal[equal.size - (count - above.size) :]]))


def _contest(
    scores: Floats, position: int, sampling: Sampling, count: int
) -> tuple[Ids, Doubles]:
    """Give ids (ascending) with their noisy scores, among them the `count` best of all."""
    top = scores.max()
    filtered = 0 < sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0
    ids = _survivors(scores, sampling) if filtered else np.arange(scores.size)
    if ids.size > _FEW and count * 16 < ids.size:
        kept = scores[ids] if filtered else scores
        ids = _contenders(ids, kept, top, position, sampling, count)
    values = _scaled(scores[ids], top, sampling.temperature)
    return ids, values + gumbel(sampling.seed, position, ids)


def _contenders(
    ids: Ids, scores: Floats, top: np.float32, position: int, sampling: Sampling, count: int
) -> Ids:
    """Drop tokens that cannot be among the `count` best, without making their noise.

    A token with weight w and uniform u reaches a noisy score of L only if -log u <= w / e^L, hence
    only if 1 - u <= w / e^L, and the first half of the hash bounds 1 - u from below. L is what the
    `count` tokens with the best ratio reach. The slack of 1e-3 covers the rounding of float32.
    """
    high, _ = _keys(sampling.seed, position)
    rest = (~_hash(ids.astype(np.uint32), high)).astype(np.float32) + np.float32(1)
    weights = _weights(scores, top, sampling.temperature)
    ratios = weights / rest
    first = np.argpartition(ratios, ids.size - count)[ids.size - count :]
    noise = gumbel(sampling.seed, position, ids[first])
    level = float((_scaled(scores[first], top, sampling.temperature) + noise).min())
    if level < -40:  # weights this small would leave the normal range of float32
        return ids
    weights *= np.float32(math.exp(-level) * 2.0**32 * 1.001)
    return ids[rest <= weights + np.float32(2)]


def _mix64(value: int) -> int:
    """Scramble 64 bits (the finisher of splitmix64, Steele, Lea, Flood 2014)."""
    value &= _MASK64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK64
    return value ^ (value >> 31)


def _keys(seed: int, position: int) -> tuple[int, int]:
    """Derive the 64-bit keys of a position's two hash words."""
    key = _mix64(_mix64(seed + 0x9E3779B97F4A7C15) + position)
    return _mix64(key + 0xD1B54A32D192ED03), _mix64(key + 0x8CB92BA72F3D8DD7)


def _hash(ids: Words, key: int) -> Words:
    """Hash ids to uniform 32-bit words (Wellons' triple32 with the key's halves added between)."""
    word = ids + np.uint32(key & 0xFFFFFFFF)
    word ^= word >> np.uint32(17)
    word *= np.uint32(0xED5AD4BB)
    word ^= word >> np.uint32(11)
    word += np.uint32(key >> 32)
    word *= np.uint32(0xAC4C1B51)
    word ^= word >> np.uint32(15)
    word *= np.uint32(0x31848BAB)
    word ^= word >> np.uint32(14)
    return word
