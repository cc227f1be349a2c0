"""Tests of runtime/progress.py: overlaps computed by hand."""

import pytest

from runtime.progress import Progress
from tests.devices import device, profile, seconds


def test_a_run_alone_takes_its_own_time() -> None:
    progress = Progress(seconds(), now=100.0)
    assert progress.next_end() is None
    job = progress.start("target", 3, now=101.0)
    assert progress.next_end() == progress.end_of(job) == 104.0
    progress.settle(103.5)
    assert (job.left, job.ended) == (0.5, None)
    progress.settle(200.0)
    assert (job.left, job.ended, progress.now) == (0.0, 104.0, 200.0)
    assert progress.next_end() is None


def test_two_runs_slow_each_other_while_both_are_under_way() -> None:
    # The target's 6 s begin at 0, the draft's 2 s at 1. Together both go at 2/3: the draft ends at
    # 1 + 2 * 1.5 = 4, when the target has done 1 + 3 / 1.5 = 3 of its 6 seconds.
    progress = Progress(seconds(c_target=1.5, c_draft=1.5))
    target = progress.start("target", 6, now=0.0)
    assert progress.end_of(target) == 6.0
    draft = progress.start("draft", 2, now=1.0)
    assert (progress.end_of(draft), progress.end_of(target)) == (4.0, 7.0)
    assert progress.next_end() == 4.0
    progress.settle(10.0)
    assert (draft.ended, target.ended) == (4.0, 7.0)


def test_each_device_has_a_contention_of_its_own() -> None:
    # Together the draft needs 4 * 2 = 8 s, the target 5 * 1.25 = 6.25 s and ends first; the draft
    # has then done 6.25 / 2 and does the rest alone.
    progress = Progress(seconds(c_target=1.25, c_draft=2.0))
    target, draft = progress.start("target", 5, now=0.0), progress.start("draft", 4, now=0.0)
    progress.settle(100.0)
    assert target.ended == 6.25
    assert draft.ended == 6.25 + 4 - 6.25 / 2


def test_runs_that_end_together_end_at_one_moment() -> None:
    progress = Progress(seconds(c_target=1.1, c_draft=1.1))
    target = progress.start("target", 3, now=0.3)
    draft = progress.start("draft", 3, now=0.3)
    assert progress.next_end() == pytest.approx(3.6)
    progress.settle(3.7)
    assert target.ended == draft.ended == pytest.approx(3.6)


def test_a_run_that_begins_moves_the_end_of_the_other() -> None:
    progress = Progress(seconds(c_target=2.0, c_draft=1.0))
    target = progress.start("target", 4, now=0.0)
    for now, ends in [(1.0, 5.0), (3.0, 6.0)]:
        draft = progress.start("draft", 2, now=now)  # costs the target one second
        assert progress.end_of(draft) == now + 2
        assert progress.end_of(target) == ends
    progress.settle(6.0)
    assert target.ended == 6.0


def test_runs_of_one_device_wait_for_each_other() -> None:
    progress = Progress(seconds())
    first, second = progress.start("draft", 2, now=0.0), progress.start("draft", 3, now=1.0)
    assert (progress.end_of(first), progress.end_of(second)) == (2.0, 5.0)
    progress.settle(5.0)
    assert (first.ended, second.ended) == (2.0, 5.0)


def test_a_device_that_was_idle_must_wake_up() -> None:
    progress = Progress(seconds(wake_up_s=5.0))
    ends = []
    for begins in (1.0, 17.0, 28.5):  # asleep at first; 10 s of idling are not too long; 10.5 are
        job = progress.start("target", 1, now=begins)
        progress.settle(begins + 7)
        ends.append(job.ended)
    assert ends == [7.0, 18.0, 34.5]


def test_a_run_that_waits_in_line_does_not_wake_the_device() -> None:
    progress = Progress(seconds(wake_up_s=5.0))
    progress.start("draft", 1, now=0.0)
    second = progress.start("draft", 1, now=1.0)
    assert progress.end_of(second) == 7.0


def test_a_call_pays_for_its_transfer_and_its_share_of_the_curve() -> None:
    line = device((1, 10), (3, 14), transfer_ms=2)
    progress = Progress(profile(line, line))
    assert progress.end_of(progress.start("target", 2, now=0.0)) == pytest.approx(0.014)
    assert progress.end_of(progress.start("draft", 3, share=0.5, now=0.0)) == pytest.approx(0.009)


def test_a_run_that_is_dropped_slows_nothing_any_more() -> None:
    progress = Progress(seconds(c_target=2.0, c_draft=2.0))
    target, draft = progress.start("target", 4, now=0.0), progress.start("draft", 9, now=0.0)
    progress.drop(draft, now=2.0)
    assert draft.ended == 2.0
    assert progress.end_of(target) == 5.0
    progress.drop(draft, now=3.0)
    assert (draft.ended, progress.end_of(target)) == (2.0, 5.0)


def test_time_does_not_go_back() -> None:
    progress = Progress(seconds())
    job = progress.start("target", 2, now=5.0)
    progress.settle(4.0)
    assert (progress.now, job.left) == (5.0, 2.0)
