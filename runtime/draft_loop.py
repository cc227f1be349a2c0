"""The draft's thread: it reads what is committed, proposes, and looks ahead, message by message.

It owns the drafter from its loading to its end. A text is read a chunk at a time, so that a new
message never waits for more than one pass. What a drafter gives is checked here, where it enters.
"""

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.channel import Kind, Message, TokenChannel
from runtime.clock import Clock
from runtime.drafter import Drafter, Guess
from runtime.errors import DraftError
from runtime.sampling import Sampling
from runtime.timeline import Run

IDLE_S = 3600.0  # how long an idle thread sleeps before it looks again
SEND_S = 0.5  # how long it waits for a full channel before it looks whether it is abandoned


@dataclass(slots=True)
class DraftWork:
    """What the draft did in one generation: passes, and when they ran (seconds of the clock)."""

    runs: list[Run] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """How many passes it made."""
        return len(self.runs)


class DraftLoop:
    """The thread's end: owns the drafter, the committed tokens, and what was guessed last.

    The caller's end reads `loaded`, `texts_read` and `busy_since` (seconds of the clock; None
    between loading and chunks), writes `work` and `sampling`, and calls `stop`.
    """

    def __init__(
        self,
        make: Callable[[], Drafter],
        inbox: TokenChannel,
        outbox: TokenChannel,
        *,
        context: int,
        vocabulary: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Draft with what `make` gives texts of up to `context` tokens, ids below `vocabulary`."""
        self.work = DraftWork()
        self.sampling = Sampling()
        self.loaded = False
        self.texts_read = 0
        self.busy_since: float | None = None
        self.abandoned = False
        self._make = make
        self._inbox, self._outbox = inbox, outbox
        self._vocabulary = vocabulary
        self._clock = clock
        self._committed = np.empty(context + 1, np.int64)
        self._length = 0
        self._texts = 0
        self._prompt_length = 0
        self._chunks = 0
        self._guesses: list[list[Guess]] = []

    def load(self) -> str:
        """Make the drafter, whatever that raises, and return its source."""
        self.busy_since = self._clock()
        self._drafter = self._make()
        self.busy_since, self.loaded = None, True
        return self._drafter.source

    def stop(self) -> None:
        """End the thread as soon as can be; called by another one."""
        self.abandoned = True
        if self.loaded:
            self._drafter.stop()

    def run(self) -> None:
        """Answer messages until told to stop; a failure of any kind travels to the caller."""
        try:
            if not self.loaded:
                self.load()
            while (message := self._next()) is not None:
                self._answer(message)
        except BaseException as error:  # noqa: BLE001  # the last words, whatever ended the thread
            self._outbox.fail(error)

    def _next(self) -> Message | None:
        """The next message; while there is none, the text is read. None to stop."""
        while not self.abandoned:
            # A prompt that is not all there would cut the draft's cache down to what is.
            reads = self.texts_read != self._texts and self._length >= self._prompt_length
            message = self._inbox.receive(timeout_s=0.0 if reads else IDLE_S)
            if message is not None:
                return None if message.kind is Kind.STOP else message
            if reads:
                self._read_on()
        return None

    def _answer(self, message: Message) -> None:
        if message.kind is Kind.BEGIN:
            self._length, self._prompt_length, self._chunks = 0, message.node, 0
            self._texts += 1
        elif message.kind is Kind.COMMIT:
            self._commit(message.tokens)
        elif message.kind is Kind.DRAFT:
            tokens = self._propose(message.node)
            self._tell(Message(Kind.PROPOSAL, message.round, tokens=tokens))
        elif message.kind is Kind.LOOK_AHEAD:
            self._look_ahead(message.round, message.tokens, message.node)

    def _commit(self, tokens: tuple[int, ...]) -> None:
        end = self._length + len(tokens)
        self._committed[self._length : end] = tokens
        self._length = end

    def _read_on(self) -> None:
        """One chunk of committed text through the draft."""
        self._chunks += 1
        if self._chunks > self._length + 1:
            raise DraftError(f"The draft never ends to read a text of {self._length} tokens.")
        started = self.busy_since = self._clock()
        if self._drafter.catch_up(self._committed[: self._length]):
            self.texts_read = self._texts
        self.busy_since = None
        self._ran(started, "read")

    def _propose(self, count: int) -> tuple[int, ...]:
        guesses = [guess for found in self._draft("propose", (), count) for guess in found]
        self._guesses = [guesses]
        return _tokens(guesses)

    def _look_ahead(self, number: int, proposal: tuple[int, ...], count: int) -> None:
        """Draft for each guessed outcome, publishing what every pass adds, until the round ends."""
        known = next(
            (each for each in self._guesses if _tokens(each)[: len(proposal)] == proposal), []
        )
        self._guesses = []
        for node, tail, guessed in self._hypotheses(proposal, known[: len(proposal)]):
            guesses = [] if guessed is None else [guessed]
            for found in self._draft("look ahead", tail, count + 1 - len(guesses)):
                guesses += found
                final, *rollout = guesses
                if rollout:
                    self._guesses.append(rollout)
                    tokens = _tokens(rollout)
                    self._tell(Message(Kind.ROLLOUT, number, node, final.token, tokens))
                if self._inbox.pending:
                    return

    def _hypotheses(
        self, proposal: tuple[int, ...], known: list[Guess]
    ) -> Iterator[tuple[int, tuple[int, ...], Guess | None]]:
        """Guessed outcomes, likeliest first: last accepted node, what to draft after, final token.

        First that all is accepted, with the draft's next word as the final token; then that the
        first, second, … place holds the draft's runner-up there.
        """
        yield len(proposal) - 1, proposal, None
        for place, guess in enumerate(known):
            for token in guess.runner_ups:
                yield place - 1, (*proposal[:place], token), Guess(token)

    def _draft(self, name: str, tail: tuple[int, ...], count: int) -> Iterator[list[Guess]]:
        """At most `count` guesses after the committed text and `tail`, pass by pass, each timed.

        name: what the passes are for.
        """
        context = np.append(self._committed[: self._length], np.array(tail, np.int64))
        count = max(0, min(count, len(self._committed) - len(context)))
        passes = self._drafter.draft(context, count, self.sampling)
        while count and not self.abandoned:
            started = self._clock()
            found = next(passes, None)
            if found is None:
                return
            self._ran(started, name)
            guesses = _checked(found, count, self._vocabulary)
            count -= len(guesses)
            yield guesses

    def _ran(self, started: float, name: str) -> None:
        self.work.runs.append(Run(started, self._clock(), name))

    def _tell(self, message: Message) -> None:
        """Send, however long nobody reads, until nobody is there who could."""
        while not self.abandoned and not self._outbox.send(message, timeout_s=SEND_S):
            pass


def _tokens(guesses: Sequence[Guess]) -> tuple[int, ...]:
    return tuple(guess.token for guess in guesses)


def _checked(found: object, most: int, vocabulary: int) -> list[Guess]:
    """The first `most` guesses of a pass; raises DraftError for what is none, or no pass's."""
    if not isinstance(found, list | tuple):
        what = type(found).__name__
        raise DraftError(f"The draft gave a {what} where the guesses of a pass were due.")
    if not found:
        raise DraftError("The draft gave no guess in a pass.")
    return [_checked_guess(guess, vocabulary) for guess in found[:most]]


def _checked_guess(guess: object, vocabulary: int) -> Guess:
    """The guess in plain integers; raises DraftError for ids that are none, or none of these."""
    if not isinstance(guess, Guess):
        raise DraftError(f"The draft gave a {type(guess).__name__} where a guess was due.")
    ids = []
    for token in (guess.token, *guess.runner_ups):
        try:
            ids.append(operator.index(token))
        except TypeError:
            what = type(token).__name__
            raise DraftError(f"The draft proposed a {what} where a token was due.") from None
        if not 0 <= ids[-1] < vocabulary:
            raise DraftError(
                f"The draft proposed the token {token}, outside the vocabulary of {vocabulary}."
            )
    return Guess(ids[0], tuple(ids[1:]))
