"""Tests of runtime/clock.py: what is counted, and a clock that goes slowly."""

import threading
import time

import pytest

from runtime.clock import REAL_TIMING, RealTiming


@pytest.mark.parametrize("timing", [REAL_TIMING, RealTiming(0.5)])
def test_each_thing_is_taken_once(timing: RealTiming) -> None:
    count = timing.count(2)
    count.release()
    assert [count.acquire(timeout=0.0) for _ in range(4)] == [True, True, True, False]


def test_a_slow_clock_shows_less_and_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: 60.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    slow = RealTiming(4.0)
    slow.sleep(1.5)
    assert (slow(), slept) == (15.0, [6.0])
    assert REAL_TIMING() == 60.0


def test_a_clock_goes_on_from_where_it_was_when_its_pace_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    timing = RealTiming()
    timing.rescale(2.0)
    assert timing() == 100.0
    now = 110.0
    assert timing() == 105.0
    timing.rescale(0.5)
    now = 111.0
    assert timing() == 107.0


def test_a_limit_beyond_what_the_system_can_wait_is_the_longest_there_is() -> None:
    count = RealTiming(1e6).count(1)
    assert count.acquire(timeout=threading.TIMEOUT_MAX)
