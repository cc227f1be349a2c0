"""The token channel: a preallocated ring buffer from one thread to one other.

A message is a kind, a round number, an outcome (node and final token) and up to `widest` tokens.
Two counters, of free and of filled slots, let a side wait: the sender alone moves the tail, the
receiver alone the head, and nobody polls.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from runtime.clock import REAL_TIMING, Timing
from runtime.errors import DraftError

_HEADER = 5  # kind, round, node, final token, number of tokens


class Kind(IntEnum):
    """What a message says."""

    BEGIN = 0  # a text starts; the `node` tokens committed next are its prompt
    COMMIT = 1  # `tokens` are certain
    DRAFT = 2  # propose up to `node` tokens after what is committed
    LOOK_AHEAD = 3  # `tokens` are being verified: draft up to `node` tokens for what may come of it
    PROPOSAL = 4  # `tokens` were asked for
    ROLLOUT = 5  # if the round ends in (`node`, `final_token`), then `tokens` is the next proposal
    STOP = 6  # end the thread


@dataclass(frozen=True, slots=True)
class Message:
    """One message; the meaning of `node` and `tokens` stands with its kind."""

    kind: Kind
    round: int = 0
    node: int = 0
    final_token: int = 0
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
            message.node,
            message.final_token,
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
        if not self._filled.acquire(timeout=timeout_s):
            return None
        if self._received == self._sent:
            self._filled.release()  # the failure stands for everyone who asks again
            if isinstance(self._failure, DraftError):
                raise DraftError(str(self._failure)) from self._failure
            raise DraftError(f"The draft failed: {describe(self._failure)}") from self._failure
        slot = self._ring[self._received % len(self._ring)]
        kind, number, node, final_token, count = (int(value) for value in slot[:_HEADER])
        tokens = tuple(int(token) for token in slot[_HEADER : _HEADER + count])
        self._received += 1
        self._free.release()
        return Message(Kind(kind), number, node, final_token, tokens)

    @property
    def pending(self) -> bool:
        """Whether the receiver has something to read."""
        return self._received != self._sent

    def fail(self, error: BaseException) -> None:
        """Tell the receiver, after all that was sent, that no more will come and why."""
        self._failure = error
        self._filled.release()


def describe(error: BaseException | None) -> str:
    """An exception in one line, with its class where the text alone says too little."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
