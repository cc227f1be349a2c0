"""Tests of runtime/emulation.py on a clock that the test sets; how the waits end is no test's."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.clock import RealTiming
from runtime.emulation import ROOM, EmulatedDevices, Pacer, emulated_devices, shares_of_parts
from runtime.errors import UsageError
from runtime.manifest import Geometry
from runtime.profiles import Profile, profile_folder
from runtime.progress import Progress
from tests.devices import seconds


class Hand(RealTiming):
    """The clock of `devices`, set by hand; it goes on by what is waited for.

    `meanwhile` is done, once, in place of the first wait.
    """

    def __init__(
        self, profile: Profile, monkeypatch: pytest.MonkeyPatch, *, scale: float = 1.0
    ) -> None:
        super().__init__(scale)
        self.now = 0.0
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] | None = None
        self.devices = EmulatedDevices(profile)
        self.devices.timing = self
        self.devices._progress = Progress(profile)
        monkeypatch.setattr(self.devices._changed, "wait", self._wait)

    def __call__(self) -> float:
        return self.now

    def rescale(self, scale: float) -> None:
        self.scale = scale

    def _wait(self, timeout: float) -> None:
        self.waits.append(timeout)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        else:
            self.now += timeout / self.scale


def test_a_call_waits_for_the_rest_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(seconds(), monkeypatch)
    with Pacer(hand.devices, "target")("whole", 3):
        hand.now = 1.0
    assert hand.now == pytest.approx(3.0)
    assert hand.waits == pytest.approx([1.999, 0.001])
    assert hand.devices.late == 0


def test_scaled_time_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(seconds(), monkeypatch, scale=10.0)
    with Pacer(hand.devices, "target")("whole", 3):
        hand.now = 1.0
    assert hand.now == pytest.approx(3.0)
    assert sum(hand.waits) == pytest.approx(20.0)


def test_a_call_that_computed_too_long_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(seconds(), monkeypatch)
    for number, took in enumerate([2.0, 2.5, 2.5], 1):
        with Pacer(hand.devices, "draft")("whole", 2):
            hand.now += took
        assert hand.devices.late == number
    assert not hand.waits


def test_what_begins_meanwhile_makes_it_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(seconds(c_target=1.5, c_draft=1.5), monkeypatch)

    def draft_begins() -> None:
        hand.now = 1.0
        hand.devices.start("draft", 2, 1.0)

    hand.meanwhile = draft_begins
    with Pacer(hand.devices, "target")("whole", 6):
        pass
    assert hand.now == pytest.approx(7.0)


def test_parts_take_their_share_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(seconds(), monkeypatch)
    pacer = Pacer(hand.devices, "target", shares={"prefix": 0.25, "suffix": 0.75})
    for part, end in [("prefix", 1.0), ("suffix", 4.0)]:
        with pacer(part, 4):
            pass
        assert hand.now == pytest.approx(end)
    with pytest.raises(UsageError, match="'whole' of the target"):
        pacer("whole", 1)


def test_parts_of_a_target_cost_what_their_weights_are_of_it() -> None:
    # A layer: 8 * (2 * 8 + 2 * 4 + 3 * 16) = 576 weights; three of them and 8 * 9 of the head.
    geometry = Geometry(3, 8, 16, 2, 1, 4, 9, 64, 1e4, 1e-5)
    shares = shares_of_parts(geometry, 2, head=5)
    assert shares["whole"] == shares["prefix"] + shares["suffix"] == 1.0
    assert shares["prefix"] == 2 * 576 / (3 * 576 + 72)
    assert shares["exit"] == 8 * (8 + 5) / (3 * 576 + 72)


def test_a_call_that_fails_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(seconds(), monkeypatch)
    with pytest.raises(KeyError), Pacer(hand.devices, "target")("whole", 3):
        raise KeyError
    assert (hand.now, hand.devices.late) == (0.0, 0)
    with Pacer(hand.devices, "target")("whole", 1):
        pass
    assert hand.now == pytest.approx(1.0)


@pytest.mark.parametrize(("longest", "scale"), [(3.0, 3.0 * ROOM), (0.5, 1.0)])
def test_a_scale_is_chosen_by_the_longest_call_of_the_second_trial(
    longest: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(seconds(c_target=1.5), monkeypatch)
    took = iter([100.0, 7.0, longest, 0.25])

    def trial() -> None:
        for rows in (1, 2):
            with Pacer(hand.devices, "target")("whole", rows):
                hand.now += rows * next(took)

    late = Pacer(hand.devices, "draft")("whole", 1)
    with late:
        hand.devices.fit(trial)
        hand.now += 50.0  # what began in a trial does not count, however long it takes
    assert (hand.scale, hand.devices.late, hand.waits) == (scale, 0, [])
    with Pacer(hand.devices, "target")("whole", 1):
        pass
    assert sum(hand.waits) == pytest.approx(scale)


def test_profiles_are_found_by_name_and_by_file() -> None:
    assert emulated_devices(None, None) is None
    for name in ("gpu-cpu", profile_folder() / "gpu-cpu.json"):
        devices = emulated_devices(name, 2.5)
        assert devices is not None
        assert (devices.profile.name, devices.timing.scale) == ("gpu-cpu", 2.5)
        assert "of gpu-cpu (Intel" in devices.described
        assert "2.5 times as slowly" in devices.described


@pytest.mark.parametrize(
    ("name", "scale", "complaint"),
    [
        ("gpu-cpu", 0, "from 1e-06 to 1e.06"),
        ("gpu-cpu", 1e7, "from 1e-06 to"),
        *(("gpu-cpu", scale, "from 1e-06 to") for scale in (-1, 1e-7, math.nan, math.inf)),
        ("gpu-cpu", True, "must be a number"),
        ("gpu-cpu", "2", "must be a number"),
        (None, 2.0, "name a profile"),
        (Path("no.json"), None, "no device profile"),
        (7, None, "must be a path"),
    ],
)
def test_what_cannot_be_emulated_is_refused(name: Any, scale: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        emulated_devices(name, scale)
