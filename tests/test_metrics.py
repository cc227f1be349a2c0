"""Tests of runtime/metrics.py: counters of hand-made rounds, and shares of hand-made runs."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from runtime.draft_loop import DraftWork
from runtime.metrics import Metrics, percentiles_ms
from runtime.timeline import Round, Run
from runtime.verify import Outcome, Proposal
from tests.table import add_up, new_metrics

CHAIN = Proposal.chain
SCHEMA = [
    "strategy",
    "seed",
    "providers",
    "finish_reason",
    "rounds",
    "prompt_tokens",
    "emitted_tokens",
    "tokens_discarded",
    "draft_tokens_proposed",
    "draft_tokens_evaluated",
    "draft_tokens_accepted",
    "correction_tokens",
    "bonus_tokens",
    "draft_passes",
    "target_passes",
    "hits",
    "misses",
    "acceptance_rate",
    "per_place_acceptance",
    "mean_acceptance_length",
    "hit_rate",
    "draft_busy_s",
    "target_busy_s",
    "hidden_share",
    "overhead_ms",
    "ttft_s",
    "tpot_s",
    "between_tokens_ms",
    "tokens_per_s",
    "wall_s",
    "peak_rss_bytes",
    "energy_j",
    "near_ties",
    "guard_stops",
    "early_exits_dropped",
    "draft_error",
    "plan",
    "emulated",
    "void_runs",
]


class Clock:
    """It tells what it was set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def after_rounds(rounds: Iterable[tuple[int, int]], *, last_kept: int | None = None) -> Metrics:
    """The prompt's own token, then rounds that proposed and accepted so many.

    Of the last block `last_kept` tokens are kept.
    """
    metrics = Metrics("mirror", 7, {"target": "CPU"})
    with metrics.target_run():
        metrics.committed(1, 1)
    blocks = []
    for proposed, accepted in rounds:
        with metrics.target_run():
            metrics.verified(CHAIN(range(proposed)), Outcome(accepted - 1, 99))
        blocks.append(accepted + 1)
    for number, size in enumerate(blocks, 1):
        cut = last_kept is not None and number == len(blocks)
        metrics.committed(size, last_kept if cut and last_kept is not None else size)
    return metrics


def test_the_schema_is_whole_and_json_before_and_after() -> None:
    for metrics in (new_metrics(), after_rounds([(4, 2)])):
        found = metrics.to_dict()
        assert sorted(found) == sorted(SCHEMA)
        assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_nothing_happened() -> None:
    found = new_metrics().to_dict()
    for name in ("acceptance_rate", "mean_acceptance_length", "hit_rate", "hidden_share"):
        assert found[name] is None
    for name in ("ttft_s", "tpot_s", "tokens_per_s", "draft_error", "finish_reason", "energy_j"):
        assert found[name] is None
    assert found["between_tokens_ms"] is None
    for name in ("rounds", "emitted_tokens", "target_passes", "draft_passes", "wall_s"):
        assert found[name] == 0
    assert found["per_place_acceptance"] == []
    assert found["hits"] == found["misses"] == {}


def test_plain_decoding_has_an_acceptance_length_of_exactly_one() -> None:
    for rounds in range(1, 30):
        metrics = after_rounds([(0, 0)] * rounds)
        found = metrics.to_dict()
        add_up(metrics)
        assert found["mean_acceptance_length"] == 1.0
        assert found["emitted_tokens"] == rounds + 1
        assert found["acceptance_rate"] is None
        assert found["correction_tokens"] == found["bonus_tokens"] == 0
        cut = after_rounds([(0, 0)] * rounds, last_kept=0)
        assert cut.to_dict()["mean_acceptance_length"] == 1.0


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([(2, 0)], (2, 1, 0, 1, 0, [0.0], 1.0)),
        ([(2, 1)], (2, 2, 1, 1, 0, [1.0, 0.0], 2.0)),
        ([(2, 2)], (2, 2, 2, 0, 1, [1.0, 1.0], 3.0)),
        ([(0, 0), (2, 2)], (2, 2, 2, 0, 1, [1.0, 1.0], 2.0)),
        ([(3, 3), (3, 1), (3, 0), (1, 1)], (10, 7, 5, 2, 2, [0.75, 0.5, 1.0], 9 / 4)),
    ],
)
def test_rounds(rounds: list[tuple[int, int]], expected: tuple[Any, ...]) -> None:
    metrics = after_rounds(rounds)
    add_up(metrics)
    found = metrics.to_dict()
    assert expected == (
        found["draft_tokens_proposed"],
        found["draft_tokens_evaluated"],
        found["draft_tokens_accepted"],
        found["correction_tokens"],
        found["bonus_tokens"],
        found["per_place_acceptance"],
        found["mean_acceptance_length"],
    )
    assert found["acceptance_rate"] == expected[2] / expected[0]
    assert found["rounds"] == len(rounds)
    assert found["target_passes"] == len(rounds) + 1


