"""Tests of runtime/sampling.py: the filters, the noise, the choice, and the law they make."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import sampling
from runtime.errors import MirrorError, UsageError
from runtime.sampling import Sampling, choose, gumbel, probabilities, rank

Floats = NDArray[np.float32]

GOLDEN = np.load(Path(__file__).parent / "golden" / "sampling.npz")
CASES = sorted(name.removesuffix("/law") for name in GOLDEN if name.endswith("/law"))
# A table model of 4 tokens: row t holds the logits after token t.
TABLE = np.array(
    [[0.0, 1.0, -0.5, 0.3], [1.2, 0.0, 0.0, -2.0], [-1.0, 0.7, 0.7, 0.1], [0.5, 0.5, 0.5, 0.5]],
    dtype=np.float32,
)


def by_definition(
    logits: Floats, context: list[int], settings: Sampling, count: int = 1
) -> list[int]:
    """The order of choice, straight from the definition: noise for all, one sort."""
    scores = logits.astype(np.float64)
    if settings.repetition_penalty != 1:
        penalty = np.float32(settings.repetition_penalty)
        for token in set(context):
            old = logits[token]
            scores[token] = old * penalty if old < 0 else old / penalty
    if (settings.top_k, settings.top_p, settings.min_p) != (0, 1, 0):
        scores[probabilities(logits, context, settings) == 0] = -np.inf
    with np.errstate(over="ignore"):
        values = (scores - scores.max()) / settings.temperature
    values += gumbel(settings.seed, len(context), np.arange(scores.size))
    order = np.argsort(-values, kind="stable")[:count]
    return [int(token) for token in order if values[token] > -math.inf]


def chi_square(counts: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    """Pearson's statistic in standard deviations above its mean (cells - 1)."""
    expected = law * counts.sum()
    freedom = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("name", CASES)
def test_probabilities_equal_hugging_face(name: str) -> None:
    logits = GOLDEN[f"logits/{GOLDEN[f'{name}/source']}"]
    temperature, top_k, top_p, min_p, penalty = (float(v) for v in GOLDEN[f"{name}/settings"])
    law = np.zeros(logits.size)
    law[GOLDEN[f"{name}/kept"]] = GOLDEN[f"{name}/law"]
    settings = Sampling(temperature, int(top_k), top_p, min_p, penalty)
    found = probabilities(logits, GOLDEN[f"{name}/context"].tolist(), settings)
    np.testing.assert_array_equal(found > 0, law > 0)
    np.testing.assert_allclose(found, law, rtol=0, atol=1e-6)


@pytest.mark.parametrize("row", range(4))
def test_choose_on_every_cell_of_a_noise_table(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Sampling(temperature=0.8, repetition_penalty=1.5, seed=3)
    context = [1, row, row]
    for cell in itertools.product((-1.0, 0.25, 1.5), repeat=4):
        table = {(3, 3): np.array(cell)}
        monkeypatch.setattr(sampling, "gumbel", lambda s, at, ids, t=table: t[s, at][ids])
        scores = [
            float(s) * (1.5 if s < 0 else 1 / 1.5) if token in context else float(s)
            for token, s in enumerate(TABLE[row])
        ]
        values = [score / 0.8 + g for score, g in zip(scores, cell, strict=True)]
        best = max(range(4), key=lambda token: round(values[token], 5))
        assert choose(TABLE[row], context, settings) == best


def test_ties_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "gumbel", lambda _seed, _position, ids: np.zeros(ids.size))
    level = np.array([-1, 2, 0, 2, 2], dtype=np.float32)
    for temperature in (0.0, 1.0):
        settings = Sampling(temperature=temperature)
        assert choose(level, [], settings) == 1
        assert rank(level, [], settings, 4) == [1, 3, 4, 2]


def test_temperature_zero_is_argmax_after_the_penalty() -> None:
    logits = np.array([2.0, 3.0, 2.9, -1.0], dtype=np.float32)
    assert choose(logits, [1], Sampling()) == 1
    assert choose(logits, [1], Sampling(repetition_penalty=1.2)) == 2
    assert choose(logits, [1, 2, 1], Sampling(repetition_penalty=2.0)) == 0
    assert probabilities(logits, [1], Sampling(repetition_penalty=1.2)).tolist() == [0, 0, 1, 0]
    assert logits.tolist() == [2.0, 3.0, np.float32(2.9), -1.0]


