"""The draft's thread: it reads what is committed, proposes, and looks ahead, message by message.

It owns the drafter from its loading to its end. A text is read a chunk at a time, so that a new
message never waits for more than one pass. What a drafter gives is checked here, where it enters.
Messages are answered in their order, so the first pass of a look-ahead is over before its rollouts
are asked for, and that one decides whether an outcome was foreseen. For the others there is time or
they are made when they are asked for: what is proposed never depends on time.
"""

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from runtime.ahead import Ahead, Branch
from runtime.channel import Kind, Message, TokenChannel
from runtime.clock import Clock
from runtime.drafter import Drafter, Guess, Rollout, Start, Tokens
from runtime.errors import DraftError
from runtime.hypotheses import Hypothesis
from runtime.payload import MISS, pack_guesses, unpack_hypotheses
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
    between loading, chunks and messages), writes `work` and `sampling`, and calls `stop`.
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
        self._ahead: Ahead | None = None

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
                self.busy_since = self._clock()
                self._answer(message)
                self.busy_since = None
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
            self._length, self._prompt_length, self._chunks = 0, message.first, 0
            self._ahead = None
            self._texts += 1
        elif message.kind is Kind.COMMIT:
            self._commit(message.tokens)
        elif message.kind in (Kind.DRAFT, Kind.ROLLOUT):
            self._tell(self._guesses(message))
        elif message.kind in (Kind.LOOK_AHEAD, Kind.EARLY_EXIT):
            chain, pairs = message.tokens[: message.first], message.tokens[message.first :]
            if message.kind is Kind.LOOK_AHEAD or self._ahead is None:
                self._ahead = Ahead(self._length, chain, ())
            self._look_ahead(self._ahead, unpack_hypotheses(pairs), message.second)

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

    def _guesses(self, asked: Message) -> Message:
        """The guesses after what is committed: a rollout's, and passes until there are enough."""
        text, ahead = self._committed[: self._length], self._ahead
        self._ahead = None
        taken = None if ahead is None else ahead.take(text[ahead.base :].tolist())
        rollout, known = (MISS, []) if taken is None else taken
        room = len(self._committed) - self._length
        least, most = min(asked.first, room), min(asked.second, room)
        branch = Branch(Start(self._length), least, most, known[:most])
        is_due = taken is not None or asked.kind is Kind.DRAFT
        while is_due and branch.unfinished and not self.abandoned:
            self._pass("propose", text, [branch])
            if not branch.look():
                break
        columns, tokens = pack_guesses(branch.guesses, self._outbox.widest)
        return Message(Kind.GUESSES, asked.round, columns, rollout, tokens)

    def _look_ahead(self, ahead: Ahead, hypotheses: Sequence[Hypothesis], count: int) -> None:
        """Draft `count` tokens after each guessed outcome: a pass, and more until the round ends.

        What a pass gave is looked at while there is time, and else when it is asked for.
        """
        text = np.append(self._committed[: self._length], np.array(ahead.chain, np.int64))
        room = len(self._committed) - len(text)
        branches = [self._branch(each, count, room) for each in hypotheses]
        ahead.branches += branches
        unfinished = [branch for branch in branches if branch.unfinished]
        while unfinished:
            self._pass("look ahead", text, unfinished)
            grown = []
            for branch in unfinished:
                if self._inbox.pending or self.abandoned:
                    return
                if branch.look() and branch.unfinished:
                    grown.append(branch)
            unfinished = grown

    def _branch(self, hypothesis: Hypothesis, count: int, room: int) -> Branch:
        """A rollout of `count` guesses and maybe one more, besides that of a token left open."""
        least = count + (hypothesis.final_token is None)
        start = Start(self._length + hypothesis.accepted, hypothesis.tokens)
        return Branch(start, min(least, room), min(least + 1, room))

    def _pass(self, name: str, text: Tokens, branches: Sequence[Branch]) -> None:
        """One pass, timed by its name, in which each branch grows."""
        starts = [branch.frontier for branch in branches]
        asked = max(branch.room for branch in branches)
        started = self._clock()
        found = self._drafter.draft(text, starts, asked, self.sampling)
        self._ran(started, name)
        if not isinstance(found, list | tuple):
            what = type(found).__name__
            raise DraftError(f"The draft gave a {what} where a list of rollouts was due.")
        if len(found) != len(starts):
            raise DraftError(f"The draft gave {len(found)} rollouts, and {len(starts)} were due.")
        for branch, rollout in zip(branches, found, strict=True):
            branch.grow(partial(_checked, rollout, branch.room, self._vocabulary))

    def _ran(self, started: float, name: str) -> None:
        self.work.runs.append(Run(started, self._clock(), name))

    def _tell(self, message: Message) -> None:
        """Send, however long nobody reads, until nobody is there who could."""
        while not self.abandoned and not self._outbox.send(message, timeout_s=SEND_S):
            pass


def _checked(rollout: Rollout, most: int, vocabulary: int) -> list[Guess]:
    """The first `most` guesses of a rollout; raises DraftError for what is none."""
    found: object = rollout()
    if not isinstance(found, list | tuple):
        what = type(found).__name__
        raise DraftError(f"The draft gave a {what} where the guesses of a pass were due.")
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
