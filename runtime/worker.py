"""The draft worker: one daemon thread that owns the draft and answers over two token channels.

`DraftWorker` is the caller's end, `_Loop` the thread's. The caller tells what is committed and
what is being verified; the thread reads it as it comes, a chunk at a time, so that a new message
never waits for more than one pass. Whatever the thread does wrong, the caller sees one error, drops
the draft and goes on.
"""

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runtime.channel import Kind, Message, TokenChannel
from runtime.drafter import Drafter, Guess
from runtime.errors import DraftError
from runtime.sampling import Sampling
from runtime.verify import Outcome, Proposal

WIDEST_MESSAGE = 64  # tokens
IDLE_S = 3600.0  # how long an idle thread sleeps before it looks again
STOP_S = 1.0  # how long `close` waits for a pass that is under way
LONG_TEXT = 64  # tokens; the reading of a longer text is not waited for


@dataclass(slots=True)
class DraftWork:
    """What the draft did in one generation: passes, and when they ran (perf_counter seconds)."""

    runs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """How many passes it made."""
        return len(self.runs)


class DraftWorker:
    """The caller's end; every method returns at once but `propose`, which waits for the draft."""

    def __init__(
        self, drafter: Drafter, *, context: int, vocabulary: int, time_limit_s: float = 5.0
    ) -> None:
        """Start the thread.

        context: the most tokens a text may have. vocabulary: ids from 0 up to it are proposals,
        all else is nonsense. time_limit_s: how long an answer may take before the draft is dropped.
        """
        self.source = drafter.source
        self.error: str | None = None
        self.work = DraftWork()
        self._vocabulary = vocabulary
        self._time_limit_s = time_limit_s
        self._round = 0
        self._texts = 0
        self._long = False
        self._rollouts: dict[Outcome, tuple[int, ...]] = {}
        slots = 64 + 2 * (context // WIDEST_MESSAGE + 1)
        self._inbox = TokenChannel(slots=slots, widest=WIDEST_MESSAGE)
        self._outbox = TokenChannel(slots=slots, widest=WIDEST_MESSAGE)
        self._loop = _Loop(drafter, self._inbox, self._outbox, context=context)
        self._thread = threading.Thread(target=self._loop.run, name="draft", daemon=True)
        self._thread.start()
        # Also when nobody closes it: a daemon thread that the interpreter ends inside native code
        # takes the process down with it.
        self._finish = weakref.finalize(self, _end, self._loop, self._inbox, self._thread)

    def reading(self) -> bool:
        """Whether the draft still reads a long text: waiting for it would delay the answer.

        A chunk that takes longer than the time limit drops the draft.
        """
        if not self._long or self._loop.texts_read == self._texts or not self._thread.is_alive():
            return False
        started = self._loop.chunk_started
        if started is not None and time.perf_counter() - started > self._time_limit_s:
            self._drop(DraftError(f"The draft read no further for {self._time_limit_s:g} s."))
        return True

    def begin(self, tokens: Sequence[int] | NDArray[np.int64], sampling: Sampling) -> None:
        """Start a text from its committed tokens; the draft reads it while the caller does."""
        while self._receive(0.0) is not None:
            pass  # rollouts that nobody read, which would fill the ring
        self.work = self._loop.work = DraftWork()
        self._loop.sampling = sampling
        self._rollouts.clear()
        self._texts += 1
        self._long = len(tokens) > LONG_TEXT
        self._send(Message(Kind.BEGIN, self._round, node=len(tokens)))
        self.commit(tokens)

    def commit(self, tokens: Sequence[int] | NDArray[np.int64]) -> None:
        """Tell which tokens are certain now, after those told before."""
        for start in range(0, len(tokens), WIDEST_MESSAGE):
            part = tuple(int(token) for token in tokens[start : start + WIDEST_MESSAGE])
            self._send(Message(Kind.COMMIT, self._round, tokens=part))

    def propose(self, count: int) -> Proposal:
        """Ask for up to `count` tokens after what is committed, and wait; empty once it failed."""
        self._round += 1
        self._send(Message(Kind.DRAFT, self._round, node=count))
        while self.error is None:
            message = self._receive(self._time_limit_s)
            if message is None:
                self._drop(DraftError(f"The draft gave no answer within {self._time_limit_s:g} s."))
            elif message.kind is Kind.PROPOSAL and message.round == self._round:
                return self._checked(message.tokens)
        return Proposal.chain(())

    def look_ahead(self, proposal: Proposal, count: int) -> None:
        """Have up to `count` tokens drafted for each guessed outcome of verifying `proposal`."""
        self._round += 1
        self._rollouts.clear()
        self._send(Message(Kind.LOOK_AHEAD, self._round, node=count, tokens=proposal.tokens))

    def rollout(self, outcome: Outcome) -> Proposal | None:
        """What was drafted in advance for `outcome`; None on a miss."""
        while self.error is None and (message := self._receive(0.0)) is not None:
            if message.kind is Kind.ROLLOUT and message.round == self._round:
                guessed = Outcome(message.node, message.final_token)
                self._rollouts[guessed] = message.tokens
        tokens = self._rollouts.get(outcome)
        return None if not tokens else self._checked(tokens) or None

    def close(self) -> bool:
        """End the thread; False when it is stuck and can only be left behind."""
        self._finish()
        return not self._thread.is_alive()

    def _checked(self, tokens: tuple[int, ...]) -> Proposal:
        """The tokens as a proposal; nonsense drops the draft."""
        strange = [token for token in tokens if not 0 <= token < self._vocabulary]
        if strange:
            self._drop(
                DraftError(
                    f"The draft proposed the token {strange[0]}, outside the vocabulary of "
                    f"{self._vocabulary}."
                )
            )
            return Proposal.chain(())
        return Proposal.chain(tokens)

    def _send(self, message: Message) -> None:
        if self.error is None:
            try:
                self._inbox.send(message, timeout_s=self._time_limit_s)
            except DraftError as error:
                self._drop(error)

    def _receive(self, timeout_s: float) -> Message | None:
        try:
            return self._outbox.receive(timeout_s=timeout_s)
        except DraftError as error:
            self._drop(error)
            return None

    def _drop(self, error: DraftError) -> None:
        """Never use the draft again; tell a thread that still runs to end when it can."""
        self.error = self.error or str(error)
        self._loop.abandoned = True
        with suppress(DraftError):  # a full inbox wakes the thread as well
            self._inbox.send(Message(Kind.STOP), timeout_s=0.0)


def _end(loop: "_Loop", inbox: TokenChannel, thread: threading.Thread) -> None:
    """Tell the thread to end and wait a little for it."""
    loop.abandoned = True
    with suppress(DraftError):  # a full inbox wakes the thread as well
        inbox.send(Message(Kind.STOP), timeout_s=0.0)
    thread.join(STOP_S)


class _Loop:
    """The thread's end: owns the drafter, the committed tokens, and what was guessed last."""

    def __init__(
        self, drafter: Drafter, inbox: TokenChannel, outbox: TokenChannel, *, context: int
    ) -> None:
        self.work = DraftWork()
        self.sampling = Sampling()
        self.texts_read = 0
        self.chunk_started: float | None = None
        self.abandoned = False
        self._drafter = drafter
        self._inbox, self._outbox = inbox, outbox
        self._committed = np.empty(context + 1, np.int64)
        self._length = 0
        self._texts = 0
        self._prompt_length = 0
        self._guesses: dict[tuple[int, ...], list[Guess]] = {}

    def run(self) -> None:
        """Answer messages until told to stop; a failure of any kind travels to the caller."""
        try:
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
            self._length, self._prompt_length = 0, message.node
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
        started = self.chunk_started = time.perf_counter()
        if self._drafter.catch_up(self._committed[: self._length]):
            self.texts_read = self._texts
        self.chunk_started = None
        self._ran(started)

    def _propose(self, count: int) -> tuple[int, ...]:
        guesses = list(self._draft((), count))
        tokens = tuple(guess.token for guess in guesses)
        self._guesses = {tokens: guesses}
        return tokens

    def _look_ahead(self, number: int, proposal: tuple[int, ...], count: int) -> None:
        """Draft for each guessed outcome, publishing every token, until the round is over."""
        known = self._guesses.get(proposal, [])
        self._guesses = {}
        for node, tail, guessed in self._hypotheses(proposal, known):
            wanted = count if guessed else count + 1
            final, rollout = guessed, []  # type: Guess | None, list[Guess]
            for guess in self._draft(tail, wanted):
                if final is None:
                    final = guess
                else:
                    rollout.append(guess)
                    tokens = tuple(item.token for item in rollout)
                    self._guesses[tokens] = list(rollout)
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

    def _draft(self, tail: tuple[int, ...], count: int) -> Iterator[Guess]:
        """At most `count` guesses after the committed text and `tail`, each pass timed."""
        context = np.append(self._committed[: self._length], np.array(tail, np.int64))
        count = max(0, min(count, len(self._committed) - len(context)))
        guesses = self._drafter.draft(context, count, self.sampling)
        for _ in range(count):
            started = time.perf_counter()
            guess = next(guesses, None)
            if guess is None:
                return
            self._ran(started)
            yield guess

    def _ran(self, started: float) -> None:
        self.work.runs.append((started, time.perf_counter()))

    def _tell(self, message: Message) -> None:
        while not self.abandoned:
            with suppress(DraftError):  # full: nobody reads, or not yet
                self._outbox.send(message, timeout_s=STOP_S / 2)
                return
