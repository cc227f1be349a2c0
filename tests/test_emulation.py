"""Tests of runtime/emulation.py on a clock that the test sets; how the waits end is no test's."""

from typing import Any

import pytest

from runtime.emulation import EmulatedDevices, Pacer
from runtime.errors import UsageError
from runtime.profiles import Profile
from tests.devices import seconds


class Hand:
    """Devices whose clock is set by hand, and goes on by what is waited for."""

    def __init__(
        self, profile: Profile, monkeypatch: pytest.MonkeyPatch, scale: float = 1.0
    ) -> None:
        self.devices = EmulatedDevices(profile, scale=scale)
        self.now = 0.0
        self.waits: list[float] = []
        self.meanwhile: list[Any] = []
        self.devices._progress.now = 0.0
        monkeypatch.setattr(self.devices, "timing", lambda: self.now)
        monkeypatch.setattr(self.devices._changed, "wait", self._wait)

    def _wait(self, timeout: float) -> None:
        self.waits.append(timeout)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        else:
            self.now += timeout / self.devices.scale


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

    hand.meanwhile.append(draft_begins)
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


def test_a_call_that_fails_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(seconds(), monkeypatch)
    with pytest.raises(KeyError), Pacer(hand.devices, "target")("whole", 3):
        raise KeyError
    assert (hand.now, hand.devices.late) == (0.0, 0)
    with Pacer(hand.devices, "target")("whole", 1):
        pass
    assert hand.now == pytest.approx(1.0)
