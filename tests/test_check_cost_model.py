"""Tests of scripts/check_cost_model.py: the cost model is right, and would be caught if not."""

from dataclasses import replace

import pytest

from scripts import check_cost_model
from scripts.check_cost_model import CASES, LEAST_HIDDEN, MOST_OFF, is_hidden, line, with_contention
from scripts.emulated import modelled
from scripts.emulated.modelled import Case, compared, costs_of


@pytest.mark.parametrize(
    "case",
    [
        Case(0.5, 5, 4, draft="lookup"),
        Case(0.2, 1, 3, siblings=2),
        Case(0.2, 5, 4, 8),
        Case(0.9, 5, 4, 8, target_slowdown=1.3, draft_slowdown=2.0),
        Case(4.0, 5, 4, 8, target_slowdown=2.0, draft_slowdown=1.3),
        Case(0.5, 5, 2, 4, siblings=2, target_slowdown=2.0, draft_slowdown=2.0),
        Case(2.0, 5, 4, 8, redraft=False, draft_slowdown=1.3),
        Case(1.1, 5, 7, 4, target_slowdown=1.3, draft_slowdown=1.3),
        Case(2.0, 1, 1, 1),
        Case(0.5, 1, 3, 4, redraft=False, target_slowdown=1.3, draft_slowdown=1.3),
    ],
)
def test_the_cost_model_says_what_rounds_take(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelled, "TOKENS", 80)
    found = compared(case)
    assert abs(found.difference) < MOST_OFF
    if is_hidden(found):
        assert found.hidden is not None
        assert found.hidden >= LEAST_HIDDEN


def test_a_wrong_slowdown_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelled, "TOKENS", 80)
    monkeypatch.setattr(
        modelled,
        "costs_of",
        lambda profile, k: replace(costs_of(profile, k), target_slowdown=1.0, draft_slowdown=1.0),
    )
    case = Case(0.9, 5, 4, 8, target_slowdown=1.3, draft_slowdown=1.3)
    assert compared(case).difference < -MOST_OFF


def test_what_is_to_be_hidden() -> None:
    assert Case(0.5, 5, 4, 8).draft_is_shorter
    assert not Case(0.9, 5, 4, 8, draft_slowdown=1.3).draft_is_shorter
    assert Case(0.9, 5, 4, 8, target_slowdown=1.3, draft_slowdown=1.3).draft_is_shorter


def test_cases_go_from_target_bound_to_draft_bound() -> None:
    mirrors = [case for case in CASES if case.hypotheses]
    assert {case.ratio for case in mirrors} >= set(check_cost_model.RATIOS)
    assert {case.draft_is_shorter for case in mirrors} == {True, False}
    assert len({*CASES}) == len(CASES)


def test_a_line_names_the_case_and_where_contention_is_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modelled, "TOKENS", 30)
    alone, *beside = map(compared, with_contention(Case(0.5, 5, 2, 4)))
    columns = line(alone, beside).split(" | ")
    assert columns[:2] == ["| 0.5", "mirror, k 5, γ 2, B 4"]
    assert len(columns) == 11
    assert with_contention(CASES[0]) == [CASES[0]]
