"""Tests of scripts/equality/drafts.py: they are as wrong as they say, and the text is the same."""

import numpy as np
import pytest

from runtime.drafter import Start
from runtime.planner import NOTHING
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive, Speculative
from scripts.equality.drafts import Adversary, Dice
from tests.table import speaking, working, write

TEXT = np.array([5, 1, 2, 3, 1, 2, 3])


def adversary(kind: str, vocabulary: int = 40) -> Adversary:
    found = Adversary(kind, vocabulary)
    found.text = TEXT
    return found


def test_what_each_guesses() -> None:
    starts = [Start(1), Start(2, (7, 7))]
    tokens = {}
    for kind in ("wrong", "runner-up", "random"):
        rollouts = adversary(kind).draft(TEXT[:3], starts, 3, Sampling())
        tokens[kind] = [
            [(each.token, *each.runner_ups) for each in rollout()] for rollout in rollouts
        ]
        assert [[len({*guess}) for guess in rollout] for rollout in tokens[kind]]
    for rollout, truth in zip(tokens["wrong"], ((1, 2, 3), (1, 2, 3)), strict=True):
        assert not any(right in guess for right, guess in zip(truth, rollout, strict=True))
    for rollout, truth in zip(tokens["runner-up"], ((1, 2, 3), (1, 2, 3)), strict=True):
        assert [guess[1] for guess in rollout] == [*truth]
        assert all(guess[0] != right for right, guess in zip(truth, rollout, strict=True))
    assert tokens["random"] == [
        [(each.token, *each.runner_ups) for each in rollout()]
        for rollout in adversary("random").draft(TEXT[:3], starts, 3, Sampling())
    ]


@pytest.mark.parametrize(("kind", "siblings", "accepted"), [("wrong", 2, 0), ("runner-up", 1, 3)])
def test_what_comes_of_it(kind: str, siblings: int, accepted: int) -> None:
    target = speaking([1, 2, 3], vocabulary=4)
    plain = write(target, Autoregressive(), max_new_tokens=7)
    draft = Adversary(kind, 4)
    draft.text = np.array([0, *plain.tokens])
    with working(draft, target) as worker:
        strategy = Speculative(worker, num_draft_tokens=1, num_siblings=siblings)
        found = write(target, strategy, max_new_tokens=7)
        assert worker.error is None
    assert found.tokens == plain.tokens
    assert found.metrics.draft_tokens_accepted == accepted


def test_dice_give_every_kind_of_round_within_what_they_may() -> None:
    dice = Dice(1, draft_tokens=5, hypotheses=4, siblings=2)
    choices = [dice.choose(room, 0, rollout=rollout) for room in (3, 9) for rollout in (0, 2) * 99]
    assert {choice.kind for choice in choices} == {
        "autoregressive", "lookup", "speculative", "mirror"
    }  # fmt: skip
    assert {choice.num_draft_tokens for choice in choices} == {0, 2, 3, 5}
    assert {choice.num_hypotheses for choice in choices} == {0, 4}
    assert {choice.siblings for choice in choices} == {0, 2}
    assert dice.choose(0, 4) == NOTHING
