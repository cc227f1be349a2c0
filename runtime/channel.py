"""The token channel: a preallocated ring buffer from one thread to one other.

A message is a kind, a round number, two numbers and up to `widest` tokens.
Two counters, of free and of filled slots, let a side wait: the sender alone moves the tail, the
receiver alone the head, and nobody polls.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from runtime.clock import REAL_TIMING, Timing
from runtime.errors import DraftError

_HEADER = 5  # kind, round, two numbers, how many tokens


class Kind(IntEnum):
    """What a message says, and what its two numbers are."""

    BEGIN = 0  # a text starts; its prompt is the `first` tokens committed next
    COMMIT = 1  # `tokens` are certain
    DRAFT = 2  # guess what follows: `first` tokens or more, up to `second` where a pass gives them
    ROLLOUT = 3  # the same where what is committed was foreseen; else nothing
    LOOK_AHEAD = 4  # `tokens` are `first` being verified, then starts: `second` guesses after each
    EARLY_EXIT = 5  # the same with further starts, which the target's early exit names
    GUESSES = 6  # asked for: `first` `tokens` for each place; of rollout `second`, or none (-1)
    STOP = 7  # end the thread


@dataclass(frozen=True, slots=True)
class Message:
    """One message; the meaning of its numbers and tokens stands with its kind."""

    kind: Kind
    round: int = 0
    first: int = 0
    second: int = 0
    tokens: tuple[int, ...] = ()


class TokenChannel:
    """A ring of `slots` messages of at most `widest` tokens each; one sender, one receiver."""

    def __init__(self, *, slots: int, widest: int, timing: Timing = REAL_TIMING) -> None:
        self.widest = widest
        self._ring: NDArray[np.int64] = np.zeros((slots, _HEADER + widest), np.int64)
        self._free = timing.count(slots)
        self._filled = timing.count(0)
        self._sent = 0
        self._received = 0
        self._failure: BaseException | None = None

    def send(self, message: Message, *, timeout_s: float) -> bool:
        """Put a message in the ring; False when no slot gets free in `timeout_s`.

        Raises DraftError for a message that no slot can hold.
        """
        if len(message.tokens) > self.widest:
            raise DraftError(f"A message of {len(message.tokens)} tokens; {self.widest} fit.")
        if not self._free.acquire(timeout=timeout_s):
            return False
        slot = self._ring[self._sent % len(self._ring)]
        slot[:_HEADER] = (
            message.kind,
            message.round,
            message.first,
            message.second,
            len(message.tokens),
        )
        slot[_HEADER : _HEADER + len(message.tokens)] = message.tokens
        self._sent += 1
        self._filled.release()
        return True

    def receive(self, *, timeout_s: float) -> Message | None:
        """Take the oldest message; None when none comes in `timeout_s` (0: do not wait).

        Raises DraftError when the sender failed and all it had sent was received.
        """
        if (timeout_s <= 0 and not self.pending) or not self._filled.acquire(timeout=timeout_s):
            return None
        if self._received == self._sent:
            self._filled.release()  # the failure stands for everyone who asks again
            if isinstance(self._failure, DraftError):
                raise DraftError(str(self._failure)) from self._failure
            raise DraftError(f"The draft failed: {describe(self._failure)}") from self._failure
        slot = self._ring[self._received % len(self._ring)]
        kind, number, first, second, count = slot[:_HEADER].tolist()
        tokens = tuple(slot[_HEADER : _HEADER + count].tolist())
        self._received += 1
        self._free.release()
        return Message(Kind(kind), number, first, second, tokens)

    @property
    def pending(self) -> bool:
        """Whether the receiver has something to read, or a failure to hear of."""
        return self._received != self._sent or self._failure is not None

    def fail(self, error: BaseException) -> None:
        """Tell the receiver, after all that was sent, that no more will come and why."""
        self._failure = error
        self._filled.release()


def describe(error: BaseException | None) -> str:
    """An exception in one line, with its class where the text alone says too little."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