def test_context_may_be_an_array() -> None:
    settings = Sampling(temperature=1.0, repetition_penalty=1.3, seed=9)
    for seen in ([1, 0], [3, 3, 2]):
        assert choose(TABLE[0], np.array(seen), settings) == choose(TABLE[0], seen, settings)


FILTERS = [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}, {"repetition_penalty": 1.5}]


@pytest.mark.parametrize("size", [30, 9000])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("filters", FILTERS)
def test_a_short_list_ranks_as_a_whole_row_where_all_else_is_impossible(
    size: int, temperature: float, filters: dict[str, float]
) -> None:
    draw = np.random.default_rng(7)
    for seed in range(20):
        tokens = np.sort(draw.choice(3 * size, size, replace=False))
        logits = draw.standard_normal(size).astype(np.float32) * 3
        row = np.full(3 * size, -np.inf, np.float32)
        row[tokens] = logits
        context = draw.choice(3 * size, 20).tolist()
        settings = Sampling(temperature=temperature, seed=seed, **filters)  # type: ignore[arg-type]
        found = rank(logits, context, settings, 3, tokens=tokens)
        assert found == rank(row, context, settings, 3)
        assert found[0] == choose(row, context, settings)


SHAPES: dict[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "normal": lambda draw: draw.standard_normal(6000) * 3,
    "level": lambda draw: draw.standard_normal(6000) * 0.01,
    "equal": lambda _: np.zeros(6000),
    "peaked": lambda draw: np.where(np.arange(6000) == 77, 30.0, draw.standard_normal(6000)),
    "mostly impossible": lambda draw: np.where(draw.random(6000) < 0.9995, -np.inf, 1.0),
    "far": lambda draw: draw.standard_normal(6000) * 1000,
    "wide": lambda draw: draw.standard_normal(40_000) * 2,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 0.7, 1.2, 40.0, 1e300])
def test_large_vocabulary_chooses_as_defined(shape: str, temperature: float) -> None:
    logits = SHAPES[shape](np.random.default_rng(5)).astype(np.float32)
    for seed in range(12):
        settings = Sampling(temperature=temperature, seed=seed)
        assert [choose(logits, [], settings)] == by_definition(logits, [], settings)
        assert rank(logits, [], settings, 6) == by_definition(logits, [], settings, 6)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 50},
        {"top_k": 5000},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"min_p": 0.01},
        {"min_p": 1e-5},
        {"top_k": 3000, "top_p": 0.99, "min_p": 1e-4, "repetition_penalty": 1.3},
    ],
)
def test_filtered_choice_is_as_defined(changes: dict[str, float]) -> None:
    logits = (np.random.default_rng(8).standard_normal(6000) * 2).astype(np.float32)
    context = [5, 17, 4000]
    for seed in range(20):
        settings = Sampling(temperature=1.1, seed=seed, **changes)  # type: ignore[arg-type]
        assert rank(logits, context, settings, 5) == by_definition(logits, context, settings, 5)
        assert [choose(logits, context, settings)] == by_definition(logits, context, settings)


def test_rank_at_temperature_zero_is_the_order_of_logits() -> None:
    logits = np.round(np.random.default_rng(2).standard_normal(6000) * 4).astype(np.float32)
    order = np.argsort(-logits, kind="stable").tolist()
    for count in (1, 7, 100, 6000, 9000):
        assert rank(logits, [], Sampling(), count) == order[:count]
    assert rank(logits, [], Sampling(), 0) == []


def test_rank_leaves_out_what_the_filters_remove() -> None:
    logits = np.array([0, 3, 1, 2], dtype=np.float32)
    assert sorted(rank(logits, [], Sampling(temperature=1.0, top_k=2), 4)) == [1, 3]
    logits[0] = -np.inf
    assert sorted(rank(logits, [], Sampling(temperature=1.0), 4)) == [1, 2, 3]
    assert rank(logits, [], Sampling(), 4) == [1, 3, 2]


def test_single_tokens_and_triples_follow_the_law() -> None:
    rows = np.array([probabilities(row, [], Sampling(temperature=0.9)) for row in TABLE])
    counts = np.zeros((4, 4, 4), dtype=np.int64)
    for seed in range(20_000):
        settings = Sampling(temperature=0.9, seed=seed)
        text = [3]
        for _ in range(3):
            text.append(choose(TABLE[text[-1]], text, settings))
        counts[text[1], text[2], text[3]] += 1
    law = rows[3][:, None, None] * rows[:, :, None] * rows[None, :, :]
    assert chi_square(counts.ravel(), law.ravel()) < 4
    for kept in range(3):
        others = tuple(axis for axis in range(3) if axis != kept)
        assert chi_square(counts.sum(others), law.sum(others)) < 4


