"""Models that are tables of logits, drafters that are right, wrong or worse, and a run of both."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Condition, Event

import numpy as np
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.channel import Message
from runtime.clock import Clock
from runtime.drafter import Drafter, Guess, Rollout, Start
from runtime.engine import Target, decode
from runtime.metrics import Metrics
from runtime.sampling import Sampling, choose
from runtime.strategy import Mirror, Strategy
from runtime.worker import DraftWorker, _Draft

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]
# From the target's own token, and how many tokens are before it, to what is drafted there.
Plan = Callable[[int, int], Guess]
mirror = partial(Mirror, num_hypotheses=8)


class TableTarget:
    """Logits from a table [period, vocabulary, vocabulary], by position and last token.

    `proposals` lists what each run verified, `longest` is the longest text that was asked for;
    `meanwhile` is called in every run.
    """

    def __init__(
        self, *, vocabulary: int = 4, context: int = 64, table: Floats | None = None, seed: int = 0
    ) -> None:
        noise = np.random.default_rng(seed).normal(size=(2, vocabulary, vocabulary)) * 2
        self.table = noise.astype(np.float32) if table is None else table
        self.vocabulary = self.table.shape[-1]
        self.context = context
        self.proposals: list[tuple[int, ...]] = []
        self.longest = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def row(self, tokens: Tokens) -> Floats:
        """The logits of what follows `tokens`."""
        return np.asarray(self.table[(len(tokens) - 1) % len(self.table), tokens[-1]])

    def prefill(self, tokens: Tokens) -> bool:
        return True

    def extend(
        self, tokens: Tokens, *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> Floats:
        assert 0 < num_logits <= len(tokens) <= self.context - len(branches)
        self.longest = max(self.longest, len(tokens))
        self.proposals.append(tuple(tokens[len(tokens) - num_logits + 1 :].tolist()))
        self.meanwhile()
        ends = range(len(tokens) - num_logits + 1, len(tokens) + 1)
        texts = [tokens[:end] for end in ends] + paths(tokens, branches)
        return np.stack([self.row(text) for text in texts])


def paths(tokens: Tokens, branches: Branches) -> list[Tokens]:
    """Of each node the text that ends in it."""
    every = np.append(tokens, np.array(branches.tokens, np.int64))
    return [every[sees] for sees in branches.behind(len(tokens)).sees]


def speaking(
    script: Sequence[int], *, vocabulary: int, prompt_length: int = 1, context: int = 64
) -> TableTarget:
    """A target that says `script` after a prompt, whatever it is given; then the script again."""
    tokens = np.roll(script, prompt_length - 1)
    rows = np.full((len(tokens), vocabulary, vocabulary), -9, np.float32)
    rows[np.arange(len(tokens)), :, tokens] = 9
    return TableTarget(table=rows, context=context)


def right(token: int, place: int) -> Guess:
    """Always what the target says; the runner-up is wrong."""
    del place
    return Guess(token, (token ^ 1,))


def second(token: int, place: int) -> Guess:
    """What the target says is the runner-up, always."""
    del place
    return Guess(token ^ 1, (token,))


def wrong(token: int, place: int) -> Guess:
    """Neither the token nor the runner-up is what the target says."""
    del place
    return Guess(token ^ 1, (token ^ 2,))


def mixed(token: int, place: int) -> Guess:
    """Each of the three, by place."""
    return (right, right, second, wrong, right)[place % 5](token, place)


class TableDrafter:
    """Drafts by a plan that knows what the target will say, `per_pass` tokens a pass."""

    source = "model"

    def __init__(self, target: TableTarget, plan: Plan, *, per_pass: int = 1) -> None:
        self._target = target
        self._plan = plan
        self._per_pass = per_pass

    def catch_up(self, context: Tokens) -> bool:
        return True

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        count = min(count, self._per_pass)
        return [partial(self._guesses, start.after(text), count, sampling) for start in starts]

    def _guesses(self, context: Tokens, count: int, sampling: Sampling) -> list[Guess]:
        found = []
        for _ in range(count):
            token = choose(self._target.row(context), context, sampling)
            found.append(self._plan(token, len(context)))
            context = np.append(context, found[-1].token)
        return found

    def stop(self) -> None:
        pass


class Faulty:
    """Drafts as `good` does for `after` passes; then `fault` is the guess of every rollout.

    None for no guess.
    """

    source = "model"

    def __init__(self, good: Drafter, fault: Callable[[], Guess | None], *, after: int = 0) -> None:
        self._good = good
        self._fault = fault
        self._left = after

    def catch_up(self, context: Tokens) -> bool:
        return self._good.catch_up(context)

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        self._left -= 1
        if self._left >= 0:
            return self._good.draft(text, starts, count, sampling)
        given = self._fault()
        return [[given].copy if given is not None else list] * len(starts)

    def stop(self) -> None:
        pass


def once(drafter: Drafter) -> Callable[[], Drafter]:
    """A way to load a draft that gives `drafter` the first time and then fails."""
    return [drafter].pop


@contextmanager
def working(
    drafter: Drafter | Callable[[], Drafter],
    target: TableTarget,
    *,
    time_limit_s: float = 5.0,
    hang: Event | None = None,
) -> Iterator[DraftWorker]:
    """A worker on `drafter`, which has no successor, or on what makes each; ended afterwards.

    `hang` is set first, to free what waits for it.
    """
    worker = DraftWorker(
        drafter if callable(drafter) else once(drafter),
        context=target.context,
        vocabulary=target.vocabulary,
        time_limit_s=time_limit_s,
    )
    try:
        yield worker
    finally:
        if hang is not None:
            hang.set()
        assert worker.close(), "the draft's thread is stuck"


class Abreast:
    """Called, it waits until the worker's first draft has done all that it was told."""

    def __init__(self, worker: DraftWorker) -> None:
        self._inbox = current(worker).inbox
        self._receive = self._inbox.receive
        self._done = 0
        self._changed = Condition()
        self._inbox.receive = self._note_and_receive  # type: ignore[method-assign]

    def __call__(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._done == self._inbox._sent, 5.0)

    def _note_and_receive(self, *, timeout_s: float) -> Message | None:
        """The thread asks for the next message when it is done with all it has received."""
        with self._changed:
            self._done = self._inbox._received
            self._changed.notify()
        return self._receive(timeout_s=timeout_s)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    for _ in range(5000):
        if holds():
            return
        time.sleep(0.001)
    raise AssertionError("it did not happen within 5 s")


