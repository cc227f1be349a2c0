"""The bench's measuring: every strategy has the same conversations, in turn, in one process."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.prompts import Prompt
from runtime.sampling import Sampling
from runtime.timeline import Timeline
from runtime.trace import Trace

# Not in chat form, so that it has no beginning in common with a prompt that is.
CLEARING_TEXT, CLEARING_TOKENS = ".", 4


class Metrics(Protocol):
    """What an answer took."""

    @property
    def between_tokens_s(self) -> list[float]:
        """Seconds from each token to the next."""

    def to_dict(self) -> dict[str, Any]:
        """The metrics by name, ready for JSON."""

    def timeline(self) -> Timeline:
        """What ran when, so far."""


class Answer(Protocol):
    """An answer that is made while it is iterated."""

    @property
    def text(self) -> str:
        """The text so far."""

    @property
    def tokens(self) -> list[int]:
        """The tokens so far."""

    @property
    def metrics(self) -> Metrics:
        """What it took so far."""

    def __iter__(self) -> Iterator[str]: ...


class Session(Protocol):
    """What the bench needs of a session that runtime.open_session opens."""

    strategy: str
    num_draft_tokens: int | None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings in use, by name."""

    def generate(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        sampling: Sampling,
        /,
        *,
        max_new_tokens: int,
        stop: Sequence[str],
    ) -> Answer:
        """Continue a text, or answer the last of the messages."""

    def close(self) -> bool:
        """Free everything; False when a thread is stuck and the process must not wait for it."""


@dataclass(frozen=True, slots=True)
class Way:
    """A strategy, who drafts for it, and how many tokens; None: as many as are usual."""

    strategy: str
    draft: str
    num_draft_tokens: int | None = None

    def __str__(self) -> str:
        """As the command line spells it."""
        count = "" if self.num_draft_tokens is None else f":{self.num_draft_tokens}"
        return self.strategy if self.draft == "none" else f"{self.strategy}:{self.draft}{count}"

    @property
    def session(self) -> str:
        """The name of its session: ways share one where it need not load anything for another."""
        return f"{self.strategy}:{self.draft}" if self.draft == "model" else self.draft


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked and how it is answered; `warm_up` conversations are not counted."""

    prompts: Sequence[Prompt]
    sampling: Sampling
    max_new_tokens: int
    stop: Sequence[str] = ()
    repeats: int = 1
    warm_up: int = 1

    @property
    def size(self) -> int:
        """How many laps there are."""
        return len(self.prompts) * self.repeats


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: its tokens, its metrics by the schema, the seconds between its tokens."""

    tokens: tuple[int, ...]
    metrics: Mapping[str, Any]
    between_tokens_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Lap:
    """One conversation, had in every way; `repeat` counts from 1."""

    prompt: Prompt
    repeat: int
    turns: Mapping[Way, Sequence[Turn]]


class Contest:
    """The ways to compare and their sessions: ways may share one."""

    def __init__(
        self, sessions: Mapping[str, Session], ways: Sequence[Way], trace: Trace | None = None
    ) -> None:
        """`sessions` by `Way.session`; the first of `ways` is the baseline.

        Every answer that is counted goes into `trace`, in a group named as its way.
        """
        self.ways = tuple(ways)
        self._sessions = sessions
        self._usual = {name: session.num_draft_tokens for name, session in sessions.items()}
        self._trace = trace
        self.settings = {way: dict(self._ready(way).settings) for way in ways}

    def warm_up(self, way: Way, plan: Plan) -> float:
        """Have the first conversation as often as the plan says; return the seconds it took."""
        started = time.perf_counter()
        for _ in range(plan.warm_up):
            self._converse(way, plan.prompts[0], plan, None)
        return time.perf_counter() - started

    def laps(self, plan: Plan) -> Iterator[Lap]:
        """Have every conversation in every way; who begins moves on from lap to lap."""
        for repeat in range(plan.repeats):
            for number, prompt in enumerate(plan.prompts):
                # By both, or a prompt would meet the same order in every repeat.
                first = (repeat + number) % len(self.ways)
                order = self.ways[first:] + self.ways[:first]
                name = f"{prompt.category} {prompt.question_id}, repeat {repeat + 1}"
                turns = {way: self._converse(way, prompt, plan, name) for way in order}
                yield Lap(prompt, repeat + 1, turns)

    def _converse(self, way: Way, prompt: Prompt, plan: Plan, name: str | None) -> list[Turn]:
        """Ask the turns of `prompt` one after the other, each after the answer to the one before.

        First a few tokens of something else: the caches then hold nothing of the prompt, and the
        threads of the way before have gone to sleep. `name`: in the trace, None to stay out of it.
        """
        session = self._ready(way)
        clearing = session.generate(
            CLEARING_TEXT, plan.sampling, max_new_tokens=CLEARING_TOKENS, stop=()
        )
        _read(clearing)
        messages: list[dict[str, str]] = []
        turns = []
        for number, text in enumerate(prompt.turns, 1):
            messages.append({"role": "user", "content": text})
            answer = session.generate(
                list(messages),
                plan.sampling,
                max_new_tokens=plan.max_new_tokens,
                stop=plan.stop,
            )
            if self._trace is not None and name is not None:
                self._trace.add(str(way), f"{name}, turn {number}", answer.metrics)
            _read(answer)
            messages.append({"role": "assistant", "content": answer.text})
            metrics = answer.metrics
            turns.append(
                Turn(tuple(answer.tokens), metrics.to_dict(), tuple(metrics.between_tokens_s))
            )
        return turns

    def _ready(self, way: Way) -> Session:
        session = self._sessions[way.session]
        if session.strategy != way.strategy:
            session.strategy = way.strategy
        count = way.num_draft_tokens or self._usual[way.session]
        if session.num_draft_tokens != count:
            session.num_draft_tokens = count
        return session


def _read(answer: Answer) -> None:
    for _ in answer:
        pass
