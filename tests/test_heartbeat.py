"""A long step shows that it lives, and nothing is said of it once it is over."""

import itertools
import threading

import pytest

from runtime.heartbeat import LONGEST_S, heartbeat, pauses


def test_a_long_step_is_told_again_and_again_until_it_ends() -> None:
    said: list[str] = []
    twice = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            twice.set()

    with heartbeat("write it", say, every_s=0.001):
        assert twice.wait(30)
    count = len(said)
    assert set(said) == {"  … write it: 0 s so far"}
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
    assert len(said) == count


@pytest.mark.parametrize(
    ("first", "due"),
    [(3, [3, 6, 12, 24, LONGEST_S, LONGEST_S]), (20, [20, LONGEST_S]), (60, [60, 60])],
)
def test_the_longer_it_takes_the_rarer_it_is_told(first: float, due: list[float]) -> None:
    assert list(itertools.islice(pauses(first), len(due))) == due


def test_a_short_step_says_nothing() -> None:
    said: list[str] = []
    with heartbeat("write it", said.append, every_s=60):
        pass
    assert said == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_errors_pass_and_end_it(error: type[BaseException]) -> None:
    with pytest.raises(error), heartbeat("write it", print, every_s=60):
        raise error
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_reader_that_is_gone_harms_nothing() -> None:
    calls: list[str] = []
    called = threading.Event()

    def say(line: str) -> None:
        calls.append(line)
        called.set()
        raise BrokenPipeError

    with heartbeat("write it", say, every_s=0.001):
        assert called.wait(30)
    assert len(calls) == 1


def test_an_interrupt_of_its_start_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), heartbeat("write it", print, every_s=60):
        pass
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
