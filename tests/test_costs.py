"""The cost model against numbers worked out by hand."""

import math
from collections.abc import Callable

import pytest

from runtime.costs import (
    Costs,
    Curve,
    Hits,
    Span,
    Stage,
    autoregressive_s,
    bare_s,
    drafting_rows,
    expected_tokens,
    hit_s,
    look_ahead_rows,
    looking_ahead,
    lookup_s,
    redraft_s,
    rollout_rows,
    speculative_s,
    together,
    tokens_per_second,
)

TARGET = Curve((1, 2, 4), (10.0, 12.0, 20.0))
DRAFT = Curve((1, 11), (1.0, 2.0))  # 0.9 + 0.1 a row


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(0, 10), (1, 10), (1.5, 11), (2, 12), (3, 16), (4, 20), (5, 24), (14, 60)],
)
def test_a_curve_is_linear_between_points_and_goes_on_by_the_last_step(
    rows: float, seconds: float
) -> None:
    assert TARGET(rows) == seconds


def test_one_point_is_a_constant_and_a_falling_end_goes_on_level() -> None:
    assert [Curve((8,), (3.0,))(rows) for rows in (1, 8, 80)] == [3, 3, 3]
    assert [Curve((1, 2), (4.0, 3.0))(rows) for rows in (1, 2, 10)] == [4, 3, 3]


def test_alone_or_with_copied_tokens_only_the_target_counts() -> None:
    costs = Costs(TARGET, DRAFT, overhead_s=0.5, handing_over_s=9)
    assert autoregressive_s(costs) == 10.5
    assert lookup_s(costs, 3) == 20.5
    assert lookup_s(costs, 0) == speculative_s(costs, 0) == autoregressive_s(costs)


@pytest.mark.parametrize(
    ("count", "per_pass", "rows"),
    [
        (0, 1, ()),
        (1, 1, (2,)),
        (3, 1, (2, 2, 3)),  # two of the text, then its last token and the guesses so far
        (4, 5, (5,)),  # two of the text, three masks
        (5, 5, (6,)),
        (7, 5, (6, 7)),  # then the last token, the five guesses and a mask
    ],
)
def test_rows_of_the_passes_that_draft(count: int, per_pass: int, rows: tuple[int, ...]) -> None:
    assert drafting_rows(count, per_pass) == rows


@pytest.mark.parametrize(
    ("count", "branches", "per_pass", "rows"),
    [
        (2, 4, 3, (3 + 4 * 3,)),  # γ ≤ k - 1: one pass
        (4, 2, 5, (5 + 10,)),
        (6, 2, 5, (7 + 10, 1 + 2 * 7)),  # a second one, which feeds the branches again
        (5, 2, 5, (6 + 5 + 4, 1 + 5 + 1)),  # γ = k: of one the first word is open
        (2, 3, 1, (3 + 2 + 0, 1 + 2 * 2 + 1, 1 + 2)),
    ],
)
def test_rows_of_the_passes_that_look_ahead(
    count: int, branches: int, per_pass: int, rows: tuple[int, ...]
) -> None:
    assert look_ahead_rows(count, branches, per_pass) == rows


def test_with_the_word_after_it_a_proposal_takes_no_pass_more() -> None:
    assert drafting_rows(4, 5, has_next=True, unread=1) == (5,)
    assert drafting_rows(5, 5, has_next=True, unread=1) == (5,)
    assert drafting_rows(6, 5, has_next=True, unread=1) == (5, 1 + 5 + 1)
    assert rollout_rows(4, 5, 3, known=2, unread=1) == (1 + 2 + 2,)
    assert rollout_rows(4, 5, 3, known=4) == ()


def test_a_speculative_round_is_drafting_and_verifying() -> None:
    one_by_one = Costs(TARGET, DRAFT, overhead_s=0.5, handing_over_s=0.25)
    assert speculative_s(one_by_one, 3) == pytest.approx(20 + 1.1 + 1.1 + 1.2 + 0.75)
    assert speculative_s(one_by_one, 1, siblings=2) == pytest.approx(20 + 1.1 + 0.75)
    at_once = Costs(TARGET, DRAFT, tokens_per_pass=4)
    assert speculative_s(at_once, 3) == pytest.approx(20 + 1.3)


def test_without_contention_a_round_takes_as_long_as_its_longer_half() -> None:
    costs = Costs(TARGET)
    for target_s, draft_s in ((10, 4), (4, 10), (5, 5), (7, 0)):
        span = together(costs, target_s, draft_s)
        assert (span.target_s, span.draft_s) == (target_s, draft_s)
        assert span.seconds == max(target_s, draft_s)


