"""Tests of scripts/measure_overhead.py: all ways write one text, and a round has its figure."""

from functools import partial

import numpy as np
import pytest

from runtime.calibration import UNMEASURED
from runtime.planner import Planner
from runtime.sampling import Sampling, choose
from runtime.worker import DraftWorker
from scripts import measure_overhead
from scripts.measure_overhead import AGREEMENT, CONTEXT, STRATEGIES, Draft, Table


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_round_has_an_overhead(
    strategy: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_overhead, "TARGET_S", 0.0)
    monkeypatch.setattr(measure_overhead, "DRAFT_S", 0.0)
    sampling = Sampling(temperature=temperature, top_k=5)
    draft = Draft(Table(300))
    draft.learn(sampling)
    worker = DraftWorker(partial(lambda draft: draft, draft), context=CONTEXT, vocabulary=300)
    try:
        made = measure_overhead._made(strategy, worker, Planner(UNMEASURED))
        found = measure_overhead._overheads(draft.target, made, sampling, 40)
        assert worker.error is None
    finally:
        worker.close()
    assert 39 / (1 + measure_overhead.LENGTH) <= len(found) <= 39
    assert min(found) > 0


def test_the_draft_is_right_as_often_as_it_should_be() -> None:
    sampling = Sampling(temperature=0.8)
    draft = Draft(Table(300))
    draft.learn(sampling)
    tokens = [choose(draft.target.row(at), np.arange(at), sampling) for at in range(CONTEXT)]
    right = [draft.known[at].token == token for at, token in enumerate(tokens)]
    assert np.mean(right) == pytest.approx(AGREEMENT, abs=0.07)
