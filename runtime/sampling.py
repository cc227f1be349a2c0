"""Choose tokens: filters in a fixed order, then an exact sample by position-keyed Gumbel noise.

The noise of a token is a pure function of seed, position and token id, so the choice at a position
depends on nothing but the logits and the tokens before it: not on who proposed the token, nor on
how many positions were computed together (Daliri, Musco, Suresh 2024, drafter-invariant speculative
decoding). The filters are those of Hugging Face's logits processors, in their order.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.checks import real, whole
from runtime.errors import MirrorError, UsageError

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint32]
_Real = TypeVar("_Real", np.float32, np.float64)

_LARGEST = sys.float_info.max
_MASK64 = 2**64 - 1
_FEW = 2048  # so few tokens get their noise at once; among more, those that cannot win are found
_CHUNK = 16384  # arrays of this many words stay in the cache and off the page allocator


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
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            object.__setattr__(self, name, real(name, getattr(self, name)))
        object.__setattr__(self, "top_k", whole("top_k", self.top_k, least=0))
        object.__setattr__(self, "seed", whole("seed", self.seed, least=0, most=_MASK64))
        rules = (
            ("temperature", 0 <= self.temperature <= _LARGEST, "a finite number, 0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1 (off)"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 (off) and 1"),
            ("repetition_penalty", 1e-6 <= self.repetition_penalty <= 1e6,
             "between 1e-6 and 1e6 (1 is off)"),
        )  # fmt: skip
        for name, holds, wanted in rules:
            if not holds:
                raise UsageError(f"{name} must be {wanted}; it is {getattr(self, name)!r}.")


def choose(logits: Floats, context: Sequence[int] | NDArray[np.integer], sampling: Sampling) -> int:
    """Choose the token that follows `context`.

    `logits`: float32 [vocabulary]; `context`: every token before the position, which is its length.
    Ties go to the lowest id. Raises MirrorError when no logit is a usable number.
    """
    scores = penalised(logits, context, sampling.repetition_penalty)
    best = int(scores.argmax())
    check_usable(scores[best])
    if sampling.temperature == 0:
        return best
    ids, values = contest(scores, _survivors(scores, sampling), len(context), sampling, 1)
    return int(ids[values.argmax()])


def rank(
    logits: Floats,
    context: Sequence[int] | NDArray[np.integer],
    sampling: Sampling,
    count: int,
    *,
    tokens: Ids | None = None,
) -> list[int]:
    """List the first `count` tokens in the order in which `choose` prefers them.

    Takes what `choose` takes; `rank(...)[0]` is its answer. The list is shorter where fewer tokens
    survive the filters. `tokens` [n] int64, ascending, says of which tokens `logits` [n] are, as if
    all others had -inf. Raises MirrorError as `choose` does.
    """
    if count < 1:
        return []
    scores = penalised(logits, context, sampling.repetition_penalty, tokens)
    check_usable(scores.max())
    if sampling.temperature == 0:
        ids = np.flatnonzero(scores >= kth_largest(scores, count))
        values = scores[ids].astype(np.float64)
    else:
        kept = _survivors(scores, sampling)
        ids, values = contest(scores, kept, len(context), sampling, count, tokens)
    order = np.argsort(-values, kind="stable")[:count]
    found = ids[order[values[order] > -math.inf]]
    return [int(token) for token in _named(found, tokens)]


def margin(
    logits: Floats, context: Sequence[int] | NDArray[np.integer], sampling: Sampling
) -> float:
    """How far the second choice is behind the first, in logits; infinite without a second.

    Takes what `choose` takes. Where the logits are known up to a difference, the choice is certain
    only beyond twice that.
    """
    scores = penalised(logits, context, sampling.repetition_penalty)
    check_usable(scores.max())
    if sampling.temperature == 0:
        ids = np.flatnonzero(scores >= kth_largest(scores, 2))
        values = scores[ids].astype(np.float64)
    else:
        ids, values = contest(scores, _survivors(scores, sampling), len(context), sampling, 2)
    if values.size < 2:
        return math.inf
    second, first = np.partition(values, values.size - 2)[-2:]
    return float(first - second) * (sampling.temperature or 1.0)


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
    scores = penalised(logits, context, sampling.repetition_penalty)
    check_usable(scores.max())
    ids = _survivors(scores, sampling)
    kept = slice(None) if ids is None else ids
    weights = np.exp(_scaled(scores[kept], scores.max(), sampling.temperature))
    law[kept] = weights / weights.sum()
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


def check_usable(best: np.float32) -> None:
    """Refuse scores whose largest value is no finite number (NaN counts as the largest)."""
    if not math.isfinite(best):
        raise MirrorError(
            f"The model's logits cannot be sampled from: the largest is {best}. "
            "The graph may be damaged, or made for another device; build the bundle again."
        )


def _named(places: Ids, tokens: Ids | None) -> Ids:
    """The ids of the tokens at `places` among the scores."""
    return places if tokens is None else tokens[places]


def penalised(
    logits: Floats,
    context: Sequence[int] | NDArray[np.integer],
    penalty: float,
    tokens: Ids | None = None,
) -> Floats:
    """Apply the repetition penalty (Keskar et al. 2019, CTRL) to the tokens of the context."""
    if penalty == 1 or len(context) == 0:
        return logits
    seen = np.asarray(context, dtype=np.int64)
    seen = seen[seen < logits.size] if tokens is None else np.flatnonzero(np.isin(tokens, seen))
    scores = logits.copy()
    old = logits[seen]
    factor = np.float32(penalty)
    scores[seen] = np.where(old < 0, old * factor, old / factor)
    return scores


def _scaled(scores: Floats, top: np.float32, temperature: float) -> Doubles:
    """Give log-probabilities up to a constant, 0 for the best: float64."""
    with np.errstate(over="ignore"):
        return (scores.astype(np.float64) - np.float64(top)) / temperature


def rough_weights(scores: Floats, top: np.float32, temperature: float) -> Floats:
    """Give probabilities up to a constant, 1 for the best, in float32: quick and approximate."""
    # Bounded, since 0 times infinity would be NaN.
    inverse = np.float32(min(max(1 / temperature, 1e-37), 1e30))
    with np.errstate(over="ignore", under="ignore"):
        weights: Floats = scores - top
        weights *= inverse
        np.exp(weights, out=weights)
    return weights


def kth_largest(values: NDArray[_Real], k: int) -> _Real:
    """Find the k-th largest value, or the smallest where there are fewer."""
    place = max(values.size - k, 0)
    # The k-th largest of some columns' maxima bounds the answer from below and leaves few values.
    columns = values.size // 64
    if 2 * k < columns:
        peaks = values[: columns * 64].reshape(64, columns).max(axis=0)
        values = values[values >= np.partition(peaks, columns - k)[columns - k]]
        place = values.size - k
    found: _Real = np.partition(values, place)[place]
    return found


def _survivors(scores: Floats, sampling: Sampling) -> Ids | None:
    """Apply top-k, top-p and min-p: the ids of the tokens that stay, ascending, or None for all."""
    ids: Ids | None = None
    kept = scores
    if 0 < sampling.top_k < scores.size:
        ids = np.flatnonzero(scores >= kth_largest(scores, sampling.top_k))
        kept = scores[ids]
    if sampling.top_p < 1:
        places = _nucleus(kept, sampling.temperature, sampling.top_p)
        ids = places if ids is None else ids[places]
        kept = scores[ids]
    if sampling.min_p > 0:
        limit = max(sampling.temperature * math.log(sampling.min_p), -3e38)
        places = np.flatnonzero(kept - kept.max() >= np.float32(limit))
        ids = places if ids is None else ids[places]
    return ids


def _nucleus(scores: Floats, temperature: float, top_p: float) -> Ids:
    """Keep each token whose betters together have less than `top_p` (Holtzman et al. 2020).

    Of equals at the border the highest ids stay, as after Hugging Face's ascending sort. Returns
    places in `scores`, ascending.
    """
    top = scores.max()
    weights = rough_weights(scores, top, temperature)
    total = float(weights.sum(dtype=np.float64))
    # All tokens below this weight have at most 1 - top_p together: none of them can stay.
    places = np.flatnonzero(weights >= np.float32((1 - top_p) * total / scores.size * 0.999))
    kept = scores[places]
    ordered = np.sort(kept)[::-1]
    masses = np.cumsum(rough_weights(ordered, top, temperature), dtype=np.float64) / total
    count = min(1 + int(np.searchsorted(masses, top_p)), ordered.size)
    border = ordered[count - 1]
    stays = kept > border
    equal = np.flatnonzero(kept == border)
    stays[equal[equal.size - (count - np.count_nonzero(stays)) :]] = True
    found: Ids = places[stays]
    return found


def contest(
    scores: Floats,
    ids: Ids | None,
    position: int,
    sampling: Sampling,
    count: int,
    tokens: Ids | None = None,
) -> tuple[Ids, Doubles]:
    """Give places (ascending) with their noisy scores, among them the `count` best of `ids`.

    `ids`: the places that take part, ascending; None is all.
    """
    if (scores if ids is None else ids).size > _FEW and count <= _FEW // 16:
        ids = _contenders(scores, ids, position, sampling, count, tokens)
    elif ids is None:
        ids = np.arange(scores.size)
    values = _scaled(scores[ids], scores.max(), sampling.temperature)
    return ids, values + gumbel(sampling.seed, position, _named(ids, tokens))


def _contenders(
    scores: Floats,
    ids: Ids | None,
    position: int,
    sampling: Sampling,
    count: int,
    tokens: Ids | None,
) -> Ids:
    """Find all of `ids` that can be among the `count` best, without making most of the noise.

    A token of weight w and uniform u reaches a noisy score of L only if -log u <= w / e^L, hence
    only if 1 - u <= w / e^L, and the first hash word bounds 1 - u from below. L is what the tokens
    of the best such ratios reach. The slack of 1e-3 covers the rounding of float32.
    """
    top = scores.max()
    high, _ = _keys(sampling.seed, position)
    total = scores.size if ids is None else ids.size
    names = tokens if ids is None else _named(ids, tokens)
    ratios = np.empty(total, dtype=np.float32)
    for start in range(0, total, _CHUNK):
        stop = min(start + _CHUNK, total)
        part = scores[start:stop] if ids is None else scores[ids[start:stop]]
        if names is None:
            words = np.arange(start, stop, dtype=np.uint32)
        else:
            words = names[start:stop].astype(np.uint32)
        words = _hash(words, high)
        rest = np.invert(words, out=words).astype(np.float32)
        # The second word adds 20 bits below: where the first leaves 0, less than one of them.
        np.maximum(rest, np.float32(2.0**-22), out=rest)
        np.divide(rough_weights(part, top, sampling.temperature), rest, out=ratios[start:stop])
    first = np.flatnonzero(ratios >= (ratios.max() if count == 1 else kth_largest(ratios, count)))
    first = first if ids is None else ids[first]
    noisy = _scaled(scores[first], top, sampling.temperature)
    noisy += gumbel(sampling.seed, position, _named(first, tokens))
    level = float(kth_largest(noisy, count))
    if level < -40:  # a weight that matters could be below the range of float32
        return np.arange(total) if ids is None else ids
    places = np.flatnonzero(ratios >= np.float32(math.exp(level) * 2.0**-32 / 1.001))
    return places if ids is None else ids[places]


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
    shifted = word >> np.uint32(17)
    word ^= shifted
    word *= np.uint32(0xED5AD4BB)
    word ^= np.right_shift(word, np.uint32(11), out=shifted)
    word += np.uint32(key >> 32)
    word *= np.uint32(0xAC4C1B51)
    word ^= np.right_shift(word, np.uint32(15), out=shifted)
    word *= np.uint32(0x31848BAB)
    word ^= np.right_shift(word, np.uint32(14), out=shifted)
    return word
