"""Replay a record: the real engine, strategies and worker, on tables in place of graphs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.branches import Rows
from runtime.cache import Cache
from runtime.drafter import Drafter, LookupDrafter, ModelDrafter
from runtime.emulation import EmulatedDevices, Pacer
from runtime.engine import decode
from runtime.errors import MirrorError
from runtime.manifest import Geometry
from runtime.metrics import Metrics
from runtime.progress import Role
from runtime.sampling import Sampling
from runtime.session import GraphSession
from runtime.strategy import Autoregressive, Strategy
from runtime.timeline import Run
from runtime.verify import Outcome
from runtime.virtual_time import VirtualTiming
from runtime.worker import DraftWorker
from scripts.emulated.records import NONE, RANKS, Record, compact

CHUNK = 128  # rows in which a text is read
ROOM = 512  # for branches behind the text
LIMIT_S = 1e6  # a slow profile is no reason to drop a draft

Tokens = NDArray[np.int64]
Floats = NDArray[np.float32]
MakeStrategy = Callable[[DraftWorker], Strategy]


class Text(Cache):
    """A cache of tokens alone."""

    @property
    def tokens(self) -> Tokens:
        """What is cached."""
        return self._tokens[: self.length]


class TableSession(GraphSession[Text]):
    """A session whose logits come from the text that each row sees; its calls are paced as any."""

    chunk = CHUNK

    def __init__(self, row: Callable[[Tokens], Floats], *, vocabulary: int, context: int) -> None:
        """row: the logits [vocabulary] of what follows a text [n]."""
        geometry = Geometry(1, 1, 1, 1, 1, 2, vocabulary, context, 1e4, 1e-5)
        super().__init__(geometry, Text(context), logits_width=vocabulary)
        self._row = row

    def new_cache(self, context: int) -> Text:
        """An empty one."""
        return Text(context)

    def _feed(self, tokens: Tokens, num_logits: int, nodes: Rows) -> Floats:
        """The rows of a call, from what each of them sees."""
        with self.pace("whole", len(tokens) + len(nodes)):
            self.cache.append(tokens)
            text = np.concatenate([self.cache.tokens, nodes.tokens])
            ends = range(self.length - num_logits + 1, self.length + 1)
            seen = [text[:end] for end in ends] + [text[sees] for sees in nodes.sees]
            return np.stack([self._row(each) for each in seen])


class _Tables:
    """The logits of a record's target and draft."""

    def __init__(self, record: Record) -> None:
        self.record, known = compact(record)
        self.vocabulary = known + RANKS  # what fills places is never what the target says
        self._fill = known + np.arange(RANKS)

    def target(self, text: Tokens) -> Floats:
        """What was written stands at the text's next place, whatever the text is."""
        place = len(text)
        tokens = self.record.tokens
        return self._ranked([tokens[place] if place < len(tokens) else self._fill[0]])

    def draft(self, text: Tokens) -> Floats:
        """What was guessed after this text, where it is the record's; masks end it."""
        real = int((text < self.vocabulary).sum())
        number, masks = real - self.record.start, len(text) - real
        guesses = self.record.guesses
        told = 0 <= number < len(guesses) and masks < guesses.shape[1]
        if not told or (text[:real] != self.record.tokens[:real]).any():
            return self._ranked(self._fill)
        ranked = guesses[number, masks]
        return self._ranked(np.where(ranked == NONE, self._fill, ranked))

    def _ranked(self, tokens: NDArray[np.integer[Any]] | list[np.int64]) -> Floats:
        """Logits that prefer `tokens`, the first most."""
        row = np.zeros(self.vocabulary, np.float32)
        row[tokens] = np.arange(len(tokens), 0, -1)
        return row


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay took, and the calls of target and draft.

    Each as it would have been alone on a device that is awake.
    """

    metrics: Metrics
    target: list[Run]
    draft: list[Run]


class _Noting:
    """A pacer that notes each call's time alone."""

    def __init__(self, devices: VirtualTiming | EmulatedDevices, role: Role) -> None:
        self.calls: list[Run] = []
        self._pacer = Pacer(devices, role)
        self._clock = devices.timing
        self._device = devices.profile.target if role == "target" else devices.profile.draft

    def __call__(self, part: str, rows: int) -> AbstractContextManager[None]:
        now = self._clock()
        self.calls.append(Run(now, now + self._device.seconds(rows), part, rows))
        return self._pacer(part, rows)


def replay(
    record: Record,
    devices: VirtualTiming | EmulatedDevices,
    make: MakeStrategy | None = None,
    *,
    draft: Literal["model", "lookup"] = "model",
) -> Replayed:
    """Write the recorded answer by the strategy that `make` gives, and say what it took.

    devices: where the calls run, in their own time. draft: the recorded one, or prompt lookup.
    On a virtual clock a round also costs the profile's overhead; on the real one its own. Raises
    MirrorError where the text that comes is another one.
    """
    tables = _Tables(record)
    kept = tables.record
    context = len(kept.tokens) + ROOM
    target = TableSession(tables.target, vocabulary=tables.vocabulary, context=context)
    target.pace = target_calls = _Noting(devices, "target")
    session = TableSession(tables.draft, vocabulary=tables.vocabulary, context=context)
    session.pace = draft_calls = _Noting(devices, "draft")
    places = record.guesses.shape[1]
    drafter: Drafter = LookupDrafter()
    if draft == "model":
        drafter = ModelDrafter(
            session, vocabulary=tables.vocabulary, tokens_per_pass=places, runner_ups=RANKS - 1
        )
    worker = DraftWorker(
        lambda: drafter,
        context=context,
        vocabulary=tables.vocabulary,
        time_limit_s=LIMIT_S,
        timing=devices.timing,
    )
    try:
        strategy = Autoregressive() if make is None else make(worker)
        metrics = Metrics(strategy.name, 0, {}, clock=devices.timing, emulated=devices.profile.name)
        if isinstance(devices, VirtualTiming):
            seconds = devices.profile.overhead_ms.value / 1000
            strategy = _Slowed(strategy, devices.sleep, seconds)
        blocks = decode(
            target,
            strategy,
            kept.prompt,
            Sampling(),
            max_new_tokens=len(kept.answer) + (0 if kept.end_token is None else ROOM),
            end_tokens=frozenset() if kept.end_token is None else frozenset([kept.end_token]),
            metrics=metrics,
            cancelled=lambda: False,
        )
        text = [token for block in blocks for token in block]
        metrics.draft_error, metrics.void_runs = worker.error, devices.late
    finally:
        worker.close()
    written = kept.answer if kept.end_token is None else kept.answer[:-1]
    if text != written.tolist():
        raise MirrorError("The replay wrote another text than was recorded.")
    return Replayed(metrics, target_calls.calls, draft_calls.calls)


class _Slowed:
    """A strategy whose rounds cost the caller some seconds more, before the draft hears of them."""

    def __init__(self, strategy: Strategy, sleep: Callable[[float], None], seconds: float) -> None:
        self.name = strategy.name
        self.begin = strategy.begin
        self.propose = strategy.propose
        self.verifying = strategy.verifying
        self._strategy, self._sleep, self._seconds = strategy, sleep, seconds

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """As the strategy, after the time is over."""
        if outcome is not None:
            self._sleep(self._seconds)
        self._strategy.observe(outcome, block)
