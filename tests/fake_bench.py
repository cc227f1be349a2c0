"""Sessions whose answers and metrics are made by hand, for the tests of the bench."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.bench_runs import CLEARING_TEXT, Lap, Turn, Way
from runtime.errors import MirrorError
from runtime.prompts import Prompt
from runtime.sampling import Sampling
from runtime.timeline import Timeline
from tests.table import new_metrics
from tests.timelines import THREE_ROUNDS

ALONE, LOOKUP, MIRROR = (
    Way("autoregressive", "none"),
    Way("speculative", "lookup"),
    Way("mirror", "model"),
)


def metrics(**values: Any) -> dict[str, Any]:
    """The schema as after an answer of which nothing else is known."""
    return {**new_metrics().to_dict(), **values}


def turn(*tokens: int, between_s: Sequence[float] = (), **values: Any) -> Turn:
    """An answer of `tokens`."""
    found = metrics(emitted_tokens=len(tokens), finish_reason="eos", **values)
    return Turn(tokens, found, tuple(between_s))


def lap(
    turns: Mapping[Way, Turn | list[Turn]],
    *,
    number: int = 1,
    category: str = "qa",
    repeat: int = 1,
) -> Lap:
    """A conversation with question `number`."""
    listed = {way: own if isinstance(own, list) else [own] for way, own in turns.items()}
    prompt = Prompt(number, category, ("?",) * len(next(iter(listed.values()))))
    return Lap(prompt, repeat, listed)


@dataclass
class FakeMetrics:
    values: dict[str, Any]
    between_tokens_s: list[float]

    def to_dict(self) -> dict[str, Any]:
        return self.values

    def timeline(self) -> Timeline:
        return THREE_ROUNDS


@dataclass
class FakeAnswer:
    text: str
    tokens: list[int]
    metrics: FakeMetrics
    error: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        if self.error is not None:
            raise self.error
        yield self.text


@dataclass
class FakeSession:
    """Answers with the length of the question, and whatever `script` puts in place of it.

    `script`: by strategy and number of the answer (from 0, clearing left out), tokens or an error.
    All sessions of one `journal` write down there who was asked what.
    """

    strategy: str
    journal: list[tuple[str, Any]]
    draft: str = "none"
    exactness: str = "bitwise"
    stuck: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    script: dict[tuple[str, int], list[int] | BaseException] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    samplings: set[tuple[Sampling, int, tuple[str, ...]]] = field(default_factory=set)
    num_draft_tokens: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "draft": self.draft,
            "exactness": self.exactness,
            "model": "a model",
            "draft_model": "a draft" if self.draft == "model" else None,
            "precision": "int8",
        }

    def generate(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        sampling: Sampling,
        /,
        *,
        max_new_tokens: int,
        stop: Sequence[str],
    ) -> FakeAnswer:
        way = str(Way(self.strategy, self.draft, self.num_draft_tokens))
        if isinstance(prompt, str):
            assert prompt == CLEARING_TEXT
            self.journal.append((way, prompt))
            return FakeAnswer("", [], FakeMetrics(metrics(), []))
        self.samplings.add((sampling, max_new_tokens, tuple(stop)))
        self.journal.append((way, [message["content"] for message in prompt]))
        number = self.asked.get(way, 0)
        self.asked[way] = number + 1
        planned = self.script.get((way, number), [len(prompt[-1]["content"]), 1, 2])
        tokens = planned if isinstance(planned, list) else []
        values = {"tokens_per_s": 10.0, **self.values, "emitted_tokens": len(tokens)}
        return FakeAnswer(
            f"{tokens}",
            tokens,
            FakeMetrics(metrics(finish_reason="eos", **values), [0.01] * len(tokens[1:])),
            None if isinstance(planned, list) else planned,
        )

    def close(self) -> bool:
        self.journal.append(("closed", self.draft))
        return not self.stuck


@dataclass
class FakeRuntime:
    """Stands for open_session and locate_bundle; every session gets `given`."""

    given: dict[str, Any] = field(default_factory=dict)
    journal: list[tuple[str, Any]] = field(default_factory=list)
    opened: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    located: list[Any] = field(default_factory=list)
    error: MirrorError | None = None

    def open(self, model: Any, **settings: Any) -> FakeSession:
        if self.error is not None:
            raise self.error
        self.opened.append((model, settings))
        return FakeSession(
            settings["strategy"], self.journal, draft=settings["draft"], **self.given
        )

    def locate(self, model: Any, **_: Any) -> Path:
        self.located.append(model)
        return Path("bundles") / str(model)
