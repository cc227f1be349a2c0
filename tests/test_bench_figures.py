from typing import Any

import pytest

from runtime.bench_figures import Difference, differences, equal, figures, spread
from runtime.bench_runs import Way
from tests.fake_bench import ALONE, LOOKUP, MIRROR, lap, turn

WAYS = (ALONE, LOOKUP, MIRROR)
BITWISE = dict.fromkeys(WAYS, "bitwise")


def test_spread_is_of_what_there_is() -> None:
    assert spread([]) is None
    assert spread([None, None]) is None
    assert spread([3.0]) == {"median": 3.0, "p10": 3.0, "p90": 3.0}
    assert spread([None, 4.0, 1.0, 2.0]) == pytest.approx({"median": 2.0, "p10": 1.2, "p90": 3.6})
    assert spread(range(11)) == pytest.approx({"median": 5.0, "p10": 1.0, "p90": 9.0})


def test_figures_of_hand_made_answers() -> None:
    laps = [
        lap({ALONE: turn(1, tokens_per_s=10.0), LOOKUP: turn(1, tokens_per_s=15.0)}),
        lap(
            {
                ALONE: [turn(1, 2, tokens_per_s=20.0), turn(tokens_per_s=None)],
                LOOKUP: [
                    turn(
                        *(1, 2),
                        between_s=[0.03],
                        tokens_per_s=50.0,
                        ttft_s=0.5,
                        mean_acceptance_length=2.0,
                        near_ties=2,
                        draft_error="It raised.",
                    ),
                    turn(between_s=[0.01, 0.02], tokens_per_s=None, ttft_s=0.7),
                ],
            }
        ),
    ]
    found = figures(laps, LOOKUP, ALONE)
    assert (found["answers"], found["emitted_tokens"], found["near_ties"]) == (3, 3, 2)
    assert found["tokens_per_s"] == pytest.approx({"median": 32.5, "p10": 18.5, "p90": 46.5})
    assert found["ratio"] == pytest.approx({"median": 2.0, "p10": 1.6, "p90": 2.4})
    assert found["ttft_s"] == pytest.approx({"median": 0.6, "p10": 0.52, "p90": 0.68})
    assert found["mean_acceptance_length"] == {"median": 2.0, "p10": 2.0, "p90": 2.0}
    assert found["hit_rate"] is None
    assert found["between_tokens_ms"] == pytest.approx({"p50": 20.0, "p95": 29.0, "p99": 29.8})
    assert found["finish_reasons"] == {"eos": 3}
    assert found["draft_errors"] == ["It raised."]
    assert figures(laps, ALONE, ALONE)["ratio"] == {"median": 1.0, "p10": 1.0, "p90": 1.0}


def test_equal_texts_differ_in_nothing() -> None:
    same = {way: [turn(1, 2, 3), turn()] for way in WAYS}
    laps = [lap(same), lap(same, repeat=2), lap(same, number=2)]
    assert differences(laps, WAYS, BITWISE) == []
    assert equal(LOOKUP, []) == "yes"


@pytest.mark.parametrize(
    ("answer", "turn_number", "token", "expected", "found"),
    [
        ([turn(1, 2, 9), turn(4)], 1, 2, 3, 9),
        ([turn(9, 2, 3), turn(9)], 1, 0, 1, 9),
        ([turn(1, 2), turn(4)], 1, 2, 3, None),
        ([turn(1, 2, 3, 4), turn(4)], 1, 3, None, 4),
        ([turn(), turn(4)], 1, 0, 1, None),
        ([turn(1, 2, 3), turn(5)], 2, 0, 4, 5),
    ],
)
def test_the_first_token_that_differs_is_named(
    answer: list[Any], turn_number: int, token: int, expected: int | None, found: int | None
) -> None:
    right = [turn(1, 2, 3), turn(4)]
    laps = [
        lap({ALONE: right, LOOKUP: right, MIRROR: right}, number=6),
        lap({ALONE: right, LOOKUP: right, MIRROR: answer}, number=7, category="rag"),
    ]
    (difference,) = differences(laps, WAYS, BITWISE)
    assert difference == Difference(
        "mirror:model", "rag", 7, 1, turn_number, token, expected, found, near_tie=False
    )
    assert [equal(way, [difference]) for way in WAYS] == ["yes", "yes", "no"]


def test_a_later_repeat_is_held_to_the_first_even_the_baselines_own() -> None:
    ways = (ALONE, LOOKUP)
    laps = [
        lap({ALONE: turn(1), LOOKUP: turn(1)}),
        lap({ALONE: turn(2), LOOKUP: turn(1)}, repeat=2),
        lap({ALONE: turn(1), LOOKUP: turn(2)}, repeat=3),
    ]
    found = differences(laps, ways, BITWISE)
    assert [(item.strategy, item.repeat) for item in found] == [
        ("autoregressive", 2),
        ("speculative:lookup", 3),
    ]


@pytest.mark.parametrize(
    ("exactness", "ties", "verdict"),
    [
        ({}, (0, 1), "no"),
        ({LOOKUP: "near-tie"}, (0, 0), "no"),
        ({LOOKUP: "near-tie"}, (0, 1), "near-tie"),
        ({ALONE: "near-tie"}, (1, 0), "near-tie"),
    ],
)
def test_only_a_machine_with_near_ties_may_part_and_only_at_one(
    exactness: dict[Way, str], ties: tuple[int, int], verdict: str
) -> None:
    own, other = (turn(number, near_ties=count) for number, count in enumerate(ties))
    laps = [lap({ALONE: own, LOOKUP: other, MIRROR: own})]
    found = differences(laps, WAYS, {**BITWISE, **exactness})
    assert equal(LOOKUP, found) == verdict


def test_one_failure_outweighs_any_number_of_near_ties() -> None:
    tie, plain = turn(2, near_ties=1), turn(2)
    laps = [
        lap({ALONE: turn(1), LOOKUP: answer}, number=number)
        for number, answer in enumerate([tie, plain, tie])
    ]
    found = differences(laps, (ALONE, LOOKUP), {ALONE: "bitwise", LOOKUP: "near-tie"})
    assert [item.near_tie for item in found] == [True, False, True]
    assert equal(LOOKUP, found) == "no"