def test_the_counters_add_up_over_every_pair_of_rounds() -> None:
    single = [(proposed, accepted) for proposed in range(5) for accepted in range(proposed + 1)]
    for pair in itertools.product(single, repeat=2):
        for kept in range(pair[-1][1] + 2):
            metrics = after_rounds(pair, last_kept=kept)
            add_up(metrics)
            assert metrics.settled_tokens == sum(accepted + 1 for _, accepted in pair)
            assert metrics.tokens_discarded == pair[-1][1] + 1 - kept


def test_in_a_tree_the_depth_counts() -> None:
    # Places: 5 and 6 first, 7 after 6, 8 after 5.
    tree = Proposal((5, 6, 7, 8), (-1, -1, 1, 0))
    for node, accepted, evaluated, bonus in [(-1, 0, 1, 0), (0, 1, 2, 0), (2, 2, 2, 1)]:
        metrics = new_metrics()
        metrics.verified(tree, Outcome(node, 9))
        found = metrics.to_dict()
        assert found["draft_tokens_proposed"] == 4
        assert found["draft_tokens_accepted"] == accepted
        assert found["draft_tokens_evaluated"] == evaluated
        assert (found["bonus_tokens"], found["correction_tokens"]) == (bonus, 1 - bonus)


def test_a_guard_stop_is_neither_a_correction_nor_a_bonus_and_its_place_is_not_evaluated() -> None:
    tree = Proposal((5, 6, 7, 8), (-1, -1, 1, 2))
    metrics = new_metrics()
    metrics.verified(tree, Outcome(1, 7), guarded=True)
    metrics.verified(tree, Outcome(2, 9))
    found = metrics.to_dict()
    assert found["guard_stops"] == 1
    assert (found["draft_tokens_accepted"], found["draft_tokens_evaluated"]) == (3, 4)
    assert found["per_place_acceptance"] == [1.0, 1.0, 0.0]
    assert (found["bonus_tokens"], found["correction_tokens"]) == (0, 1)
    assert metrics.settled_tokens == 5


def test_what_a_stop_string_takes_back_is_discarded() -> None:
    metrics = after_rounds([(4, 3), (4, 4)])
    metrics.withdraw(3)
    add_up(metrics)
    assert (metrics.emitted_tokens, metrics.tokens_discarded) == (7, 3)
    assert metrics.to_dict()["mean_acceptance_length"] == 4.5


def test_hits_and_misses_are_kept_by_source() -> None:
    metrics = new_metrics()
    for sources, hit in [
        ({"bonus", "runner-ups"}, "bonus"),
        ({"bonus", "runner-ups"}, "runner-ups"),
        ({"bonus"}, None),
        ({"masks", "bonus", "runner-ups"}, "masks"),
        ({"runner-ups"}, None),
    ]:
        metrics.foreseen(sources, hit)
    found = metrics.to_dict()
    assert found["hits"] == {"bonus": 1, "runner-ups": 1, "masks": 1}
    assert found["misses"] == {"bonus": 3, "runner-ups": 3}
    # Of rounds, not of sources.
    assert (metrics.rounds_followed, metrics.rounds_foreseen) == (5, 3)
    assert found["hit_rate"] == 3 / 5


@pytest.mark.parametrize(
    ("draft", "target", "busy", "share"),
    [
        ([], [(0, 4)], 0, None),
        ([(1, 3)], [], 2, 0.0),
        ([(1, 3)], [(0, 4)], 2, 1.0),
        ([(0, 4)], [(1, 3)], 4, 0.5),
        ([(0, 2)], [(2, 4)], 2, 0.0),
        ([(2, 4)], [(0, 2)], 2, 0.0),
        ([(0, 8)], [(1, 2), (3, 4), (7, 9)], 8, 3 / 8),
        ([(0, 1), (2, 3), (4, 6)], [(0, 5)], 4, 3 / 4),
        ([(0, 2), (3, 5), (9, 10)], [(1, 4), (4, 6), (7, 8)], 5, 3 / 5),
    ],
)
def test_hidden_share(
    draft: list[tuple[float, float]],
    target: list[tuple[float, float]],
    busy: float,
    share: float | None,
) -> None:
    metrics = new_metrics()
    metrics.draft = DraftWork([Run(*times) for times in draft])
    metrics.target_runs = [Run(*times) for times in target]
    found = metrics.to_dict()
    assert found["draft_busy_s"] == busy
    assert found["target_busy_s"] == sum(end - start for start, end in target)
    assert found["hidden_share"] == share
    assert found["draft_passes"] == len(draft)


