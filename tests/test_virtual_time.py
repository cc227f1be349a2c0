"""Tests of runtime/virtual_time.py: moments are exact numbers, whatever the threads really do."""

import threading

import pytest

from runtime.channel import Kind, Message, TokenChannel
from runtime.emulation import Pacer
from runtime.errors import MirrorError
from runtime.virtual_time import VirtualTiming
from tests.devices import seconds


def test_time_stands_while_the_only_thread_works_and_leaps_when_it_waits() -> None:
    timing = VirtualTiming(seconds())
    assert timing() == 0.0
    timing.sleep(2.5)
    with Pacer(timing, "target")("whole", 3):
        assert timing() == 2.5
    assert timing() == 5.5
    assert not timing.count(0).acquire(timeout=1.0)
    assert timing() == 6.5
    assert not timing.count(0).acquire(timeout=0.0)
    assert timing.count(1).acquire(timeout=1.0)
    assert timing() == 6.5


def test_two_threads_overlap_as_computed_by_hand() -> None:
    # As in test_progress: 6 s from 0 and 2 s from 1, at 2/3 of the speed while both run.
    timing = VirtualTiming(seconds(c_target=1.5, c_draft=1.5))
    moments = {}

    def draft() -> None:
        timing.sleep(1.0)
        with Pacer(timing, "draft")("whole", 2):
            pass
        moments["draft"] = timing()

    thread = timing.thread(draft, "draft")
    thread.start()
    with Pacer(timing, "target")("whole", 6):
        pass
    moments["target"] = timing()
    thread.join()
    assert moments == {"draft": 4.0, "target": 7.0}
    assert timing() == 7.0


def test_messages_wake_their_receiver_at_the_moment_they_are_sent() -> None:
    timing = VirtualTiming(seconds())
    inbox, outbox = (TokenChannel(slots=2, widest=1, timing=timing) for _ in range(2))
    heard = []

    def answer() -> None:
        while (message := inbox.receive(timeout_s=100.0)) is not None and message.tokens:
            heard.append((timing(), message.tokens[0]))
            with Pacer(timing, "draft")("whole", message.tokens[0]):
                pass
            outbox.send(message, timeout_s=1.0)

    thread = timing.thread(answer, "draft")
    thread.start()
    timing.sleep(3.0)
    inbox.send(Message(Kind.COMMIT, tokens=(4,)), timeout_s=1.0)
    assert timing() == 3.0  # until it waits, nobody else works
    with Pacer(timing, "target")("whole", 1):
        pass
    assert timing() == 4.0
    assert outbox.receive(timeout_s=100.0) is not None
    assert timing() == 7.0
    inbox.send(Message(Kind.COMMIT, tokens=(2,)), timeout_s=1.0)
    assert outbox.receive(timeout_s=1.5) is None  # the limit passes before the answer comes
    assert timing() == 8.5
    inbox.send(Message(Kind.COMMIT), timeout_s=1.0)
    thread.join()
    assert heard == [(3.0, 4), (7.0, 2)]
    assert timing() == 9.0


def test_a_full_channel_waits_until_its_reader_has_read() -> None:
    timing = VirtualTiming(seconds())
    channel = TokenChannel(slots=1, widest=0, timing=timing)

    def read() -> None:
        for _ in range(2):
            timing.sleep(5.0)
            channel.receive(timeout_s=1.0)

    thread = timing.thread(read, "reader")
    thread.start()
    sent = [channel.send(Message(Kind.STOP), timeout_s=limit) for limit in (1.0, 1.0, 9.0)]
    assert (sent, timing()) == ([True, False, True], 5.0)
    thread.join()
    assert timing() == 10.0


def test_what_happens_at_one_moment_happens_in_the_order_of_waiting() -> None:
    for _ in range(20):
        timing = VirtualTiming(seconds())
        order: list[int] = []

        def work(timing: VirtualTiming, order: list[int], number: int) -> None:
            timing.sleep(1.0)
            order.append(number)

        threads = []
        for number in range(4):
            threads.append(
                timing.thread(lambda n=number, t=timing, o=order: work(t, o, n), str(number))  # type: ignore[misc]
            )
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert (order, timing()) == ([0, 1, 2, 3], 1.0)


def test_waiting_for_a_thread_has_its_limit_too() -> None:
    timing = VirtualTiming(seconds())
    thread = timing.thread(lambda: timing.sleep(50.0), "sleeper")
    thread.start()
    thread.join(20.0)
    assert (timing(), thread.is_alive()) == (20.0, True)
    thread.join(40.0)
    assert (timing(), thread.is_alive()) == (50.0, False)
    thread.join()
    assert timing() == 50.0


def test_a_thread_that_fails_gives_up_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    timing = VirtualTiming(seconds())

    def fail() -> None:
        with Pacer(timing, "draft")("whole", 9):
            raise ValueError

    thread = timing.thread(fail, "draft")
    thread.start()
    timing.sleep(1.0)
    assert timing() == 1.0
    thread.join()
    with Pacer(timing, "draft")("whole", 1):  # the failed call does not run any more
        pass
    assert timing() == 2.0


def test_waiting_for_nothing_is_refused() -> None:
    timing = VirtualTiming(seconds())
    with pytest.raises(MirrorError, match="waits for another"):
        timing.count(0).acquire(timeout=float("inf"))
