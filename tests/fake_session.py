"""A session that answers from a script; run as a program, it stands under the real chat."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.chat import main
from runtime.errors import MirrorError
from runtime.sampling import Sampling
from runtime.timeline import Timeline
from tests.timelines import THREE_ROUNDS


@dataclass
class Script:
    """What one answer does: its pieces, then its end.

    `endless` goes on until it is cancelled, and says on standard error that it has begun.
    """

    pieces: Sequence[str] = ("Hello", " there.")
    finish_reason: str = "eos"
    endless: bool = False
    error: MirrorError | None = None
    draft_error: str | None = None
    void_runs: int = 0
    emulated: str | None = None


@dataclass
class FakeMetrics:
    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.values

    def timeline(self) -> Timeline:
        return THREE_ROUNDS


@dataclass
class FakeAnswer:
    script: Script
    sampling: Sampling
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def metrics(self) -> FakeMetrics:
        return FakeMetrics(
            {
                "emitted_tokens": len(self.tokens),
                "seed": self.sampling.seed,
                "draft_error": self.script.draft_error,
                "finish_reason": self.finish_reason,
                "emulated": self.script.emulated,
                "void_runs": self.script.void_runs,
            }
        )

    def __iter__(self) -> Iterator[str]:
        if self.script.endless:
            sys.stderr.write("Begun.\n")
        for piece in self.script.pieces:
            yield self._emit(piece)
        if self.script.error is not None:
            self.finish_reason = "failed"
            raise self.script.error
        while self.script.endless and not self.cancelled.is_set():
            time.sleep(0.01)
            yield self._emit("word ")
        self.finish_reason = "cancelled" if self.script.endless else self.script.finish_reason

    def _emit(self, piece: str) -> str:
        self.text += piece
        self.tokens.append(len(self.tokens))
        return piece

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass
class Call:
    messages: list[dict[str, str]]
    sampling: Sampling
    max_new_tokens: int
    stop: tuple[str, ...]


class FakeSession:
    """Answers one script after the other, the last one again and again."""

    def __init__(
        self, *scripts: Script, default_sampling: Sampling | None = None, stuck: bool = False
    ) -> None:
        self.scripts = list(scripts) or [Script()]
        self.default_sampling = default_sampling or Sampling()
        self.settings: Mapping[str, Any] = {"context_length": 64}
        self.strategy = "mirror"
        self.stuck = stuck
        self.calls: list[Call] = []
        self.opened: tuple[Any, dict[str, Any]] | None = None
        self.closed = 0

    def open(self, model: str, **settings: Any) -> "FakeSession":
        """Stands for open_session."""
        self.opened = (model, settings)
        self.strategy = settings["strategy"]
        settings["progress"]("Loading.")
        return self

    def generate(
        self,
        prompt: Sequence[Mapping[str, str]],
        sampling: Sampling,
        /,
        *,
        max_new_tokens: int,
        stop: Sequence[str],
    ) -> FakeAnswer:
        script = self.scripts[min(len(self.calls), len(self.scripts) - 1)]
        messages = [dict(message) for message in prompt]
        self.calls.append(Call(messages, sampling, max_new_tokens, tuple(stop)))
        return FakeAnswer(script, sampling)

    def close(self) -> bool:
        self.closed += 1
        return not self.stuck


def hang() -> None:
    """What a thread stuck in native code looks like at exit: one that is joined and never ends."""
    threading.Thread(target=threading.Event().wait).start()


def run(argv: Sequence[str]) -> int:
    """The chat over scripts named by the first argument."""
    name, *flags = argv
    scripts = {
        "short": [Script()],
        "endless": [Script(endless=True), Script(("And on.",))],
        "thai": [Script(("สวัสดี", " 😀"))],
        "stuck": [Script()],
    }
    if name == "stuck":
        hang()
    return main(flags, open_session=FakeSession(*scripts[name], stuck=name == "stuck").open)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
