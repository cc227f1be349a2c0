"""Tests of runtime/guard.py: a token that is called sure stays the choice whatever is added."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.errors import MirrorError
from runtime.guard import is_sure
from runtime.sampling import Sampling, choose

Floats = NDArray[np.float32]

FILTERS: list[dict[str, float]] = [
    {},
    {"top_k": 1},
    {"top_k": 2},
    {"top_k": 3},
    {"top_p": 0.3},
    {"top_p": 0.7},
    {"top_p": 0.95},
    {"top_p": 1e-6},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 0.6},
    {"min_p": 1.0},
    {"top_k": 2, "top_p": 0.8},
    {"top_k": 2, "min_p": 0.4},
    {"top_p": 0.8, "min_p": 0.3},
    {"top_k": 3, "top_p": 0.9, "min_p": 0.1},
]
BOUNDS = (0.01, 0.125, 0.5)


def changes(size: int, draw: np.random.Generator) -> Floats:
    """Every corner of the cube [-1, 1]^size, and some random places within: [n, size]."""
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=size)))
    return np.concatenate([corners, draw.uniform(-1, 1, (8, size))]).astype(np.float32)


def check(logits: Floats, context: list[int], sampling: Sampling, draw: np.random.Generator) -> int:
    """How often the row is called sure; then no change within the bound may change the choice."""
    chosen = choose(logits, context, sampling)
    sure = 0
    for bound in BOUNDS:
        if is_sure(logits, context, sampling, bound):
            sure += 1
            for change in changes(logits.size, draw):
                other = logits + np.float32(bound / 2) * change
                assert choose(other, context, sampling) == chosen, (logits, sampling, bound, change)
    return sure


@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.8, 3.0])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_sure_token_is_chosen_whatever_is_added(
    filters: dict[str, Any], temperature: float
) -> None:
    draw = np.random.default_rng(4)
    sure, asked = 0, 0
    for seed, penalty in itertools.product(range(9), (1.0, 1.5, 0.6)):
        # Quarters make ties; with them scores lie on borders and a bound apart.
        logits = (np.round(draw.normal(size=4) * 6) / 4).astype(np.float32)
        context = draw.integers(0, 4, seed % 4).tolist()
        sampling = Sampling(temperature, repetition_penalty=penalty, seed=seed, **filters)
        sure += check(logits, context, sampling, draw)
        asked += len(BOUNDS)
    assert sure > asked / 10, "hardly any row was tried"


# At seed 7 token 1 wins by far where it passes: the noise is -0.1, 4.3, 0.4 and 0.2.
@pytest.mark.parametrize(
    ("logits", "filters", "sure_up_to"),
    [
        ([2, 1, 1.125], {"top_k": 2}, 0.1),
        ([2, 1.125, 1], {"top_k": 2}, 0.1),
        ([2, 1, 0], {"top_k": 2}, 0.2),
        ([2, 1, 0], {"top_p": 0.74}, 0.2),
        ([2, 1, 0], {"top_p": 0.70}, 0.1),
        ([2, 1, 0], {"top_p": 0.63}, 0.1),
        ([2, 1, 0], {"min_p": 0.36}, 0.01),
        ([2, 1, 0], {"min_p": 0.38}, 0.01),
        ([2, 1, 0], {"min_p": 0.20}, 0.2),
        # Equals at top-k's border pass together, and then the nucleus is wide enough for token 1.
        ([2, 1, 0, 0], {"top_k": 3, "top_p": 0.64}, 0),
        ([2, 1, 0, -1], {"top_k": 3, "top_p": 0.64}, 0.1),
    ],
)
def test_a_filter_whose_border_is_near_makes_a_token_unsure(
    logits: list[float], filters: dict[str, Any], sure_up_to: float
) -> None:
    row = np.array(logits, np.float32)
    sampling = Sampling(1.0, seed=7, **filters)
    found = [bound for bound in (0, 0.01, 0.1, 0.2) if is_sure(row, [], sampling, bound)]
    assert found[-1] == sure_up_to
    around = row + np.float32(0.125) * changes(row.size, np.random.default_rng(0))
    chosen = {choose(other, [], sampling) for other in around}
    assert is_sure(row, [], sampling, 0.25) == (len(chosen) == 1)


@pytest.mark.parametrize("filters", [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.02}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_wide_row_is_seldom_unsure_and_then_rightly(
    filters: dict[str, Any], temperature: float
) -> None:
    draw = np.random.default_rng(6)
    unsure = 0
    for seed in range(60):
        logits = (draw.standard_normal(5000) * 3).astype(np.float32)
        sampling = Sampling(temperature, repetition_penalty=1.1, seed=seed, **filters)
        context = draw.integers(0, 5000, 30).tolist()
        chosen = choose(logits, context, sampling)
        assert is_sure(logits, context, sampling, 0.0)
        if not is_sure(logits, context, sampling, 0.05):
            unsure += 1
            continue
        for _ in range(5):
            change = draw.choice([-0.025, 0.025], logits.size).astype(np.float32)
            assert choose(logits + change, context, sampling) == chosen
    assert unsure < 12


def test_impossible_tokens_do_not_come_into_play() -> None:
    row = np.full(5000, -np.inf, np.float32)
    row[[17, 4000]] = 1.0, 3.0
    for filters in ({}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert is_sure(row, [], Sampling(**filters), 1.9)
        assert not is_sure(row, [], Sampling(**filters), 2.1)
        row[17] = -np.inf
        for temperature in (0.0, 1e-300, 0.8, 1e300):
            sampling = Sampling(temperature, **filters)
            assert is_sure(row, [], sampling, 50.0)
        row[17] = 1.0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [[np.nan, 1, 2], [0, np.inf, 1], [-np.inf] * 3])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}])
def test_useless_logits_are_an_error(
    filters: dict[str, Any], temperature: float, bad: list[float]
) -> None:
    with pytest.raises(MirrorError, match="logits"):
        is_sure(np.array(bad, np.float32), [0], Sampling(temperature, **filters), 0.1)
