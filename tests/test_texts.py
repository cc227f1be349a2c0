"""Tests of all strategies and their settings together: one text, and proposals without a clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from runtime.channel import TokenChannel
from runtime.drafter import Drafter
from runtime.hypotheses import Source
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive, Mirror, Speculative, Strategy
from runtime.worker import DraftWorker
from scripts.equality.pairs import pairwise
from tests.table import (
    Abreast,
    Plan,
    TableDrafter,
    TableTarget,
    Written,
    mixed,
    right,
    second,
    working,
    write,
    wrong,
)
from tests.table_session import TableSession, model_drafter

PROMPT = (0, 3, 1)
NEW = 40  # tokens
HEAD = np.array([0, 1, 3])
PLANS: dict[str, Plan] = {"right": right, "second": second, "wrong": wrong, "mixed": mixed}
SOURCES: list[tuple[Source, ...]] = [
    ("bonus",), ("runner-ups",), ("masks",), ("bonus", "runner-ups"),
    ("bonus", "runner-ups", "masks"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One way to write."""

    draft: str  # a plan, or a model's table with a whole head or a short one
    per_pass: int
    temperature: float
    num_draft_tokens: int
    num_hypotheses: int
    sources: tuple[Source, ...]
    redraft: bool

    def drafter(self, target: TableTarget) -> Drafter:
        if self.draft in PLANS:
            return TableDrafter(target, PLANS[self.draft], per_pass=self.per_pass)
        head = HEAD if self.draft == "model, short head" else None
        return model_drafter(
            TableSession(target, 300, head=head),
            tokens_per_pass=self.per_pass,
            head_tokens=head,
            runner_ups=2,
        )

    def strategies(self, worker: DraftWorker) -> Iterator[Strategy]:
        yield Speculative(worker, num_draft_tokens=self.num_draft_tokens)
        yield Mirror(
            worker,
            num_draft_tokens=self.num_draft_tokens,
            num_hypotheses=self.num_hypotheses,
            sources=self.sources,
            redraft=self.redraft,
        )

    def write(self, target: TableTarget, strategy: Strategy) -> Written:
        sampling = Sampling(temperature=self.temperature, repetition_penalty=1.1, seed=3)
        return write(target, strategy, PROMPT, sampling, max_new_tokens=NEW)


CASES = [
    Case(*factors)
    for factors in pairwise(
        [*PLANS, "model", "model, short head"],
        [1, 3, 5],
        [0.0, 0.8],
        [1, 3, 7],
        [1, 4, 16],
        SOURCES,
        [True, False],
    )
]


def target_of(context: int = 300) -> TableTarget:
    return TableTarget(vocabulary=4, context=context)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_text_is_the_targets_own(case: Case) -> None:
    expected = case.write(target_of(), Autoregressive()).tokens
    assert len(expected) == NEW
    target = target_of()
    with working(case.drafter(target), target) as worker:
        for strategy in case.strategies(worker):
            assert case.write(target, strategy).tokens == expected
        assert worker.error is None


@pytest.mark.parametrize("context", [8, 11, 30])
def test_the_text_is_the_targets_own_up_to_the_end_of_every_context(context: int) -> None:
    """Of the target's, and of a draft whose own context is shorter."""
    for case in CASES[::5]:
        expected = case.write(target_of(context), Autoregressive())
        assert expected.metrics.finish_reason == "context_full"
        target = target_of(context)
        session = TableSession(target, context - 3)
        drafters = [case.drafter(target), model_drafter(session, tokens_per_pass=case.per_pass)]
        for drafter in drafters:
            with working(drafter, target) as worker:
                for strategy in case.strategies(worker):
                    assert case.write(target, strategy).tokens == expected.tokens
                assert worker.error is None
        assert max(len(fed.text) for fed in session.fed) <= context - 3


def what_came(case: Case, *, hurried: bool) -> tuple[Any, ...]:
    """What the target verified and what hit, where look-aheads have one pass or all they need."""
    target = target_of()
    with pytest.MonkeyPatch.context() as patch, working(case.drafter(target), target) as worker:
        if hurried:
            patch.setattr(TokenChannel, "pending", True)
        else:
            target.meanwhile = Abreast(worker)
        *_, strategy = case.strategies(worker)
        metrics = case.write(target, strategy).metrics
        assert worker.error is None
        hits = [each.hit for each in metrics.round_log]
        return target.proposals, hits, metrics.hits, metrics.misses


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_hit_and_no_proposal_depends_on_time(case: Case) -> None:
    assert what_came(case, hurried=True) == what_came(case, hurried=False)


@pytest.mark.parametrize("redraft", [True, False])
@pytest.mark.parametrize("per_pass", [1, 3, 5])
def test_drafts_have_a_part_in_it(per_pass: int, redraft: bool) -> None:  # noqa: FBT001
    """All that a right draft says stands, and its word after a proposal is always foreseen."""
    for draft, is_right in (("right", True), ("wrong", False)):
        case = Case(draft, per_pass, 0.8, 3, 4, ("bonus",), redraft)
        target = target_of()
        with working(case.drafter(target), target) as worker:
            for strategy in case.strategies(worker):
                found = case.write(target, strategy).metrics.to_dict()
                assert (found["acceptance_rate"] == 1) is is_right
                if strategy.name == "mirror":
                    assert (found["hit_rate"] == 1) is is_right
