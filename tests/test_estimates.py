"""Estimates: exact with a few observations, right in the limit, quick when things change."""

import math

import numpy as np
import pytest

from runtime.estimates import (
    COPIED,
    FIRST_PLACE,
    HALF_LIFE,
    HALF_LIFE_IN_SESSION,
    HALF_LIFE_UNSEEN,
    LATER_PLACES,
    LONGEST_MATCH,
    Estimates,
    Share,
)


def test_a_share_is_its_prior_then_what_is_seen() -> None:
    share = Share(0.5, weight=2.0)
    assert share.at() == 0.5
    share.learn(is_so=True)
    usual = (1 + 0.5 * 2) / 3  # of the session, which is this one observation and the prior
    assert share.at() == pytest.approx((1 + 2 * usual) / 3)
    share.learn(is_so=False)
    kept, ever = 0.5 ** (1 / HALF_LIFE), 0.5 ** (1 / HALF_LIFE_IN_SESSION)
    usual = (ever + 0.5 * 2) / (ever + 1 + 2)
    assert share.at() == pytest.approx((kept + 2 * usual) / (kept + 1 + 2))


def test_what_is_forgotten_of_a_text_returns_to_what_the_session_has_shown() -> None:
    share = Share(0.9, weight=2.0)
    for _ in range(100):
        share.learn(is_so=False)
    share.fade(0.0)
    assert share.at() < 0.05
    assert share.at(prior=1.0) < 0.05  # what a place before it shows is no better guess


def test_an_observation_weighs_half_after_the_half_life() -> None:
    share = Share(0.0, weight=1.0)
    share.learn(is_so=True)
    for _ in range(int(HALF_LIFE)):
        share.learn(is_so=False)
    assert share.yes == pytest.approx(0.5)


def test_what_is_unknown_is_hoped_for_and_hope_shrinks_with_knowledge() -> None:
    share = Share(0.5, weight=2.0)
    hopes = []
    for number in range(20):
        hopes.append(share.at(1.0) - share.at())
        share.learn(is_so=number % 2 == 0)
    assert hopes[0] == pytest.approx(math.sqrt(0.25 / 3))
    assert hopes[-1] < hopes[0] / 2
    assert Share(0.9, weight=0.1).at(3.0) == 1.0


def test_places_are_counted_as_long_as_all_before_them_stood() -> None:
    estimates = Estimates(2)
    before = estimates.model(4)
    assert before[0] == FIRST_PLACE
    estimates.learn_model(proposed=4, accepted=2, rank=1)
    after = estimates.model(4)
    assert len(after) == 5
    signs = [np.sign(new - old) for new, old in zip(after, before, strict=True)]
    assert signs == [1, 1, -1, 0, 0]


def test_of_a_place_that_was_never_seen_as_much_is_expected_as_of_the_one_before() -> None:
    estimates = Estimates(2)
    for _ in range(40):
        estimates.learn_model(proposed=2, accepted=2, rank=None)
    first, second, third, fourth = estimates.model(3)
    assert min(first, second) > 0.9
    assert third == pytest.approx(second)
    assert fourth == LATER_PLACES  # of the third nothing was seen either
    for _ in range(40):
        estimates.learn_model(proposed=3, accepted=2, rank=9)
    assert estimates.model(2)[2] < 0.1


def test_the_place_after_a_whole_chain_is_learned_only_if_the_draft_guessed_there() -> None:
    for rank, sign in ((None, 0), (0, 1), (1, -1), (9, -1)):
        estimates = Estimates(2)
        before = estimates.model(2)[2]
        estimates.learn_model(proposed=2, accepted=2, rank=rank)
        assert np.sign(estimates.model(2)[2] - before) == sign


@pytest.mark.parametrize(
    ("rank", "signs"),
    [(None, [0, 0, 0]), (0, [0, 0, 0]), (1, [1, 0, 0]), (3, [-1, -1, 1]), (4, [-1, -1, -1])],
)
def test_ranks(rank: int | None, signs: list[int]) -> None:
    estimates = Estimates(3)
    before = [share.at() for share in estimates.ranks]
    estimates.learn_model(proposed=1, accepted=1 if rank == 0 else 0, rank=rank)
    after = [share.at() for share in estimates.ranks]
    assert [np.sign(new - old) for new, old in zip(after, before, strict=True)] == signs


def test_each_copied_token_that_stands_makes_the_match_longer() -> None:
    estimates = Estimates(0)
    assert estimates.lookup(2, 4) == [COPIED[1], COPIED[2], COPIED[3], COPIED[3]]
    before = estimates.lookup(1, LONGEST_MATCH)
    estimates.learn_lookup(match_length=2, proposed=4, accepted=1)
    after = estimates.lookup(1, LONGEST_MATCH)
    signs = [np.sign(new - old) for new, old in zip(after, before, strict=True)]
    assert signs == [0, 1, -1, 0, 0, 0, 0, 0]
    estimates.learn_lookup(match_length=LONGEST_MATCH, proposed=3, accepted=3)
    assert estimates.lookup(30, 2)[0] > before[-1]


def test_in_the_limit_estimates_are_the_truth() -> None:
    rng = np.random.default_rng(3)
    truth = [0.8, 0.6, 0.5]
    estimates = Estimates(2)
    found, ranks = [], []
    for _ in range(1000):
        accepted = next((at for at in range(2) if rng.random() > truth[at]), 2)
        whole_right = accepted == 2 and rng.random() < truth[2]
        rank = 0 if whole_right else int(rng.choice([1, 2, 3], p=[0.5, 0.2, 0.3]))
        estimates.learn_model(proposed=2, accepted=accepted, rank=rank)
        found.append(estimates.model(2))
        ranks.append([share.at() for share in estimates.ranks])
    assert np.mean(found[200:], axis=0) == pytest.approx(truth, abs=0.05)
    assert np.mean(ranks[200:], axis=0) == pytest.approx([0.5, 0.4], abs=0.08)  # the prior's pull


def test_hits_correct_what_ranks_let_expect() -> None:
    estimates = Estimates(1)
    assert estimates.hit_rate(4, 0.8) == 0.8
    estimates.learn_hit(4, is_hit=False)
    assert estimates.hit_rate(4, 0.8) == pytest.approx(0.8 * 8 / 9)
    assert estimates.hit_rate(8, 0.8) == 0.8
    for _ in range(200):
        estimates.learn_hit(4, is_hit=False)
    assert estimates.hit_rate(4, 0.8) < 0.2


def test_what_is_not_looked_at_fades_and_a_new_text_halves() -> None:
    estimates = Estimates(1)
    for _ in range(50):
        estimates.learn_model(proposed=1, accepted=0, rank=1)
    seen = estimates.places[0].seen
    estimates.pass_by(int(HALF_LIFE_UNSEEN))
    assert estimates.places[0].seen == pytest.approx(seen / 2)
    estimates.begin()
    assert estimates.places[0].seen == pytest.approx(seen / 4)


def test_what_the_exit_names_counts_apart_from_what_the_draft_does() -> None:
    estimates = Estimates(2)
    for _ in range(200):
        estimates.learn_hit(4, is_hit=True, of_exit=2)
        estimates.learn_hit(4, is_hit=False)
        estimates.learn_exit(is_named=True)
    assert estimates.hit_rate(4, 0.5, of_exit=2) > 0.8
    assert estimates.hit_rate(4, 0.5) < 0.2
    assert estimates.hit_rate(2, 0.5) == 0.5
    assert estimates.exits.at() > 0.9
