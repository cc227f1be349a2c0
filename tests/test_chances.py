"""Tests of runtime/chances.py: how proposals may break, worked out by hand."""

from collections.abc import Sequence

import pytest

from runtime.chances import Chances
from runtime.estimates import Estimates, Share


def chances(acceptance: Sequence[float], *ranks: float) -> Chances:
    """Of estimates that are sure of these; acceptance also of the place after the longest."""
    estimates = Estimates(len(ranks), places=[Share(each) for each in acceptance])
    estimates.ranks = [Share(each) for each in ranks]
    return Chances(estimates, len(acceptance) - 1)


def test_tokens_and_whole_proposals() -> None:
    found = chances([0.8, 0.5, 0.5], 0.5)
    assert found.wholes == pytest.approx([1, 0.8, 0.4, 0.2])
    assert [found.tokens(length) for length in range(3)] == pytest.approx([1, 1.8, 2.2])


def test_ways_to_break_are_followed_in_their_order() -> None:
    # Place 1: 0.2 broken, place 2: 0.4, whole 0.4: half of it the first choice, 0.1 the runner-up.
    found = chances([0.8, 0.5, 0.5], 0.5)
    rates = [found.hit_rate(2, 0, count, any_next=False) for count in range(6)]
    assert rates == pytest.approx([0, 0.2, 0.4, 0.5, 0.6, 0.6])
    assert found.hit_rate(0, 0, 1, any_next=False) == pytest.approx(0.8)
    assert found.hit_rate(0, 0, 2, any_next=False) == pytest.approx(0.8 + 0.2 * 0.5)
    # A second runner-up is right in 0.5 of what the first leaves.
    two = chances([0.8, 0.5], 0.5, 0.5)
    assert two.hit_rate(0, 0, 3, any_next=False) == pytest.approx(0.8 + 0.1 + 0.05)


def test_where_any_word_may_follow_the_whole_proposal_is_one_hypothesis() -> None:
    found = chances([0.8, 0.5, 0.5], 0.5)
    assert found.hit_rate(2, 0, 1, any_next=True) == pytest.approx(0.4)
    assert found.hit_rate(2, 0, 9, any_next=True) == pytest.approx(0.4 + 0.2 + 0.1)


def test_leaves_are_taken_from_what_hypotheses_are_left() -> None:
    found = chances([0.8, 0.5, 0.5], 0.5)
    assert [found.gain(2, count) for count in (0, 1, 2, 9)] == pytest.approx([0, 0.2, 0.3, 0.3])
    assert found.tokens(2, 1) == pytest.approx(2.2 + 0.2)
    assert found.hit_rate(2, 1, 1, any_next=False) == pytest.approx(0.2)  # the whole, and its word
    assert found.hit_rate(2, 1, 9, any_next=False) == pytest.approx(0.6 - 0.2)
    assert found.gain(0, 4) == 0


def test_hope_is_above_what_is_expected() -> None:
    estimates = Estimates(2)
    mean, hope = Chances(estimates, 4), Chances(estimates, 4, 1.0)
    assert all(more > less for more, less in zip(hope.acceptance, mean.acceptance, strict=True))
    assert hope.tokens(4) > mean.tokens(4)
