"""Tests of runtime/early_exit.py and of rounds in which the target is left early."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import Sampling, memory, open_session
from runtime.auto import Auto
from runtime.branches import NO_BRANCHES, Branches
from runtime.costs import look_ahead_rows
from runtime.errors import UsageError
from runtime.hypotheses import Source
from runtime.planner import NOTHING, Choice
from runtime.profiles import load_profile
from runtime.strategy import Autoregressive, Mirror
from runtime.worker import DraftWorker
from tests.table import TableDrafter, TableTarget, mixed, right, second, working, write, wrong
from tests.test_auto import Scripted

Floats = NDArray[np.float32]


class Leaky(TableTarget):
    """Says, before its answer, what follows each row: the answer itself and some more tokens."""

    def __init__(self, *, late: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self.listener: Any = None
        self.late = late  # at which rank the answer stands

    def tell(self, listener: Any) -> None:
        self.listener = listener

    def extend(
        self, tokens: NDArray[np.int64], *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> Floats:
        rows = super().extend(tokens, num_logits=num_logits, branches=branches)
        if self.listener is not None:
            named = np.argsort(-rows, axis=1, kind="stable")
            self.listener(np.roll(named, self.late, axis=1))
        return rows


def mirror(worker: DraftWorker, target: Leaky, *sources: Source, **settings: Any) -> Mirror:
    settings = {"num_draft_tokens": 2, "num_hypotheses": 4} | settings
    return Mirror(worker, sources=sources, early_exit=target, **settings)  # type: ignore[arg-type]


def test_what_the_exit_names_is_followed_and_hits() -> None:
    """The draft is wrong, and neither its second choice is right: only the exit knows."""
    target = Leaky(vocabulary=16, seed=2)
    with working(TableDrafter(target, wrong, per_pass=3), target) as worker:
        strategy = mirror(worker, target, "bonus", "runner-ups", "exit")
        written = write(target, strategy, max_new_tokens=24)
        assert worker.error is None
        names = [run.name for run in worker.work.runs if run.name != "read"]
    metrics = written.metrics
    assert metrics.hits == {"exit": metrics.rounds_followed}
    assert metrics.misses["runner-ups"] == metrics.rounds_followed
    assert metrics.to_dict()["hit_rate"] == 1.0
    # Each round has a pass for the draft's own hypotheses and one for the exit's
    # (the last round's may still be under way).
    assert 2 * metrics.rounds_followed <= names.count("look ahead") <= 2 * metrics.rounds


def test_the_exit_may_be_the_only_source() -> None:
    target = Leaky(vocabulary=16, seed=2)
    with working(TableDrafter(target, wrong, per_pass=3), target) as worker:
        written = write(target, mirror(worker, target, "exit"), max_new_tokens=24)
        names = [run.name for run in worker.work.runs if run.name != "read"]
    assert written.metrics.hits == {"exit": written.metrics.rounds_followed}
    rounds = written.metrics.rounds
    assert written.metrics.rounds_followed <= names.count("look ahead") <= rounds


def test_the_drafts_own_hypotheses_are_not_followed_twice() -> None:
    target = Leaky(vocabulary=16, seed=2)
    with working(TableDrafter(target, second, per_pass=3), target) as worker:
        written = write(target, mirror(worker, target, "runner-ups", "exit"), max_new_tokens=24)
    assert set(written.metrics.hits) == {"runner-ups"}


def test_an_exit_that_finds_the_channel_full_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Leaky(vocabulary=16, seed=2)
    with working(TableDrafter(target, wrong, per_pass=3), target) as worker:
        monkeypatch.setattr(worker, "follow", lambda *_told: False)
        written = write(target, mirror(worker, target, "bonus", "exit"), max_new_tokens=12)
    assert written.metrics.early_exits_dropped == written.metrics.rounds
    assert not written.metrics.hits


def test_where_nothing_is_to_be_followed_the_exit_is_not_read() -> None:
    target = Leaky(vocabulary=16, seed=2)
    read: list[bool] = []
    target.meanwhile = lambda: read.append(target.listener is not None)
    with working(TableDrafter(target, wrong, per_pass=3), target) as worker:
        followed = mirror(worker, target, "exit")
        write(target, followed, max_new_tokens=12)
        assert read == [False] + [True] * (len(read) - 1)
        read.clear()
        planner = Scripted(NOTHING, Choice("model", 2, 4, of_exit=4))
        settings: dict[str, Any] = {"sources": ("exit",), "early_exit": target}
        write(target, Auto(worker, planner, tokens_per_pass=3, **settings), max_new_tokens=12)
    # The prompt's own, and then by turns; the last one is of a proposal for which there is no room.
    assert read[:5] == [False, False, True, False, True]


def test_the_planner_is_told_whether_the_exit_was_right_and_what_it_took() -> None:
    target = Leaky(vocabulary=16, seed=2)
    with working(TableDrafter(target, wrong, per_pass=3), target) as worker:
        planner = Scripted(Choice("model", 2, 4, of_exit=2), Choice("model", 2, 4))
        settings: dict[str, Any] = {"sources": ("runner-ups", "exit"), "early_exit": target}
        write(target, Auto(worker, planner, tokens_per_pass=3, **settings), max_new_tokens=24)
    followed = [each for each in planner.told if each.choice.num_hypotheses]
    assert len(followed) > 4
    for each in followed:
        used = each.choice.of_exit > 0
        assert (each.hit, each.by_exit) == (used, used)
        assert bool(each.late) == used
        assert len(each.ahead) == 1
        assert not used or each.ahead[0] < look_ahead_rows(2, 4, 3)[0]


def test_exits_change_no_text() -> None:
    target = Leaky(vocabulary=8, seed=4)
    plain = TableTarget(vocabulary=8, seed=4)
    every = itertools.product((right, second, wrong, mixed), (0.0, 0.8), (1, 3), (1, 4, 16), (0, 2))
    for number, (plan, temperature, per_pass, hypotheses, siblings) in enumerate(every):
        target.late = number % 3
        sampling = Sampling(temperature=temperature, seed=number)
        expected = write(plain, Autoregressive(), (1, 2), sampling, max_new_tokens=16)
        with working(TableDrafter(plain, plan, per_pass=per_pass), target) as worker:
            strategy = mirror(
                worker,
                target,
                "bonus",
                "runner-ups",
                "exit",
                num_draft_tokens=1 + number % 4,
                num_hypotheses=hypotheses,
                num_siblings=siblings,
                redraft=bool(number % 2),
            )
            assert write(target, strategy, (1, 2), sampling, max_new_tokens=16).tokens == (
                expected.tokens
            )
            assert not worker.errors
        target.tell(None)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_a_session_that_leaves_its_target_early(
    with_exit: Path, tmp_path: Path, precision: str
) -> None:
    texts, hits = set(), 0
    sources: list[tuple[Source, ...]] = [("bonus", "runner-ups"), ("runner-ups", "exit"), ("exit",)]
    for chosen in sources:
        settings: dict[str, Any] = {"precision": precision, "hypothesis_sources": chosen}
        with open_session(with_exit, cache_dir=tmp_path, threads=1, **settings) as session:
            for strategy in ("mirror", "auto", "autoregressive"):
                session.strategy = strategy
                answer = session.generate("the other text", Sampling(), max_new_tokens=24)
                texts.add("".join(answer))
                assert answer.metrics.to_dict()["draft_error"] is None
                hits += answer.metrics.hits["exit"] + answer.metrics.misses["exit"]
    assert len(texts) == 1
    assert hits > 0


def test_both_parts_and_the_exit_are_paced_on_emulated_devices(
    with_exit: Path, tmp_path: Path
) -> None:
    name = "dual-desktop-gpu"
    settings: dict[str, Any] = {"hypothesis_sources": ("exit",), "strategy": "mirror"}
    emulation: dict[str, Any] = {"emulate": name, "time_scale": 1.0}
    answers = []
    for added in ({}, emulation):
        with open_session(with_exit, cache_dir=tmp_path, threads=1, **settings, **added) as session:
            answers.append(session.generate("the other text", Sampling(), max_new_tokens=8))
            assert "".join(answers[-1])
    plain, emulated = answers
    assert emulated.tokens == plain.tokens
    target = load_profile(name).target
    calls = 3 * target.transfer_ms.value / 1000  # of two parts and the exit
    shortest = min(run.end - run.start for run in emulated.metrics.target_runs[1:])
    assert shortest >= target.seconds(1) - target.transfer_ms.value / 1000 + calls - 1e-6


def test_a_strategy_that_does_not_listen_has_no_exit_read(with_exit: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"draft": "lookup", "hypothesis_sources": ["exit"], "threads": 1}
    with open_session(with_exit, cache_dir=tmp_path, strategy="mirror", **settings) as session:
        exit_, read = session._models.early_exit, list[int]()
        assert exit_ is not None

        @contextmanager
        def note(_part: str, rows: int) -> Iterator[None]:
            read.append(rows)
            yield

        exit_._head.pace = note
        for strategy, is_read in (("mirror", True), ("speculative", False), ("mirror", True)):
            session.strategy = strategy
            read.clear()
            "".join(session.generate("the other text", Sampling(), max_new_tokens=8))
            assert session._models.early_exit is exit_
            assert bool(read) is is_read


def test_the_exit_needs_room_too(
    with_exit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 60_000_000)
    settings: dict[str, Any] = {"draft": "lookup", "cache_dir": tmp_path, "threads": 1}
    open_session(with_exit, **settings).close()
    with pytest.raises(UsageError, match=r"does not fit: about 0\.08 GB"):
        open_session(with_exit, hypothesis_sources=["exit"], **settings)


def test_an_exit_that_is_not_there_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--early-exit-layer"):
        open_session(tiny_bundle, cache_dir=tmp_path, hypothesis_sources=["exit"])
