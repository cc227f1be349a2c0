"""Tests of scripts/emulated/paired.py: joining, halves, and the interval."""

import numpy as np
import pytest

from scripts.emulated.paired import Took, compare, interval, joined


def took(kind: str, tokens: int) -> Took:
    return Took(kind, tokens, tokens / 10)


def test_short_answers_are_joined_within_their_kind() -> None:
    answers = [took("qa", 60), took("rag", 20), took("qa", 80), took("qa", 150), took("qa", 30)]
    assert [(each.kind, each.tokens) for each in joined(answers, 128)] == [
        ("qa", 140),
        ("qa", 180),  # what is left over belongs to the last one
        ("rag", 20),  # there is no more of it
    ]
    assert all(each.speed == pytest.approx(10) for each in joined(answers))


def test_long_answers_stay_as_they_are() -> None:
    answers = [took("qa", 128), took("qa", 200)]
    assert joined(answers, 128) == answers


def test_the_best_of_one_half_is_compared_on_the_other() -> None:
    # Every other answer is of the first half: there a is the faster one, on the second b is.
    speeds = {"a": [4.0, 1.0] * 4, "b": [2.0, 2.0] * 4, "claimed": [2.0, 2.0] * 4}
    compared = compare(speeds, "claimed")
    # Chosen on the second, b is compared on the first, 2/2; a on the second, 2/1.
    assert compared.best == ("b", "a")
    assert compared.mean == pytest.approx(2**0.5)
    assert compared.pairs == 8
    assert 1 <= compared.low < compared.mean < compared.high <= 2


def test_a_ratio_that_is_always_the_same_has_no_interval() -> None:
    compared = compare({"a": [1.0, 2.0, 4.0], "claimed": [0.9, 1.8, 3.6]}, "claimed")
    assert (compared.low, compared.mean, compared.high) == pytest.approx((0.9, 0.9, 0.9))


def test_one_answer_cannot_be_halved() -> None:
    with pytest.raises(ValueError, match="two answers"):
        compare({"a": [1.0], "claimed": [1.0]}, "claimed")


def test_the_interval_is_that_of_the_mean() -> None:
    values = np.random.default_rng(1).normal(0.5, 1.0, 400)
    low, high = interval(values)
    # The mean's deviation is 0.05; 1.96 of it each way.
    assert (high - low) == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.05)
    assert low < values.mean() < high
    assert interval(values) == (low, high)  # seeded
    assert interval(values, seed=2) != (low, high)