def test_with_contention_the_longer_half_ends_alone_at_full_speed() -> None:
    costs = Costs(TARGET, target_slowdown=1.25, draft_slowdown=2.0)
    # Draft 3 alone: over after 6, when the target has done 6 / 1.25 = 4.8 of 10; 5.2 are left.
    span = together(costs, 10, 3)
    assert (span.target_s, span.draft_s) == pytest.approx((11.2, 6))
    # Target 4 alone: over after 5, when the draft has done 2.5 of 10; 7.5 are left.
    span = together(costs, 4, 10)
    assert (span.target_s, span.draft_s) == pytest.approx((5, 12.5))
    # They end together.
    span = together(costs, 8, 5)
    assert (span.target_s, span.draft_s) == pytest.approx((10, 10))


def test_work_on_the_exit_waits_for_the_prefix() -> None:
    costs = Costs(TARGET, prefix_share=0.5)
    # Prefix until 5; the draft was done at 2 and goes on from 5 to 8.
    span = together(costs, 10, 2, late_s=3, has_exit=True)
    assert (span.target_s, span.draft_s) == (10, 8)
    # Too much for the suffix: 5 to 13.
    assert together(costs, 10, 2, late_s=8, has_exit=True).seconds == 13
    # The draft is at work until 7, and goes on at once: 7 to 10.
    span = together(costs, 10, 7, late_s=3, has_exit=True)
    assert (span.target_s, span.draft_s) == (10, 10)
    assert together(costs, 10, 3, has_exit=True).draft_s == 3


def test_the_exit_with_contention() -> None:
    costs = Costs(TARGET, target_slowdown=1.25, draft_slowdown=2.0, exit_s=1.0)
    # Prefix and exit 6. Draft 2: over at 4, when 3.2 of 6 are done; the exit is there at 6.8.
    # Then suffix 5 beside 1: over 2 later, 1.6 done of 5, so that 3.4 are left: 6.8 + 2 + 3.4.
    span = together(costs, 10, 2, late_s=1, has_exit=True)
    assert (span.target_s, span.draft_s) == pytest.approx((12.2, 8.8))
    # Draft 5: at 7.5 the exit is there and 3.75 done. 1.25 + 1 are left: 4.5 more at half speed,
    # in which 3.6 of the suffix are done.
    span = together(costs, 10, 5, late_s=1, has_exit=True)
    assert (span.target_s, span.draft_s) == pytest.approx((7.5 + 4.5 + 1.4, 12))


def test_where_the_draft_never_rests_an_exit_changes_only_what_reading_it_costs() -> None:
    costs = Costs(TARGET, target_slowdown=1.5, draft_slowdown=1.5)
    for early, late in ((9, 1), (30, 4)):
        parts = together(costs, 10, early, late_s=late, has_exit=True)
        whole = together(costs, 10, early + late)
        assert parts.seconds == pytest.approx(whole.seconds)


def test_rounds_of_a_mirror() -> None:
    costs = Costs(TARGET, DRAFT, 3, overhead_s=0.5, handing_over_s=0.25)
    # γ = 2, B = 4: 3 rows of the target, 16; one pass of 15 rows of the draft, 2.4, hidden.
    assert hit_s(costs, 2, 4) == pytest.approx(16.75)
    # One pass of three rows first, 1.2, and its handing over.
    assert redraft_s(costs, 2, 4) == pytest.approx(16.75 + 1.2 + 0.25)
    assert bare_s(costs, 2) == pytest.approx(10.75)
    slow = Costs(TARGET, Curve((1,), (30.0,)), 3)
    assert (hit_s(slow, 2, 4), redraft_s(slow, 2, 4), bare_s(slow, 2)) == (30, 60, 30)
    # With an exit: 30 from the start, and the pass that it feeds after them.
    assert hit_s(slow, 2, 4, of_exit=2) == 60
    assert redraft_s(slow, 2, 4, of_exit=2) == 90
    # Where all hypotheses are the exit's, only its pass, after half of the target's run.
    assert hit_s(slow, 2, 4, of_exit=4, hits=Hits(0.0, late=1.0)) == 30 + 16 / 2


def test_what_the_exit_names_comes_before_further_passes_of_the_drafts_own() -> None:
    costs = Costs(TARGET, Curve((1,), (4.0,)), exit_s=1.0)
    # Own passes begin at 0, 4 and 8; at 11 the exit is there, so that its pass is from 12 to 16.
    assert looking_ahead(costs, 20, (1, 1, 1, 1), late_s=4.0) == (Span(21, 16), 3)
    assert hit_s(costs, 3, 2, of_exit=1, hits=Hits(0.0)) == 21
    # A token a pass: of the exit's rollouts two of three are left to make.
    assert hit_s(costs, 3, 2, of_exit=1, hits=Hits(0.0, late=0.5)) == 21 + 0.5 * 8


