"""The draft worker: the caller's end of a draft that works in a daemon thread of its own.

The caller tells what is committed and what is being verified, over one token channel, and reads
proposals and rollouts from another. Whatever the draft does wrong, the caller sees one error and
goes on without it. That draft is never touched again, for a stuck call cannot be ended; a fresh one
takes over, on a thread of its own, as soon as it has loaded and read the text.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from runtime.channel import Kind, Message, TokenChannel, describe
from runtime.clock import REAL_TIMING, Timing
from runtime.draft_loop import DraftLoop, DraftWork
from runtime.drafter import Drafter, Guess
from runtime.errors import DraftError
from runtime.hypotheses import Hypothesis
from runtime.payload import MISS, pack_hypotheses, unpack_guesses
from runtime.sampling import Sampling

WIDEST_MESSAGE = 256  # tokens
STOP_S = 1.5  # how long `close` waits for passes that are under way
LOAD_S = 60.0  # how long a fresh draft may take to load; nobody waits for it
READING_S = 0.001  # between two looks at how far a draft has read
LONG_TEXT = 64  # tokens; the reading of a longer text is not waited for
PROOF = 16  # answers after which a draft counts as sound
PAUSE, LONGEST_PAUSE = 16, 1024  # rounds without a draft after the second failure, then doubled
MOST_STUCK = 3  # dropped drafts that may still run; each keeps its memory


@dataclass(frozen=True, slots=True)
class Draft:
    """What the draft guesses next; `hypothesis` is the outcome it had foreseen, None on a miss."""

    guesses: tuple[Guess, ...] = ()
    hypothesis: Hypothesis | None = None


NO_DRAFT = Draft()


class DraftWorker:
    """The caller's end; every method returns at once but `propose`, which waits for the draft.

    `errors` tells why drafts were dropped in this text. Where no draft has taken over since an
    earlier text, it begins with the last error of that one. `dropped` counts drafts over all texts.
    """

    def __init__(
        self,
        make: Callable[[], Drafter],
        *,
        context: int,
        vocabulary: int,
        time_limit_s: float = 5.0,
        timing: Timing = REAL_TIMING,
    ) -> None:
        """Load the first draft and start its thread; raises what `make` raises.

        make: loads a draft; after a drop it is called again, in the thread of the fresh draft.
        context: the most tokens a text may have. vocabulary: ids from 0 up to it are tokens, all
        else is nonsense. time_limit_s: how long an answer may take before the draft is dropped.
        timing: the clock, and what waits by it.
        """
        self.errors: list[str] = []
        self.dropped = 0
        self.work = DraftWork()
        self._new = partial(_Draft, make, context=context, vocabulary=vocabulary, timing=timing)
        self._time_limit_s = time_limit_s
        self._timing = timing
        self._text: list[int] = []
        self._told = 0  # tokens of it that the draft knows
        self._sampling = Sampling()
        self._round = 0
        self._failures = 0  # in a row, of drafts that were not sound
        self._pause = 0
        self._hypotheses: Sequence[Hypothesis] = ()  # that the last look-ahead follows
        self._drafts = _Drafts()
        first = self._new()
        self.source = first.loop.load()
        self._drafts.start(first)
        # Also when nobody closes it: a daemon thread that the interpreter ends inside native code
        # takes the process down with it.
        self._finish = weakref.finalize(self, self._drafts.end)

    @property
    def error(self) -> str | None:
        """What to tell the user of `errors`, in one line; None where all went well."""
        if len(self.errors) < 2:
            return self.errors[0] if self.errors else None
        return f"{self.errors[0]} (one of {len(self.errors)} drafts that were dropped)"

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft that has loaded, as far as was seen; asks nobody."""
        draft = self._drafts.current
        return draft is not None and draft.loop.loaded

    def ready(self) -> bool:
        """Whether to ask the draft: it is there, and neither loads nor reads a long text.

        Waiting for either would delay the answer; what takes longer than its limit is dropped.
        """
        self._collect()
        draft = self._drafts.current
        if draft is None or not draft.behind:
            return draft is not None
        started = draft.loop.busy_since
        what, limit = ("read no further", self._time_limit_s)
        if not draft.loop.loaded:
            what, limit = ("was not loaded", LOAD_S)
        if started is not None and self._timing() - started > limit:
            self._drop(DraftError(f"The draft {what} for {limit:g} s."))
        return False

    @property
    def is_reading(self) -> bool:
        """Whether the draft reads a long text now, which takes from what both models share."""
        draft = None if self.ready() else self._drafts.current
        return draft is not None and draft.told

    def wait_read(self) -> bool:
        """Wait while the draft reads a text, however long; then as `ready`."""
        while not self.ready():
            draft = self._drafts.current
            if draft is None or not (draft.told and draft.loop.loaded):
                return False
            self._timing.sleep(READING_S)
        return True

    def forgive(self) -> None:
        """A text starts, for which drafts that were dropped before it matter no more."""
        self.errors = self.errors[-1:] if self._drafts.current is None else []

    def begin(self, tokens: Sequence[int] | NDArray[np.int64], sampling: Sampling) -> None:
        """Start a text from its committed tokens; the draft reads it while the caller does."""
        self.forgive()
        self._collect()  # also answers that nobody waited for, which would fill the ring
        self.work = DraftWork()
        self._sampling = sampling
        self._text = [int(token) for token in tokens]
        self._catch_up(is_long=len(tokens) > LONG_TEXT)

    def commit(self, tokens: Sequence[int] | NDArray[np.int64]) -> None:
        """Note which tokens are certain now; the draft is told when it is next asked.

        Before that it could do nothing with them, and to wake it costs.
        """
        self._text += [int(token) for token in tokens]
        draft = self._drafts.current
        if draft is None or not draft.told:
            self._pause -= 1
            self._catch_up(is_long=True)

    def propose(self, least: int, most: int | None = None, *, redraft: bool = True) -> Draft:
        """Wait for `least` guesses after what is committed, and up to `most` of the last pass.

        Those of the outcome that was foreseen come first. redraft: also on a miss, where there
        are none else. Empty once the draft failed.
        """
        self._round += 1
        self._tell()
        kind = Kind.DRAFT if redraft else Kind.ROLLOUT
        self._send(Message(kind, self._round, least, least if most is None else most))
        while self._drafts.current is not None:
            message = self._receive(self._time_limit_s)
            if message is None:
                self._drop(DraftError(f"The draft gave no answer within {self._time_limit_s:g} s."))
            elif message.kind is Kind.GUESSES and message.round == self._round:
                self._sound()
                number = message.second
                taken = None if number == MISS else self._hypotheses[number]
                guesses = tuple(unpack_guesses(message.first, message.tokens))
                return Draft(guesses, taken)
        return NO_DRAFT

    def look_ahead(
        self, chain: Sequence[int], hypotheses: Sequence[Hypothesis], count: int
    ) -> None:
        """Have `count` tokens drafted for each guessed outcome of verifying `chain`."""
        self._round += 1
        self._hypotheses = hypotheses
        self._tell()
        tokens = (*chain, *pack_hypotheses(hypotheses))
        self._send(Message(Kind.LOOK_AHEAD, self._round, len(chain), count, tokens))

    def follow(self, chain: Sequence[int], hypotheses: Sequence[Hypothesis], count: int) -> bool:
        """Have further outcomes of the same verification followed; False where the channel is full.

        That is no failure: what was not told is not drafted for.
        """
        draft = self._drafts.current
        tokens = (*chain, *pack_hypotheses(hypotheses))
        message = Message(Kind.EARLY_EXIT, self._round, len(chain), count, tokens)
        if draft is None or not draft.inbox.send(message, timeout_s=0.0):
            return False
        self._hypotheses = (*self._hypotheses, *hypotheses)
        return True

    def close(self) -> bool:
        """End the threads; False when one is stuck and can only be left behind."""
        self._finish()
        return not self._drafts.running()

    def _sound(self) -> None:
        """An answer came; after so many from one draft, earlier failures are forgiven."""
        draft = self._drafts.current
        if draft is not None:
            draft.answers += 1
            self._failures = 0 if draft.answers >= PROOF else self._failures

    def _collect(self) -> None:
        """Take what the draft has sent, or the error that ended it, without waiting."""
        while self._receive(0.0) is not None:
            pass

    def _catch_up(self, *, is_long: bool) -> None:
        """Tell the whole text to a draft that has loaded; start one where there is none."""
        draft = self._drafts.current
        if draft is None:
            self._renew()
        elif draft.loop.loaded:
            draft.loop.work, draft.loop.sampling = self.work, self._sampling
            draft.told, draft.is_long = True, is_long
            draft.texts += 1
            self._told = 0
            self._send(Message(Kind.BEGIN, self._round, len(self._text)))
            self._tell()

    def _renew(self) -> None:
        """Start a fresh draft, unless too many failed: see docs/round.md."""
        if self._pause > 0 or self._drafts.running() >= MOST_STUCK or not self._finish.alive:
            return
        try:
            self._drafts.start(self._new())
        except (RuntimeError, MemoryError) as error:  # no further thread, no memory for its rings
            self._failed(f"No fresh draft could be started: {describe(error)}")

    def _tell(self) -> None:
        """Send what was committed since the draft was last told."""
        draft = self._drafts.current
        if draft is not None and draft.told:
            for start in range(self._told, len(self._text), WIDEST_MESSAGE):
                part = tuple(self._text[start : start + WIDEST_MESSAGE])
                self._send(Message(Kind.COMMIT, self._round, tokens=part))
            self._told = len(self._text)

    def _send(self, message: Message) -> None:
        draft = self._drafts.current
        if draft is not None:
            try:
                if not draft.inbox.send(message, timeout_s=self._time_limit_s):
                    raise DraftError(f"The draft took no message for {self._time_limit_s:g} s.")
            except DraftError as error:
                self._drop(error)

    def _receive(self, timeout_s: float) -> Message | None:
        draft = self._drafts.current
        try:
            return None if draft is None else draft.outbox.receive(timeout_s=timeout_s)
        except DraftError as error:
            self._drop(error)
            return None

    def _drop(self, error: DraftError) -> None:
        """Never use this draft again."""
        if self._drafts.current is not None:
            self._drafts.leave()
            self.dropped += 1
            self._failed(str(error))

    def _failed(self, error: str) -> None:
        self.errors.append(error)
        self._failures += 1
        doublings = self._failures - 2
        self._pause = min(PAUSE * 2**doublings, LONGEST_PAUSE) if doublings >= 0 else 0


