"""What a session was asked for bounds what is planned."""

from pathlib import Path
from typing import Any

import pytest

from runtime import Sampling, open_session, strategies
from runtime.costs import Costs
from runtime.errors import UsageError
from runtime.limits import Limits, exits_of, limits_of
from runtime.planner import Choice, Planner
from runtime.settings import settle
from runtime.ways import ALL, HALF, NO_EXIT
from tests.test_settings import ASKED


def limits(**asked: Any) -> Limits:
    return limits_of(settle(**ASKED | {"num_draft_tokens": None} | asked), has_trees=True)


def test_usual_limits() -> None:
    usual = Limits(8, (1, 2, 4, 8, 16), (0, 2, 4))
    assert limits() == usual == Limits()
    chains = limits_of(settle(**ASKED | {"num_siblings": 4}), has_trees=False)
    assert chains == Limits(4, usual.hypotheses, (0,))


@pytest.mark.parametrize(("asked", "most"), [(1, 1), (8, 8), (9, 9), (16, 16), (32, 16)])
def test_lengths(asked: int, most: int) -> None:
    assert limits(num_draft_tokens=asked).num_draft_tokens == most


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        (0, ()),
        (1, (1,)),
        (2, (1, 2)),
        (7, (1, 2, 4, 7)),
        (16, (1, 2, 4, 8, 16)),
        (17, (1, 2, 4, 8, 16, 17)),
        (64, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_hypotheses(asked: int, numbers: tuple[int, ...]) -> None:
    assert limits(num_hypotheses=asked).hypotheses == numbers


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [(0, (0,)), (1, (0, 1)), (2, (0, 2)), (3, (0, 2, 3)), (5, (0, 2, 4, 5)), (9, (0, 2, 4, 8, 9))],
)
def test_leaves(asked: int, numbers: tuple[int, ...]) -> None:
    assert limits(num_siblings=asked).siblings == numbers


def test_the_exit_names_what_sources_leave_to_it() -> None:
    assert exits_of(("bonus", "masks")) == (NO_EXIT,)
    assert exits_of(("bonus", "exit")) == (NO_EXIT, HALF)
    assert exits_of(("exit",)) == (ALL,)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Limits], list[Choice]]:
    """Within what planners were made to plan, and what they chose."""
    bounds: list[Limits] = []
    choices: list[Choice] = []

    class Noting(Planner):
        def __init__(self, costs: Costs, **settings: Any) -> None:
            super().__init__(costs, **settings)
            names = ("most_draft_tokens", "hypotheses", "siblings")
            bounds.append(Limits(*(settings[name] for name in names)))

        def choose(self, room: int, lookup_match_length: int, *, rollout: int = 0) -> Choice:
            choices.append(super().choose(room, lookup_match_length, rollout=rollout))
            return choices[-1]

    monkeypatch.setattr(strategies, "Planner", Noting)
    return bounds, choices


def test_a_session_plans_within_what_it_was_asked_for(
    tiny_bundle: Path, tmp_path: Path, planned: tuple[list[Limits], list[Choice]]
) -> None:
    settings: dict[str, Any] = {"cache_dir": tmp_path, "threads": 1}
    asked: dict[str, Any] = {"num_draft_tokens": 2, "num_hypotheses": 0, "num_siblings": 0}
    with open_session(tiny_bundle, **settings, **asked) as session:
        assert {name: session.settings[name] for name in asked} == asked
        list(session.generate("the sea", Sampling(), max_new_tokens=40))
    bounds, choices = planned
    assert bounds == [Limits(2, (), (0,))]
    assert max(choice.num_draft_tokens for choice in choices) <= 2
    assert {(choice.num_hypotheses, choice.siblings) for choice in choices} == {(0, 0)}


def test_a_planner_is_kept_for_each_length_that_a_session_is_told(
    tiny_bundle: Path, tmp_path: Path, planned: tuple[list[Limits], list[Choice]]
) -> None:
    bounds, _ = planned
    with open_session(tiny_bundle, cache_dir=tmp_path, threads=1, draft="lookup") as session:
        leaves = bounds[0].siblings  # some only where a target is the same in every width
        free = session.settings
        assert (free["num_draft_tokens"], free["num_hypotheses"]) == (8, 16)
        assert (free["num_siblings"], free["num_copied_tokens"]) == (leaves[-1], 0)
        assert free["after_miss"] is None
        for count in (3, None, 3):
            session.num_draft_tokens = count
            assert session.settings["num_draft_tokens"] == (count or 8)
    assert [each.num_draft_tokens for each in bounds] == [8, 3]


def test_a_session_does_not_change_to_a_strategy_that_would_not_do_as_asked(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"cache_dir": tmp_path, "threads": 1, "draft": "lookup"}
    with open_session(tiny_bundle, strategy="mirror", after_miss="verify", **settings) as session:
        with pytest.raises(UsageError, match="after_miss is for the strategy 'mirror'; 'auto'"):
            session.strategy = "auto"
        assert (session.strategy, session.settings["after_miss"]) == ("mirror", "verify")
        session.strategy = "speculative"