def test_a_pass_of_a_look_ahead_begins_only_while_the_target_runs() -> None:
    costs = Costs(TARGET, Curve((1,), (4.0,)), overhead_s=0.5)
    for target_s, made in ((3, 1), (3.4, 1), (3.6, 2), (8, 3), (99, 3)):
        span, passes = looking_ahead(costs, target_s, [1, 1, 1])
        assert (passes, span.draft_s, span.target_s) == (made, 4 * made, target_s)
    # With contention the first pass ends at 8, when the target has done 5.3 of its 6.
    slow = Costs(TARGET, costs.draft, target_slowdown=1.5, draft_slowdown=2.0)
    span, passes = looking_ahead(slow, 6, [1, 1, 1])
    assert (passes, span.target_s, span.draft_s) == pytest.approx((2, 9, 8 - 9 / 2 + 9))


@pytest.mark.parametrize(
    ("hits", "seconds"),
    [
        (Hits(0.0), 10.0),  # the pass under way is made to its end, no other
        (Hits(1.0), 10.0 + 2 * 10),
        (Hits(0.0, 1.0), 10.0 + 3 * 10),  # the word that was left open is one of its guesses
        (Hits(0.0, 0.0, 1.0), 10.0 + 3 * 10),
        (Hits(0.5, 0.25), 10.0 + 0.5 * 20 + 0.25 * 30),
    ],
)
def test_on_a_hit_the_passes_are_made_that_there_was_no_time_for(
    hits: Hits, seconds: float
) -> None:
    costs = Costs(Curve((1,), (6.0,)), Curve((1,), (10.0,)))
    assert hit_s(costs, 3, 4, hits=hits) == pytest.approx(seconds)
    assert redraft_s(costs, 3, 4, hits=hits) == pytest.approx(seconds + 30)


def test_a_bare_token_is_left_open() -> None:
    costs = Costs(Curve((1,), (6.0,)), Curve((1,), (10.0,)), 3)
    assert bare_s(costs, 2) == 10  # three guesses in one pass
    assert bare_s(costs, 4, hits=Hits(0.0)) == 10
    assert bare_s(costs, 4) == 20
    assert bare_s(costs, 2, hits=Hits(0.0, 0.0, 1.0)) == 10  # two hold whatever came
    assert bare_s(costs, 3, hits=Hits(0.0, 0.0, 1.0)) == 20


@pytest.mark.parametrize(
    ("acceptance", "tokens"),
    [((), 1), ((0.5,), 1.5), ((0.5, 0.5, 0.5), 1.875), ((1, 1), 3), ((0, 1), 1), ((0.8, 0), 1.8)],
)
def test_expected_tokens(acceptance: tuple[float, ...], tokens: float) -> None:
    assert expected_tokens(acceptance) == pytest.approx(tokens)


def test_hits_and_misses_as_a_chain() -> None:
    # One round in two is after a hit: (3 + 1) tokens in (2 + 1) seconds.
    assert tokens_per_second(Stage(3, 2, 0.5), Stage(1, 1, 0.5)) == pytest.approx(4 / 3)
    # From a hit to a hit 0.5, from a miss 1: two rounds in three are after a hit.
    assert tokens_per_second(Stage(3, 2, 0.5), Stage(1, 1, 1.0)) == pytest.approx(7 / 5)
    always, never = Stage(3, 2, 1.0), Stage(1, 1, 0.0)
    assert tokens_per_second(Stage(3, 2, 0.0), never) == 1
    assert tokens_per_second(always, Stage(1, 1, 0.5)) == 1.5
    assert tokens_per_second(always, never) == 1.5


def test_the_chain_is_what_many_rounds_give() -> None:
    hit, miss = Stage(3.1, 2.0, 0.7), Stage(1.4, 2.5, 0.3)
    share, tokens, seconds = 0.0, 0.0, 0.0
    for _ in range(10_000):
        tokens += share * hit.tokens + (1 - share) * miss.tokens
        seconds += share * hit.seconds + (1 - share) * miss.seconds
        share = share * hit.hit + (1 - share) * miss.hit
    assert tokens_per_second(hit, miss) == pytest.approx(tokens / seconds, rel=1e-3)


@pytest.mark.parametrize("seconds", [hit_s, redraft_s])
def test_contention_never_makes_a_round_shorter(seconds: Callable[..., float]) -> None:
    fast = -math.inf
    for slowdown in (1.0, 1.1, 1.5, 3.0):
        costs = Costs(TARGET, DRAFT, 3, target_slowdown=slowdown, draft_slowdown=slowdown)
        assert seconds(costs, 4, 8) > fast
        fast = seconds(costs, 4, 8)