class _Draft:
    """One draft: its thread, the channels to it, and what it was told."""

    def __init__(
        self, make: Callable[[], Drafter], *, context: int, vocabulary: int, timing: Timing
    ) -> None:
        slots = 64 + 2 * (context // WIDEST_MESSAGE + 1)
        self.inbox = TokenChannel(slots=slots, widest=WIDEST_MESSAGE, timing=timing)
        self.outbox = TokenChannel(slots=slots, widest=WIDEST_MESSAGE, timing=timing)
        self.loop = DraftLoop(
            make,
            self.inbox,
            self.outbox,
            context=context,
            vocabulary=vocabulary,
            clock=timing,
        )
        self.thread = timing.thread(self.loop.run, "draft")
        self.told = False  # the text, from its start
        self.is_long = False
        self.texts = 0
        self.answers = 0

    @property
    def behind(self) -> bool:
        """Whether it has not read all that should be read before it is asked."""
        return not self.told or (self.is_long and self.loop.texts_read != self.texts)

    def stop(self) -> None:
        """Tell the thread to end when it can."""
        self.loop.stop()
        self.loop.work = DraftWork()  # what it still does is no part of the answer
        self.inbox.send(Message(Kind.STOP), timeout_s=0.0)  # a full inbox wakes it as well


class _Drafts:
    """The draft in use, and the threads of those that were dropped; it outlives the worker.

    Of a dropped draft nothing else is kept, so that what it holds goes when its thread ends.
    """

    def __init__(self) -> None:
        self.current: _Draft | None = None
        self._left: list[threading.Thread] = []

    def start(self, draft: _Draft) -> None:
        """Use `draft`; raises RuntimeError when there can be no further thread."""
        draft.thread.start()
        self.current = draft

    def leave(self) -> None:
        """Stop using the current draft; its thread ends when it can."""
        if self.current is not None:
            self.current.stop()
            self._left.append(self.current.thread)
            self.current = None

    def running(self) -> int:
        """How many of the dropped drafts still run."""
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

    def end(self) -> None:
        """Tell every thread to end and wait a little for all of them."""
        self.leave()
        deadline = time.perf_counter() + STOP_S
        for thread in self._left:
            thread.join(max(0.0, deadline - time.perf_counter()))
