"""Measure what a round costs besides the models' calls and waiting for the draft: overhead_ms.

    python scripts/measure_overhead.py

Engine, strategies, worker and its thread are the real ones. Target and draft are tables that sleep
for as long as calls might take: rows of random logits, in each one token ahead of the others.
Ways and vocabularies take turns, so that what else the machine does falls on all alike.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime.auto import Auto
from runtime.branches import NO_BRANCHES, Branches
from runtime.calibration import UNMEASURED
from runtime.drafter import Guess, Rollout, Start, Tokens
from runtime.engine import decode
from runtime.limits import SIBLINGS
from runtime.metrics import Metrics
from runtime.planner import Planner
from runtime.sampling import Sampling, choose
from runtime.strategy import Autoregressive, Mirror, Speculative, Strategy
from runtime.worker import DraftWorker

VOCABULARIES = (49_152, 150_000)
SAMPLINGS = {
    "0": Sampling(),
    "0.8, top-k 50": Sampling(temperature=0.8, top_k=50),
    "0.8, unfiltered": Sampling(temperature=0.8),
}
STRATEGIES = ("autoregressive", "speculative", "mirror", "auto")
LENGTH, HYPOTHESES, PER_PASS, RUNNER_UPS = 4, 8, 5, 8
AGREEMENT = 0.7
AHEAD = 9.0  # of the likeliest logit to the others' mean, whose deviation is 2
TARGET_S, DRAFT_S = 0.006, 0.003
PROMPT, CONTEXT, BANK = 64, 512, 32

Floats = NDArray[np.float32]


class Table:
    """A target whose rows depend on the place alone, so that all ways write one text."""

    context = CONTEXT

    def __init__(self, vocabulary: int) -> None:
        rng = np.random.default_rng(0)
        self.vocabulary = vocabulary
        self._rows = 2 * rng.standard_normal((BANK, vocabulary), np.float32)
        self._rows[np.arange(BANK), rng.integers(vocabulary, size=BANK)] = AHEAD
        self._at = rng.integers(BANK, size=CONTEXT + 1)  # never in a circle, which could be copied

    def row(self, place: int) -> Floats:
        """The logits of what stands at a place of the text."""
        return np.asarray(self._rows[self._at[min(place, CONTEXT)]])

    def prefill(self, tokens: Tokens) -> bool:
        """Nothing to read."""
        return len(tokens) > 0

    def extend(
        self, tokens: Tokens, *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> Floats:
        """The rows of a call, after a while."""
        time.sleep(TARGET_S)
        places = range(len(tokens) - num_logits + 1, len(tokens) + 1)
        # What a node sees of the text, its ancestors and itself: so many tokens are before it.
        depths = [len(sees) for sees in branches.behind(len(tokens)).sees]
        return np.stack([self.row(place) for place in (*places, *depths)])


@dataclass
class Draft:
    """Right at each place with AGREEMENT; else its first runner-up is, and so on."""

    target: Table
    source: str = "model"
    known: dict[int, Guess] = field(default_factory=dict)

    def learn(self, sampling: Sampling) -> None:
        """Make all guesses now, for later they are to cost nothing."""
        rng = np.random.default_rng(1)
        self.known.clear()
        for place in range(CONTEXT):
            token = choose(self.target.row(place), np.arange(place), sampling)
            named = rng.choice(self.target.vocabulary, 1 + RUNNER_UPS, replace=False)
            rank = rng.geometric(AGREEMENT) - 1
            if rank <= RUNNER_UPS:
                named[rank] = token
            first, *others = named.tolist()
            self.known[place] = Guess(first, tuple(others))

    def catch_up(self, context: Tokens) -> bool:
        """Nothing to read."""
        return len(context) > 0

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        """The guesses of a pass, after a while."""
        time.sleep(DRAFT_S)
        return [
            partial(self._guesses, start.place + len(start.tokens), min(count, PER_PASS))
            for start in starts
        ]

    def _guesses(self, place: int, count: int) -> list[Guess]:
        return [self.known[min(place + at, CONTEXT - 1)] for at in range(count)]

    def stop(self) -> None:
        """No pass takes long."""


def main() -> None:
    """Print a line for each vocabulary and sampling."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=8, help="answers of each (8)")
    parser.add_argument("--max-new-tokens", type=int, default=160, help="of each (160)")
    options = parser.parse_args()
    drafts = {size: Draft(Table(size)) for size in VOCABULARIES}
    workers = {
        size: DraftWorker(partial(lambda draft: draft, draft), context=CONTEXT, vocabulary=size)
        for size, draft in drafts.items()
    }
    planners = {
        (size, name): Planner(replace(UNMEASURED, tokens_per_pass=PER_PASS), siblings=SIBLINGS)
        for size in VOCABULARIES
        for name in SAMPLINGS
    }
    found: dict[tuple[int, str, str], list[float]] = {}
    for _ in range(options.repeats):
        for size, draft in drafts.items():
            for name, sampling in SAMPLINGS.items():
                draft.learn(sampling)
                for strategy in STRATEGIES:
                    made = _made(strategy, workers[size], planners[size, name])
                    overheads = _overheads(draft.target, made, sampling, options.max_new_tokens)
                    found.setdefault((size, name, strategy), []).extend(overheads)
    for worker in workers.values():
        worker.close()
    print(f"| vocabulary | temperature | {' | '.join(STRATEGIES)} |")
    print(f"|---|---|{'---|' * len(STRATEGIES)}")
    for size in VOCABULARIES:
        for name in SAMPLINGS:
            cells = [_cell(found[size, name, strategy]) for strategy in STRATEGIES]
            print(f"| {size:,} | {name} | {' | '.join(cells)} |")
    print("\nMilliseconds: median (mean) of all rounds.")


def _made(name: str, worker: DraftWorker, planner: Planner) -> Strategy:
    if name == "autoregressive":
        return Autoregressive()
    if name == "speculative":
        return Speculative(worker, num_draft_tokens=LENGTH)
    if name == "mirror":
        return Mirror(worker, num_draft_tokens=LENGTH, num_hypotheses=HYPOTHESES)
    return Auto(worker, planner, tokens_per_pass=PER_PASS)


def _overheads(
    target: Table, strategy: Strategy, sampling: Sampling, max_new_tokens: int
) -> list[float]:
    """Seconds of each round of an answer."""
    metrics = Metrics(strategy.name, sampling.seed, {})
    blocks = decode(
        target,
        strategy,
        np.arange(PROMPT),
        sampling,
        max_new_tokens=max_new_tokens,
        end_tokens=frozenset(),
        metrics=metrics,
        cancelled=lambda: False,
    )
    for _ in blocks:
        pass
    return metrics.overheads_s


def _cell(seconds: Sequence[float]) -> str:
    return f"{1000 * median(seconds):.2f} ({1000 * float(np.mean(seconds)):.2f})"


if __name__ == "__main__":
    main()