def test_chi_square_can_fail() -> None:
    law = np.array([0.25, 0.25, 0.25, 0.25])
    assert chi_square(np.array([5000, 5000, 5000, 5000]), law) < 0
    assert chi_square(np.array([5200, 5000, 5000, 4800]), law) > 4


def uniform(seed: int, position: int, count: int = 40_000) -> NDArray[np.float64]:
    return np.asarray(np.exp(-np.exp(-gumbel(seed, position, np.arange(count)))))


def test_noise_is_uniform_beneath() -> None:
    for seed, position in ((0, 0), (1, 0), (0, 1), (2**64 - 1, 2**31), (2**63, 7)):
        bins = np.bincount((uniform(seed, position) * 64).astype(np.int64), minlength=64)
        assert abs(chi_square(bins, np.full(64, 1 / 64))) < 4.5


def test_noise_of_neighbours_is_uncorrelated() -> None:
    base = uniform(41, 1000)
    others = [uniform(41 + d, 1000) for d in (-1, 1, 2, 2**32, 2**63)]
    others += [uniform(41, 1000 + d) for d in (-1, 1, 2, 256, 2**16, 2**32)]
    others += [uniform(41 + d, 1000 - d) for d in (1, 2)] + [uniform(1000, 41)]
    others += [np.roll(base, lag) for lag in (1, 2, 3, 64, 256, 4096)]
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 / math.sqrt(base.size)
        both = np.bincount((base * 8).astype(int) * 8 + (other * 8).astype(int), minlength=64)
        assert abs(chi_square(both, np.full(64, 1 / 64))) < 5


def test_noise_of_one_token_is_uncorrelated_over_positions_and_seeds() -> None:
    token = np.array([17])
    along = np.array([gumbel(5, position, token)[0] for position in range(3000)])
    across = np.array([gumbel(seed, 5, token)[0] for seed in range(3000)])
    for series in (along, across):
        for lag in (1, 2, 3):
            assert abs(np.corrcoef(series[lag:], series[:-lag])[0, 1]) < 5 / math.sqrt(3000)
        assert abs(series.mean() - 0.5772) < 5 * 1.2825 / math.sqrt(3000)


def test_noise_does_not_depend_on_the_other_tokens() -> None:
    whole = gumbel(7, 11, np.arange(50_000))
    draw = np.random.default_rng(1)
    for count in (1, 2, 3, 5, 17, 1000):
        some = draw.choice(50_000, count, replace=False)
        np.testing.assert_array_equal(gumbel(7, 11, some), whole[some])
    assert len(set(whole.tolist())) == whole.size


@pytest.mark.parametrize("word", [0, 1, 2**32 - 1])
def test_noise_is_finite_at_the_ends_of_the_hash(
    word: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sampling, "_hash", lambda ids, _key: np.full(ids.shape, word, dtype=np.uint32)
    )
    with np.errstate(all="raise"):
        noise = gumbel(0, 0, np.arange(3))
    assert (noise > -3.7).all()
    assert (noise < 36.8).all()


def test_extreme_seeds_work_and_differ() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    seeds = (0, 1, 2**32, 2**63, 2**64 - 1)
    orders = {
        tuple(rank(logits, [0] * 9, Sampling(temperature=1.0, seed=seed), 9)) for seed in seeds
    }
    assert len(orders) == len(seeds)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": math.inf},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.5},
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, float]) -> None:
    (name,) = changes
    with pytest.raises(UsageError, match=name):
        Sampling(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [[np.nan, 1, 2], [0, np.inf, 1], [-np.inf] * 3])
def test_useless_logits_are_an_error(temperature: float, bad: list[float]) -> None:
    logits = np.array(bad, dtype=np.float32)
    settings = Sampling(temperature=temperature)
    with pytest.raises(MirrorError, match="logits"):
        choose(logits, [0], settings)
    with pytest.raises(MirrorError, match="logits"):
        rank(logits, [0], settings, 2)
    with pytest.raises(MirrorError, match="logits"):
        probabilities(logits, [0], settings)
