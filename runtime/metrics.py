"""What one generation did and how long it took: one schema for chat, bench and bridge.

`rounds` and `mean_acceptance_length` leave out the token that the prompt itself yields, and count
what the target settled, kept or not: plain decoding has exactly 1.00.
"""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from runtime.clock import Clock
from runtime.draft_loop import DraftWork
from runtime.timeline import Round, Run, Timeline, busy, overlap
from runtime.verify import Outcome, Proposal


@dataclass
class Metrics:
    """Counters and times of one generation; `to_dict` gives the schema."""

    strategy: str
    seed: int
    providers: Mapping[str, str]
    prompt_tokens: int = 0
    near_tie_bound: float = 0.0  # logits of one text differ by so much at most; 0 when bitwise
    near_ties: int = 0
    early_exits_dropped: int = 0  # by a token channel that was full
    tree_bound: float = 0.0  # logits off a tree's trunk decide only beyond it; 0 when bitwise
    guard_stops: int = 0
    finish_reason: str | None = None
    draft_error: str | None = None
    explain: Callable[[], str] | None = None  # what was chosen, and why, where there was a choice
    emulated: str | None = None  # the device profile that all times are those of
    void_runs: int = 0  # that took longer than modelled: one makes every time void
    rounds: int = 0
    tokens_discarded: int = 0
    settled_tokens: int = 0
    draft_tokens_proposed: int = 0
    draft_tokens_accepted: int = 0
    correction_tokens: int = 0
    bonus_tokens: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    rounds_followed: int = 0  # in which there were hypotheses
    rounds_foreseen: int = 0
    evaluated_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    target_runs: list[Run] = field(default_factory=list)
    draft: DraftWork = field(default_factory=DraftWork)
    waits: list[Run] = field(default_factory=list)  # for the draft
    deliveries: list[Run] = field(default_factory=list)  # of tokens that become text
    round_log: list[Round] = field(default_factory=list)
    overheads_s: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)  # of each emitted token
    clock: Clock = field(default=time.perf_counter, kw_only=True)  # of every time below
    started: float = field(init=False)
    first_token: float | None = None
    ended: float | None = None
    _final_token: int = -1

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def emitted_tokens(self) -> int:
        """How many tokens the answer has."""
        return len(self.arrivals)

    @property
    def between_tokens_s(self) -> list[float]:
        """Seconds from each token to the next: 0 within a block, whose tokens come together."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    @contextmanager
    def target_run(self, name: str = "verify", rows: int = 0) -> Iterator[None]:
        """Time one pass of the target over `rows` tokens (0: not known)."""
        started = self.clock()
        yield
        self.target_runs.append(Run(started, self.clock(), name, rows))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time a wait for the draft."""
        started = self.clock()
        yield
        self.waits.append(Run(started, self.clock(), "wait for the draft"))

    @contextmanager
    def round(self) -> Iterator[None]:
        """Time a round; what is neither a target pass nor a wait is overhead."""
        started = self.clock()
        runs, waits = len(self.target_runs), len(self.waits)
        before = self._outcomes()
        yield
        ended = self.clock()
        apart = busy(self.target_runs[runs:]) + busy(self.waits[waits:])
        self.overheads_s.append(ended - started - apart)
        pairs = zip(self._outcomes(), before, strict=True)
        proposed, accepted = (now - then for now, then in pairs)
        self.round_log.append(Round(started, ended, proposed, accepted, self._final_token))

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Time what turns a round's tokens into text: overhead of that round."""
        started = self.clock()
        yield
        self.deliveries.append(Run(started, self.clock(), "make text"))
        if self.overheads_s:
            self.overheads_s[-1] += busy(self.deliveries[-1:])

    def verified(self, proposal: Proposal, outcome: Outcome, *, guarded: bool = False) -> None:
        """A round ended in `outcome`; guarded: at a node that it does not count as accepted.

        That node's place counts as not evaluated, its token as neither correction nor bonus.
        """
        self.rounds += 1
        self._final_token = outcome.final_token
        accepted = 0
        node = outcome.node
        while node >= 0:
            accepted, node = accepted + 1, proposal.parents[node]
        self.settled_tokens += accepted + 1
        self.draft_tokens_proposed += len(proposal)
        self.draft_tokens_accepted += accepted
        for place in range(accepted):
            self.accepted_at[place] += 1
        whole = outcome.node not in proposal.parents
        corrected = not whole and not guarded
        for place in range(accepted + corrected):
            self.evaluated_at[place] += 1
        self.guard_stops += guarded
        self.correction_tokens += corrected
        self.bonus_tokens += whole and len(proposal) > 0

    def committed(self, settled: int, kept: int) -> None:
        """Of `settled` new tokens `kept` are part of the answer."""
        now = self.clock()
        if self.first_token is None:
            self.first_token = now
        self.ended = now
        self.arrivals += [now] * kept
        self.tokens_discarded += settled - kept

    def withdraw(self, count: int) -> None:
        """The last `count` tokens belong to a stop string, or come after it."""
        del self.arrivals[len(self.arrivals) - count :]
        self.tokens_discarded += count

    def foreseen(self, sources: Collection[str], hit: str | None) -> None:
        """The last round's outcome was among the hypotheses of source `hit`, or of no source."""
        if self.round_log:
            self.round_log[-1] = self.round_log[-1]._replace(hit=hit is not None)
        self.rounds_foreseen += hit is not None
        self.rounds_followed += 1
        for source in sources:
            (self.hits if source == hit else self.misses)[source] += 1

    def timeline(self) -> Timeline:
        """What ran when, so far."""
        return Timeline(
            self.started,
            tuple(self.round_log),
            tuple(self.target_runs),
            tuple(self.draft.runs),
            tuple(self.waits),
            tuple(self.deliveries),
        )

    def to_dict(self) -> dict[str, Any]:
        """The schema, ready for JSON; times in seconds but those named ms.

        `overhead_ms` is a median, `between_tokens_ms` see `percentiles_ms`.
        """
        wall = (self.ended or self.started) - self.started
        first = None if self.first_token is None else self.first_token - self.started
        later = self.emitted_tokens - 1
        evaluated = sum(self.evaluated_at.values())
        draft_busy = busy(self.draft.runs)
        overhead = 1000 * statistics.median(self.overheads_s) if self.overheads_s else None
        return {
            "strategy": self.strategy,
            "seed": self.seed,
            "providers": dict(self.providers),
            "finish_reason": self.finish_reason,
            "rounds": self.rounds,
            "prompt_tokens": self.prompt_tokens,
            "emitted_tokens": self.emitted_tokens,
            "tokens_discarded": self.tokens_discarded,
            "draft_tokens_proposed": self.draft_tokens_proposed,
            "draft_tokens_evaluated": evaluated,
            "draft_tokens_accepted": self.draft_tokens_accepted,
            "correction_tokens": self.correction_tokens,
            "bonus_tokens": self.bonus_tokens,
            "draft_passes": self.draft.passes,
            "target_passes": len(self.target_runs),
            "hits": dict(self.hits),
            "misses": dict(self.misses),
            "acceptance_rate": _share(self.draft_tokens_accepted, self.draft_tokens_proposed),
            "per_place_acceptance": [
                self.accepted_at[place] / count
                for place, count in sorted(self.evaluated_at.items())
            ],
            "mean_acceptance_length": _share(self.settled_tokens, self.rounds),
            "hit_rate": _share(self.rounds_foreseen, self.rounds_followed),
            "draft_busy_s": draft_busy,
            "target_busy_s": busy(self.target_runs),
            "hidden_share": _share(overlap(self.draft.runs, self.target_runs), draft_busy),
            "overhead_ms": overhead,
            "ttft_s": first,
            "tpot_s": (wall - first) / later if first is not None and later > 0 else None,
            "between_tokens_ms": percentiles_ms(self.between_tokens_s),
            "tokens_per_s": _share(self.emitted_tokens, wall),
            "wall_s": wall,
            "peak_rss_bytes": _peak_rss_bytes(),
            "energy_j": None,
            "near_ties": self.near_ties,
            "guard_stops": self.guard_stops,
            "early_exits_dropped": self.early_exits_dropped,
            "draft_error": self.draft_error,
            "plan": self.explain() if self.explain else None,
            "emulated": self.emulated,
            "void_runs": self.void_runs,
        }

    def _outcomes(self) -> tuple[int, int]:
        """Draft tokens proposed and accepted."""
        return self.draft_tokens_proposed, self.draft_tokens_accepted


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """The median, the 95th and the 99th percentile in milliseconds; None of nothing."""
    if not seconds:
        return None
    found = 1000 * np.percentile(seconds, (50, 95, 99))
    return dict(zip(("p50", "p95", "p99"), found.tolist(), strict=True))


def _share(part: float, whole: float) -> float | None:
    """part / whole; None where there is no whole."""
    return part / whole if whole else None


def _peak_rss_bytes() -> int | None:
    """The most memory this process ever held; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
