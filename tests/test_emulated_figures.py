"""Tests of scripts/emulated/figures.py."""

from functools import partial

import pytest

from runtime.metrics import Metrics
from runtime.profiles import Profile
from runtime.strategy import Mirror
from runtime.timeline import Round, Run
from runtime.virtual_time import VirtualTiming
from scripts.emulated.figures import (
    Overlap,
    hit_rate,
    length,
    needed,
    overlap,
    overlapped,
    tokens_per_s,
)
from scripts.emulated.replay import Replayed, replay
from tests.devices import device, profile
from tests.test_replay import a_record

MIRROR = partial(Mirror, num_draft_tokens=2, num_hypotheses=4)


def flat(target_ms: float, draft_ms: float, contention: float) -> Profile:
    return profile(
        device((1, target_ms), (2, target_ms), contention=contention),
        device((1, draft_ms), (2, draft_ms), contention=contention),
    )


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((6.0, 2.0, 1.0, 1.0), 6.0),
        ((6.0, 2.0, 1.5, 1.5), 7.0),  # the draft ends at 3, the target has done 2
        ((2.0, 6.0, 1.5, 1.5), 7.0),
        ((6.0, 2.0, 1.5, 2.0), 6.0 + 4.0 / 3.0),
        ((4.0, 4.0, 1.25, 2.0), 4.0 + 5.0 / 2.0),  # the target ends at 5, the draft has done 2.5
    ],
)
def test_the_law_of_overlap(seconds: tuple[float, float, float, float], expected: float) -> None:
    assert overlapped(*seconds) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("target_ms", "draft_ms", "contention"), [(9, 4, 1.0), (9, 4, 1.3), (4, 9, 1.3), (5, 5, 1.1)]
)
def test_hit_rounds_take_what_the_law_says(
    target_ms: float, draft_ms: float, contention: float
) -> None:
    devices = flat(target_ms, draft_ms, contention)
    replays = [replay(a_record(61), VirtualTiming(devices), MIRROR)]
    found = overlap(replays, devices)
    assert found.share == pytest.approx(1.0, abs=0.06)  # the first and the last are not whole
    law = overlapped(target_ms, draft_ms, contention, contention)
    assert found.could == pytest.approx((target_ms + draft_ms) / law, rel=0.06)
    assert hit_rate(replays) == 1.0
    assert length(replays) == 3.0


def test_without_hits_there_is_no_overlap_to_speak_of() -> None:
    devices = flat(9, 4, 1.0)
    replays = [replay(a_record(5), VirtualTiming(devices))]
    found = overlap(replays, devices)
    assert found == Overlap(0.0, 0.0, 0.0)
    assert (found.could, found.share, hit_rate(replays)) == (None, None, None)
    assert tokens_per_s(replays) == pytest.approx(1000 / 9)


def test_only_rounds_after_a_hit_count() -> None:
    metrics = Metrics("mirror", 0, {})
    metrics.round_log = [
        Round(start, start + 10, 2, 2, 9, hit)
        for start, hit in [(0.0, False), (10.0, True), (20.0, None)]
    ]
    target = [Run(start, start + 6) for start in (0.0, 10.0, 20.0)]
    draft = [Run(21.0, 24.0), Run(25.0, 26.0)]
    devices = profile(device((1, 1), (2, 1)), device((1, 1), (2, 1)), overhead_ms=1000)
    found = overlap([Replayed(metrics, target, draft)], devices)
    assert found == Overlap(in_turn=6 + 4 + 1, by_law=6 + 1, taken=10.0)
    assert found.could == pytest.approx(11 / 7)
    assert found.share == pytest.approx(0.7)


def test_an_agreement_is_read_between_those_that_were_tried() -> None:
    curve = [(0.5, 1.0), (0.6, 2.0), (0.8, 4.0)]
    assert [needed(curve, goal) for goal in (0.5, 1.0, 1.5, 3.0, 4.0, 4.5)] == pytest.approx(
        [0.5, 0.5, 0.55, 0.7, 0.8, None]
    )


def test_speeds_are_of_all_answers_together() -> None:
    replays = [
        replay(a_record(count), VirtualTiming(flat(ms, 1, 1.0))) for count, ms in [(3, 10), (6, 40)]
    ]
    assert tokens_per_s(replays) == pytest.approx((2 + 5) / (0.020 + 0.200))
