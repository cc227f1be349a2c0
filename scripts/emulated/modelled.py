"""Rounds on emulated devices beside what the cost model says of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from runtime.costs import (
    Costs,
    Curve,
    Hits,
    bare_s,
    hit_s,
    is_open,
    lookup_s,
    redraft_s,
    speculative_s,
)
from runtime.metrics import Metrics
from runtime.profiles import Device, Figure, Point, Profile
from runtime.strategy import Mirror, Speculative
from runtime.timeline import Round, Run, busy, overlap
from runtime.verify import Outcome
from runtime.virtual_time import VirtualTiming
from runtime.worker import DraftWorker
from scripts.emulated.records import NONE, RANKS, Record, scripted
from scripts.emulated.replay import replay

TARGET_MS = ((1, 40.0), (8, 44.0), (32, 64.0))
DRAFT_MS = ((1, 40.0), (16, 42.0), (64, 50.0))  # times the ratio of both
OVERHEAD_MS = 0.3
AGREEMENT = 0.7  # of the scripted draft, at each place
TOKENS = 200  # of an answer
AFTER = 16  # further tokens that the target would have said


@dataclass(frozen=True, slots=True)
class Case:
    """Two devices and a way of decoding on them.

    ratio: a call of one row of the draft by one of the target. per_pass: k. hypotheses: 0 lets the
    draft rest. redraft: what a miss is answered with; else with the bare pending token.
    """

    ratio: float
    per_pass: int
    length: int
    hypotheses: int = 0
    siblings: int = 0
    redraft: bool = True
    draft: Literal["model", "lookup"] = "model"
    target_slowdown: float = 1.0
    draft_slowdown: float = 1.0

    def __str__(self) -> str:
        """The way, in words."""
        if self.draft == "lookup":
            return f"lookup, γ {self.length}"
        name = "mirror" if self.hypotheses else "speculative"
        beside = f", B {self.hypotheses}" if self.hypotheses else ""
        leaves = f", {self.siblings} leaves" if self.siblings else ""
        miss = "" if self.redraft else ", bare"
        return f"{name}, k {self.per_pass}, γ {self.length}{beside}{leaves}{miss}"

    @property
    def profile(self) -> Profile:
        """Its devices, which are nobody's."""
        draft = [(rows, self.ratio * ms) for rows, ms in DRAFT_MS]
        return Profile(
            "made up",
            "two devices",
            _device(TARGET_MS, self.target_slowdown),
            _device(draft, self.draft_slowdown),
            _figure(OVERHEAD_MS),
        )

    @property
    def draft_is_shorter(self) -> bool:
        """Whether one pass of a look-ahead ends before the target's run beside it."""
        rows = self.length + 1 + self.hypotheses * self.per_pass
        profile = self.profile
        target_s = profile.target.seconds(self.length + self.siblings + 1) * self.target_slowdown
        return profile.draft.seconds(rows) * self.draft_slowdown <= target_s


@dataclass(frozen=True, slots=True)
class Compared:
    """Mean milliseconds of a round, by the cost model and as emulated.

    hit_rate, hidden: of the rounds in which the draft looked ahead, and of its time in those whose
    outcome it had foreseen, what passed while the target ran; None where there are none.
    """

    case: Case
    predicted_ms: float
    emulated_ms: float
    hit_rate: float | None
    hidden: float | None

    @property
    def difference(self) -> float:
        """How far the prediction is off, of what was emulated."""
        return self.predicted_ms / self.emulated_ms - 1


def compared(case: Case) -> Compared:
    """Replay an answer and predict its rounds from the same curves and from how often it hit."""
    watched: list[_Watched] = []

    def make(worker: DraftWorker) -> Speculative:
        if not case.hypotheses:
            return Speculative(worker, num_draft_tokens=case.length, num_siblings=case.siblings)
        watched.append(_Watched(worker, case))
        return watched[0]

    record = _record(case)
    metrics = replay(record, VirtualTiming(case.profile), make, draft=case.draft).metrics
    log = metrics.round_log
    emulated = (log[-1].end - log[0].start) / len(log)
    costs = costs_of(case.profile, case.per_pass)
    if case.draft == "lookup":
        predicted = lookup_s(costs, case.length)
    elif not watched:
        predicted = speculative_s(costs, case.length, siblings=case.siblings)
    else:
        predicted = _mirror_s(case, costs, metrics, watched[0].leaves)
    rate = metrics.to_dict()["hit_rate"]
    return Compared(case, 1000 * predicted, 1000 * emulated, rate, _hidden(metrics))


