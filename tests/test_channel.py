"""Tests of runtime/channel.py: every message once, in order, and a failure after the last."""

import threading

import pytest

from runtime.channel import Kind, Message, TokenChannel, describe
from runtime.errors import DraftError


def numbered(number: int) -> Message:
    """A message whose every field depends on its number, with 0 to 3 tokens."""
    tokens = tuple(range(-number, -number + number % 4))
    return Message(Kind(number % len(Kind)), number, number % 5 - 1, 7 * number, tokens)


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_messages_come_in_order_however_often_the_ring_wraps(slots: int) -> None:
    channel = TokenChannel(slots=slots, widest=3)
    for first in range(0, 40, slots):
        sent = [numbered(first + place) for place in range(slots)]
        for message in sent:
            channel.send(message, timeout_s=0.0)
        pending = [channel.pending]
        assert [channel.receive(timeout_s=0.0) for _ in sent] == sent
        pending.append(channel.pending)
        assert pending == [True, False]
        assert channel.receive(timeout_s=0.0) is None


def test_a_shorter_message_in_a_used_slot_keeps_nothing_of_the_longer_one() -> None:
    channel = TokenChannel(slots=1, widest=3)
    for tokens in [(1, 2, 3), (4,), ()]:
        channel.send(Message(Kind.COMMIT, tokens=tokens), timeout_s=0.0)
        assert channel.receive(timeout_s=0.0) == Message(Kind.COMMIT, tokens=tokens)


def test_ids_of_64_bits_travel_and_wider_ones_are_refused() -> None:
    channel = TokenChannel(slots=2, widest=2)
    message = Message(Kind.GUESSES, 2**40, -1, -(2**63), (2**63 - 1, -(2**63)))
    channel.send(message, timeout_s=0.0)
    assert channel.receive(timeout_s=0.0) == message
    with pytest.raises(OverflowError):
        channel.send(Message(Kind.GUESSES, tokens=(2**63,)), timeout_s=0.0)
    assert not channel.pending


def test_a_message_that_is_too_wide_is_refused_and_takes_no_slot() -> None:
    channel = TokenChannel(slots=1, widest=2)
    with pytest.raises(DraftError, match="3 tokens; 2 fit"):
        channel.send(Message(Kind.COMMIT, tokens=(1, 2, 3)), timeout_s=0.0)
    channel.send(Message(Kind.COMMIT, tokens=(1, 2)), timeout_s=0.0)
    assert channel.receive(timeout_s=0.0) == Message(Kind.COMMIT, tokens=(1, 2))


def test_a_full_ring_waits_for_its_time_limit_and_loses_nothing() -> None:
    channel = TokenChannel(slots=2, widest=0)
    for number in (0, 4):
        channel.send(numbered(number), timeout_s=0.0)
    assert not channel.send(numbered(8), timeout_s=0.01)
    assert channel.receive(timeout_s=0.0) == numbered(0)
    assert channel.send(numbered(12), timeout_s=0.0)
    assert [channel.receive(timeout_s=0.0) for _ in range(2)] == [numbered(4), numbered(12)]


def test_a_sender_that_waits_goes_on_when_a_slot_gets_free() -> None:
    channel = TokenChannel(slots=1, widest=3)
    channel.send(numbered(1), timeout_s=0.0)
    sender = threading.Thread(target=channel.send, args=(numbered(2),), kwargs={"timeout_s": 5.0})
    sender.start()
    assert channel.receive(timeout_s=5.0) == numbered(1)
    assert channel.receive(timeout_s=5.0) == numbered(2)
    sender.join()


def test_a_failure_comes_after_the_last_message_and_then_every_time() -> None:
    channel = TokenChannel(slots=2, widest=3)
    cause = ValueError("no such kernel")
    channel.send(numbered(3), timeout_s=0.0)
    channel.fail(cause)
    assert channel.receive(timeout_s=0.0) == numbered(3)
    for _ in range(2):
        with pytest.raises(DraftError, match=r"failed: ValueError: no such kernel$") as caught:
            channel.receive(timeout_s=0.0)
        assert caught.value.__cause__ is cause


def test_a_failure_that_says_it_all_is_passed_on_as_it_is() -> None:
    channel = TokenChannel(slots=1, widest=0)
    channel.fail(DraftError("It cannot."))
    with pytest.raises(DraftError, match=r"^It cannot\.$"):
        channel.receive(timeout_s=0.0)


def test_a_failure_wakes_a_receiver_that_waits() -> None:
    channel = TokenChannel(slots=1, widest=0)
    timer = threading.Timer(0.01, channel.fail, (MemoryError(),))
    timer.start()
    with pytest.raises(DraftError, match=r"failed: MemoryError$"):
        channel.receive(timeout_s=5.0)
    timer.join()


@pytest.mark.parametrize("slots", [1, 7])
def test_two_threads_and_ten_thousand_messages(slots: int) -> None:
    channel = TokenChannel(slots=slots, widest=3)
    count = 10_000 if slots > 1 else 1_000

    def send_all() -> None:
        for number in range(count):
            channel.send(numbered(number), timeout_s=5.0)
        channel.fail(EOFError("all sent"))

    sender = threading.Thread(target=send_all)
    sender.start()
    for number in range(count):
        assert channel.receive(timeout_s=5.0) == numbered(number)
    with pytest.raises(DraftError, match="all sent"):
        channel.receive(timeout_s=5.0)
    sender.join()


def test_an_exception_in_one_line() -> None:
    assert describe(ValueError("bad")) == "ValueError: bad"
    assert describe(MemoryError()) == "MemoryError"
