"""Costs that follow: a wrong shape, a device that grows hot, calls beside others, pauses."""

from itertools import pairwise

import pytest

from runtime.costs import Costs, Curve
from runtime.following import Course, Following, Ratio

CURVE = Curve((1, 4, 8), (1.0, 1.3, 2.0))


def test_a_course_without_calls_is_the_curve_and_one_call_sets_the_scale() -> None:
    course = Course()
    assert course.follow(CURVE) is CURVE
    course.learn(4, 10.0, is_beside=False)
    assert course.follow(CURVE).seconds == pytest.approx((10, 13, 20))


def test_a_wrong_shape_is_learned_without_taking_it_for_a_change_of_the_device() -> None:
    course = Course()
    for _ in range(10):
        course.learn(1, 1.0, is_beside=False)
    for _ in range(30):
        course.learn(8, 0.6, is_beside=False)
    now = course.follow(CURVE)
    assert now(8) == pytest.approx(2.0 * 0.6, rel=0.05)
    assert now(1) == pytest.approx(1.0, rel=0.2)
    for _ in range(10):
        course.learn(1, 1.0, is_beside=False)
    assert course.follow(CURVE)(1) == pytest.approx(1.0, rel=0.05)


def test_a_device_that_slows_down_slows_every_width() -> None:
    course = Course()
    for _ in range(20):
        course.learn(1, 1.0, is_beside=False)
        course.learn(8, 1.0, is_beside=False)
    seconds = [course.follow(CURVE)(4)]
    for _ in range(60):
        course.learn(8, 2.0, is_beside=False)
        seconds.append(course.follow(CURVE)(4))
    assert all(later >= earlier for earlier, later in pairwise(seconds))
    assert seconds[-1] == pytest.approx(2.6, rel=0.1)
    assert course.follow(CURVE)(8) == pytest.approx(4.0, rel=0.02)


def test_one_pause_of_the_machine_changes_little() -> None:
    course = Course()
    for _ in range(30):
        course.learn(1, 1.0, is_beside=False)
    course.learn(1, 1000.0, is_beside=False)
    assert course.follow(CURVE)(1) < 1.1


def test_calls_beside_another_device_are_told_apart_but_slow_down_alike() -> None:
    course = Course()
    for _ in range(10):
        course.learn(1, 1.0, is_beside=False)
    for _ in range(10):
        course.learn(1, 1.5, is_beside=True)
    assert course.follow(CURVE, is_beside=True)(1) == pytest.approx(1.5, rel=0.03)
    assert course.follow(CURVE)(1) == pytest.approx(1.0, rel=0.12)
    for _ in range(60):
        course.learn(1, 3.0, is_beside=True)
    assert course.follow(CURVE)(1) > 1.7


def test_where_one_sort_of_calls_was_never_seen_the_other_stands_for_it() -> None:
    course = Course()
    course.learn(1, 1.0, is_beside=True)
    course.learn(8, 1.3, is_beside=True)
    assert course.follow(CURVE) == course.follow(CURVE, is_beside=True)
    assert course.follow(CURVE)(8) > 2.0


def test_a_ratio_is_a_running_mean_that_no_pause_moves_far() -> None:
    ratio = Ratio()
    assert ratio.factor == 1.0
    for _ in range(30):
        ratio.learn(1.3)
    assert ratio.factor == pytest.approx(1.3, rel=0.01)
    ratio.learn(1000.0)
    assert ratio.factor < 1.4


COSTS = Costs(CURVE, Curve((1, 16), (0.5, 0.8)), 5, 1.25, 2.0)


def test_rounds_as_expected_change_nothing() -> None:
    following = Following(COSTS)
    for _ in range(20):
        following.learn(
            "speculative",
            rows=4,
            target_s=1.3,
            drafted=(6,),
            ahead=(),
            draft_seconds=0.6,
            seconds=1.9,
        )
        # The draft's 0.8 take 1.6 beside the target, which does 1.28 of its 1.3 meanwhile.
        following.learn(
            "mirror",
            rows=4,
            target_s=1.62,
            drafted=(),
            ahead=(16,),
            draft_seconds=1.6,
            seconds=1.62,
        )
    following.follow()
    for now in (following.alone, following.beside):
        assert now.target.seconds == pytest.approx(COSTS.target.seconds)
        assert now.draft(16) == pytest.approx(0.8)
    assert following.ratio("mirror") == following.ratio("never had") == pytest.approx(1.0)


def test_a_kind_whose_rounds_take_longer_than_their_calls_is_known_for_it() -> None:
    following = Following(COSTS)
    for _ in range(30):
        following.learn(
            "lookup", rows=1, target_s=1.0, drafted=(), ahead=(), draft_seconds=0, seconds=1.2
        )
    assert following.ratio("lookup") == pytest.approx(1.2, rel=0.01)
    assert following.ratio("autoregressive") == 1.0


def test_contention_nobody_foresaw_says_nothing_of_calls_alone() -> None:
    following = Following(Costs(CURVE, COSTS.draft))
    for _ in range(10):
        following.learn(
            "autoregressive", rows=1, target_s=1, drafted=(), ahead=(), draft_seconds=0, seconds=1
        )
    for _ in range(10):
        following.learn(
            "mirror",
            rows=4,
            target_s=2.6,
            drafted=(),
            ahead=(16,),
            draft_seconds=1.6,
            seconds=2.6,
        )
    following.follow()
    assert following.alone.target(1) == pytest.approx(1.0, rel=0.15)
    assert following.beside.target(4) * following.ratio("mirror") == pytest.approx(2.6, rel=0.15)


def test_a_draft_that_was_never_called_goes_with_the_target() -> None:
    following = Following(COSTS)
    following.learn(
        "autoregressive", rows=1, target_s=60, drafted=(), ahead=(), draft_seconds=0, seconds=60
    )
    following.follow()
    assert following.alone.draft(16) == pytest.approx(0.8 * 60)
    assert following.ratio("autoregressive") == pytest.approx(1.0)


def test_reading_the_exit_is_no_slower_target() -> None:
    costs = Costs(CURVE, Curve((1,), (0.5,)), prefix_share=0.5, exit_s=0.25)
    following = Following(costs)
    for _ in range(20):
        following.learn(
            "mirror, exit",
            rows=4,
            target_s=10 * (1.3 + 0.25),
            drafted=(),
            ahead=(5,),
            late=(5,),
            has_exit=True,
            draft_seconds=10.0,
            seconds=10 * (1.3 + 0.25),
        )
    following.follow()
    assert following.beside.target(4) == pytest.approx(13.0)
    assert following.beside.draft(5) == pytest.approx(5.0)
    assert following.beside.exit_s == pytest.approx(2.5)
    assert following.ratio("mirror, exit") == pytest.approx(1.0, rel=0.01)
    assert following.ratio("mirror") == 1.0