def costs_of(profile: Profile, per_pass: int) -> Costs:
    """What a perfect calibration would find."""
    return Costs(
        _curve(profile.target),
        _curve(profile.draft),
        per_pass,
        profile.target.contention.value,
        profile.draft.contention.value,
        overhead_s=profile.overhead_ms.value / 1000,
    )


class _Watched(Mirror):
    """A mirror that notes in which rounds a leaf was accepted."""

    def __init__(self, worker: DraftWorker, case: Case) -> None:
        super().__init__(
            worker,
            num_draft_tokens=case.length,
            num_hypotheses=case.hypotheses,
            num_siblings=case.siblings,
            redraft=case.redraft,
        )
        self.leaves: list[bool] = []

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """As ever."""
        if outcome is not None:
            self.leaves.append(outcome.node >= len(self._chain))
        super().observe(outcome, block)


def _mirror_s(case: Case, costs: Costs, metrics: Metrics, leaves: Sequence[bool]) -> float:
    """Mean seconds of a mirror's rounds, by how many came after a hit and how many after a miss."""
    log = metrics.round_log
    pairs = list(zip(log, leaves, strict=True))
    whole = [(each, leaf) for each, leaf in pairs if each.proposed]
    bare = [each for each in log if not each.proposed]
    hits = _hits(case, metrics, whole, bare)
    shape: dict[str, Any] = {"siblings": case.siblings, "hits": hits}
    after_hit = hit_s(costs, case.length, case.hypotheses, **shape)
    after_miss = redraft_s(costs, case.length, case.hypotheses, **shape)
    num_after_hit = sum(bool(before.hit) and now.proposed > 0 for before, now in pairwise(log))
    num_after_miss = len(whole) - num_after_hit
    total = num_after_hit * after_hit + num_after_miss * after_miss
    if bare:
        right = AGREEMENT if case.per_pass > 1 else 1.0
        rate = _rate(bare)
        total += len(bare) * bare_s(
            costs, case.length, hits=Hits(0.0, rate * right, rate * (1 - right))
        )
    return total / len(log)


def _hits(
    case: Case, metrics: Metrics, whole: Sequence[tuple[Round, bool]], bare: Sequence[Round]
) -> Hits:
    """How often an outcome of a proposal was foreseen, by what was left of its rollout."""
    opened = begun = 0.0
    if is_open(case.length, case.per_pass):
        of_bare = sum(bool(each.hit) for each in bare)
        opened = (metrics.hits["bonus"] - of_bare) / len(whole)
        begun = opened * (1 - AGREEMENT) if case.per_pass > 1 else 0.0
    leaf = sum(bool(each.hit) and leaf for each, leaf in whole) / len(whole)
    rate = _rate([each for each, _ in whole])
    return Hits(rate - opened - leaf, opened - begun, begun + leaf)


def _rate(rounds: Sequence[Round]) -> float:
    return sum(bool(each.hit) for each in rounds) / len(rounds)


def _hidden(metrics: Metrics) -> float | None:
    """Of the draft's time from the target's run on until the next one, where that was a hit."""
    verified = [run for run in metrics.target_runs if run.name == "verify"]
    drafted: list[Run] = []
    for each, (run, following) in zip(metrics.round_log, pairwise(verified), strict=False):
        if each.hit:
            drafted += [
                pass_ for pass_ in metrics.draft.runs if run.start <= pass_.start < following.start
            ]
    return overlap(drafted, verified) / busy(drafted) if drafted else None


def _record(case: Case) -> Record:
    """A prompt of 8 tokens and an answer; for lookup one that goes round, else none twice."""
    start = 8
    tokens = np.arange(start + TOKENS + AFTER)
    if case.draft == "lookup":
        tokens %= start
    silent = np.full((TOKENS, 1, RANKS), NONE, np.int32)
    record = Record("qa", tokens, start, start + TOKENS, silent)
    if case.draft == "lookup":
        return replace(record, tokens=tokens[: record.end])
    return scripted(record, AGREEMENT, places=case.per_pass)


def _device(points: Sequence[tuple[int, float]], slowdown: float) -> Device:
    cost = [Point(rows, _figure(ms)) for rows, ms in points]
    nothing = _figure(0.0)
    return Device("made up", "made up", cost, _figure(slowdown), nothing, nothing, nothing)


def _figure(value: float) -> Figure:
    return Figure(value, derived="made up to check the cost model")


def _curve(device: Device) -> Curve:
    """The profile's own points, a transfer added."""
    extra = device.transfer_ms.value
    return Curve(
        tuple(point.rows for point in device.cost),
        tuple((point.ms.value + extra) / 1000 for point in device.cost),
    )