def current(worker: DraftWorker) -> _Draft:
    """The draft that the worker uses now."""
    draft = worker._drafts.current
    assert draft is not None
    return draft


@dataclass(frozen=True, slots=True)
class Written:
    """The answer of one run."""

    blocks: list[tuple[int, ...]]
    metrics: Metrics

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for block in self.blocks for token in block)


def new_metrics(strategy: str = "any", *, clock: Clock = time.perf_counter) -> Metrics:
    """Metrics of a generation that did nothing yet."""
    return Metrics(strategy, 0, {}, clock=clock)


def write(
    target: Target,
    strategy: Strategy,
    prompt: Sequence[int] = (0,),
    sampling: Sampling | None = None,
    *,
    max_new_tokens: int = 16,
    end_tokens: Iterable[int] = (),
    near_tie_bound: float = 0.0,
    tree_bound: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> Written:
    """Continue `prompt`; the counters of every run must add up."""
    metrics = new_metrics(strategy.name)
    metrics.near_tie_bound = near_tie_bound
    metrics.tree_bound = tree_bound
    blocks = list(
        decode(
            target,
            strategy,
            np.array(prompt, np.int64),
            sampling or Sampling(),
            max_new_tokens=max_new_tokens,
            end_tokens=frozenset(end_tokens),
            metrics=metrics,
            cancelled=cancelled,
        )
    )
    written = Written(blocks, metrics)
    assert all(blocks), "an empty block"
    assert metrics.emitted_tokens == len(written.tokens)
    add_up(metrics)
    return written


def add_up(metrics: Metrics) -> None:
    """Check what holds between the counters of any generation that has begun."""
    found = metrics.to_dict()
    prompts_own = 1 if found["target_passes"] else 0
    assert found["emitted_tokens"] + found["tokens_discarded"] == (
        metrics.settled_tokens + prompts_own
    )
    assert metrics.settled_tokens == found["draft_tokens_accepted"] + found["rounds"]
    assert found["draft_tokens_accepted"] <= found["draft_tokens_evaluated"]
    assert found["draft_tokens_evaluated"] <= found["draft_tokens_proposed"]
    assert found["target_passes"] == found["rounds"] + prompts_own
    final_tokens = found["correction_tokens"] + found["bonus_tokens"] + found["guard_stops"]
    assert final_tokens <= found["rounds"]
    # Every place evaluated was accepted or corrected.
    assert found["draft_tokens_evaluated"] == (
        found["draft_tokens_accepted"] + found["correction_tokens"]
    )
