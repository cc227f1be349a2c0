"""One question at a time: ask the session, stream the answer, keep it, and tell what it took."""

import _thread
import contextlib
import dataclasses
import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from runtime.conversation import Conversation, Generation
from runtime.heartbeat import heartbeat
from runtime.sampling import Sampling
from runtime.screen import Screen
from runtime.timeline import Timeline
from runtime.trace import Trace

ALIVE_S = 10.0  # of silence before a first word


class Metrics(Protocol):
    """What an answer took."""

    def to_dict(self) -> dict[str, Any]:
        """The metrics by name, ready for JSON."""

    def timeline(self) -> Timeline:
        """What ran when, so far."""


class Answer(Protocol):
    """An answer that arrives piece by piece."""

    @property
    def text(self) -> str:
        """The text so far."""

    @property
    def tokens(self) -> list[int]:
        """The tokens so far."""

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended; None while it goes on."""

    @property
    def metrics(self) -> Metrics:
        """What it took so far."""

    def __iter__(self) -> Iterator[str]: ...

    def cancel(self) -> None:
        """Stop within one step; any thread may call this."""


class Session(Protocol):
    """What the chat needs of a session that runtime.open_session opens."""

    strategy: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings in use, by name."""

    @property
    def default_sampling(self) -> Sampling:
        """The bundle's own generation settings."""

    def generate(
        self,
        prompt: Sequence[Mapping[str, str]],
        sampling: Sampling,
        /,
        *,
        max_new_tokens: int,
        stop: Sequence[str],
    ) -> Answer:
        """Answer the last of the messages."""

    def close(self) -> bool:
        """Free everything; False when a thread is stuck and the process must not wait for it."""


@dataclass(slots=True)
class Dialogue:
    """A conversation with a session, on a screen.

    `json` shows each answer as one line instead of piece by piece, `stats` adds settings and
    metrics; every answer goes into `trace`. `interactive` chooses which remedies are named.
    `limit_is_default`: nobody asked for max_new_tokens, so an answer that it cuts is worth a word.
    """

    session: Session
    screen: Screen
    generation: Generation
    conversation: Conversation = field(default_factory=Conversation)
    json: bool = False
    stats: bool = False
    interactive: bool = False
    limit_is_default: bool = True
    trace: Trace | None = None
    metrics: dict[str, Any] | None = field(default=None, init=False)
    _draft_lost: bool = field(default=False, init=False)

    def ask(self, text: str) -> str:
        """Ask `text` and show the answer; returns why it ended. See `respond`."""
        self.conversation.ask(text)
        return self.respond()

    def retry(self) -> str:
        """Answer the last question anew, with the next seed: the same one gives the same text."""
        sampling = self.generation.sampling
        if sampling.temperature == 0:
            self.screen.note("At temperature 0 the same question has the same answer.")
        else:
            seed = (sampling.seed + 1) % 2**64
            self.screen.note(f"seed {seed}")
            self.generation = dataclasses.replace(
                self.generation, sampling=dataclasses.replace(sampling, seed=seed)
            )
        return self.respond()

    def respond(self) -> str:
        """Answer the last question: show, keep, and report; returns the finish reason.

        Ctrl-C stops the answer: what was shown is kept. Without any text, and after an error (any
        MirrorError of the session, which passes through), the question stays open.
        """
        generation = self.generation
        answer = self.session.generate(
            list(self.conversation.messages),
            generation.sampling,
            max_new_tokens=generation.max_new_tokens,
            stop=generation.stop,
        )
        if self.trace is not None:
            number = len(self.trace.entries) + 1
            self.trace.add(self.session.strategy, f"answer {number}", answer.metrics)
        text = self._stream(answer)
        reason = answer.finish_reason or "cancelled"
        if text or reason not in ("cancelled", "failed"):
            self.conversation.answer(text)
        self.metrics = answer.metrics.to_dict()
        if self.json:
            self._print_json(answer, reason, self.metrics)
        self._report(reason, self.metrics)
        return reason

    def show_stats(self) -> None:
        """Print the settings in use and the metrics of the last answer."""
        self.screen.rows("settings", self.settings())
        if self.metrics is not None:
            self.screen.rows(_headed("metrics", self.metrics), self.metrics)

    def settings(self) -> dict[str, Any]:
        """The session's settings and those of generation, by name."""
        generation = self.generation
        return {
            **self.session.settings,
            "strategy": self.session.strategy,
            **dataclasses.asdict(generation.sampling),
            "max_new_tokens": generation.max_new_tokens,
            "stop": [json.dumps(text, ensure_ascii=False) for text in generation.stop],
        }

    def _stream(self, answer: Answer) -> str:
        pieces: list[str] = []
        try:
            with cancelled_by_interrupt(answer), contextlib.ExitStack() as silence:
                silence.enter_context(
                    heartbeat("Reading the prompt", self.screen.note, every_s=ALIVE_S)
                )
                for piece in answer:
                    silence.close()
                    pieces.append(piece)
                    if not self.json:
                        self.screen.piece(piece)
        except KeyboardInterrupt:
            answer.cancel()
        except BaseException:
            answer.cancel()
            if pieces and not self.json:
                self.screen.end_answer()
            raise
        if not self.json:
            self.screen.end_answer()
        return "".join(pieces)

    def _print_json(self, answer: Answer, reason: str, metrics: dict[str, Any]) -> None:
        line = {
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": reason,
            "metrics": metrics,
        }
        # ASCII, because some readers also split lines at U+2028 or U+0085.
        self.screen.piece(json.dumps(line))
        self.screen.end_answer()

    def _report(self, reason: str, metrics: dict[str, Any]) -> None:
        note = self.screen.note
        error = metrics.get("draft_error")
        if error and not self._draft_lost:
            self._draft_lost = True
            effect = "until a fresh one takes over, answers only come slower."
            if not self.interactive:
                effect = "the rest of the answer came without it."
            note(f"The draft stopped working ({error}); {effect}")
        if metrics.get("void_runs"):
            note(
                f"Void: {metrics['void_runs']} calls took longer here than on the emulated "
                "devices; a larger --time-scale gives them time."
            )
        if reason == "context_full":
            size = self.session.settings.get("context_length")
            remedy = "/reset starts over; --context-length may allow more."
            if not self.interactive:
                remedy = "Shorten the prompt, or allow more with --context-length."
            note(f"The context of {size} tokens is full: the answer ends here. {remedy}")
        elif reason == "max_new_tokens" and self.limit_is_default and not self.json:
            limit = self.generation.max_new_tokens
            note(f"The answer ends here, at {limit} tokens; --max-new-tokens allows more.")
        elif reason == "cancelled" and self.interactive:
            note("Stopped.")
        elif reason == "failed":
            note("The answer failed before its end.")
        if self.stats:
            self.show_stats()


def _headed(title: str, metrics: Mapping[str, Any]) -> str:
    """The title of metrics, which says when their times are not this machine's."""
    name = metrics.get("emulated")
    return f"{title} (emulated: {name})" if name else title


@contextlib.contextmanager
def cancelled_by_interrupt(answer: Answer) -> Iterator[None]:
    """Let the first Ctrl-C cancel `answer` and the next one raise KeyboardInterrupt.

    Only the main thread gets interrupts; elsewhere, and where they are ignored, nothing changes.
    """
    previous = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    on_main_thread = threading.current_thread() is threading.main_thread()
    if previous is signal.SIG_IGN or not on_main_thread:
        yield
        return

    def cancel(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        # On another thread: the handler runs between any two steps of this one, which may
        # just then hold the lock that cancel wants.
        _thread.start_new_thread(answer.cancel, ())

    signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