def test_times_of_a_generation(clock: Clock) -> None:
    metrics = new_metrics(clock=clock)
    for now, count in [(101.0, 1), (102.0, 3), (105.0, 1)]:
        clock.now = now
        metrics.committed(count, count)
    found = metrics.to_dict()
    assert (found["ttft_s"], found["wall_s"], found["tpot_s"]) == (1.0, 5.0, 1.0)
    assert found["tokens_per_s"] == 1.0
    clock.now = 999.0  # when it is asked does not matter
    assert metrics.to_dict()["wall_s"] == 5.0


def test_times_between_tokens_are_nothing_within_a_block(clock: Clock) -> None:
    metrics = new_metrics(clock=clock)
    for now, settled, kept in [(101.0, 1, 1), (102.0, 3, 3), (105.0, 3, 2), (106.0, 1, 0)]:
        clock.now = now
        metrics.committed(settled, kept)
    assert metrics.between_tokens_s == [1.0, 0.0, 0.0, 3.0, 0.0]
    assert metrics.to_dict()["between_tokens_ms"] == {
        "p50": 0.0,
        "p95": pytest.approx(2600),
        "p99": pytest.approx(2920),
    }
    metrics.withdraw(2)
    assert metrics.between_tokens_s == [1.0, 0.0, 0.0]
    metrics.withdraw(0)
    assert metrics.emitted_tokens == 4


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert percentiles_ms([]) is None
    assert percentiles_ms([0.004]) == {"p50": 4.0, "p95": 4.0, "p99": 4.0}
    found = percentiles_ms([second / 1000 for second in range(101)])
    assert found == pytest.approx({"p50": 50.0, "p95": 95.0, "p99": 99.0})


def test_overhead_is_neither_a_target_pass_nor_a_wait_and_is_a_median(clock: Clock) -> None:
    metrics = new_metrics(clock=clock)
    with metrics.delivering():
        clock.now += 50  # the prompt's own token is no round's overhead
    for own, waited, ran, delivered in [(1, 20, 300, 0), (2, 0, 400, 1), (90, 7, 5, 9)]:
        with metrics.round():
            with metrics.waiting():
                clock.now += waited
            with metrics.target_run():
                clock.now += ran
            clock.now += own
        clock.now += 1000  # between rounds, the caller's own time
        with metrics.delivering():
            clock.now += delivered
    assert metrics.overheads_s == [1, 3, 99]
    assert metrics.to_dict()["overhead_ms"] == 3000
    assert metrics.to_dict()["target_busy_s"] == 705


def test_rounds_leave_a_timeline(clock: Clock) -> None:
    metrics = new_metrics(clock=clock)
    metrics.draft = DraftWork([Run(100.5, 101.5, "read")])
    with metrics.target_run("read"):
        clock.now += 1
    ends: list[tuple[int, int, str | None]] = [(2, 0, None), (2, 1, None), (3, 3, "bonus")]
    for proposed, accepted, before in ends:
        with metrics.round():
            if metrics.round_log:  # of the round before, told in the next
                metrics.foreseen({"bonus", "masks"}, before)
            with metrics.waiting():
                clock.now += 1
            with metrics.target_run("verify", proposed + 1):
                clock.now += 2
            metrics.verified(CHAIN(range(proposed)), Outcome(accepted - 1, 90 + accepted))
        with metrics.delivering():
            clock.now += 1
    found = metrics.timeline()
    assert found.rounds == (
        Round(101, 104, 2, 0, 90, hit=False),
        Round(105, 108, 2, 1, 91, hit=True),
        Round(109, 112, 3, 3, 93, hit=None),
    )
    assert [run.rows for run in found.target] == [0, 3, 3, 4]
    assert [run[:3] for run in found.target[:2]] == [(100, 101, "read"), (102, 104, "verify")]
    assert [run[:2] for run in found.waits] == [(101, 102), (105, 106), (109, 110)]
    assert [run[:2] for run in found.deliveries] == [(104, 105), (108, 109), (112, 113)]
    assert found.draft == (Run(100.5, 101.5, "read"),)
    assert (found.start, found.end) == (100, 113)


def test_a_round_that_fails_leaves_no_outcome() -> None:
    metrics = new_metrics()
    with pytest.raises(KeyboardInterrupt), metrics.round():
        raise KeyboardInterrupt
    assert metrics.timeline().rounds == ()


def test_memory_is_told_in_bytes() -> None:
    peak = new_metrics().to_dict()["peak_rss_bytes"]
    assert peak is None or 2**20 < peak < 2**44
