"""Tests of runtime/bench_plot.py: which answers are drawn, and under which title."""

from dataclasses import dataclass, replace
from typing import Any

from runtime.bench_plot import panels
from runtime.bench_runs import Way
from runtime.timeline import Timeline
from runtime.trace import Trace
from tests.fake_bench import ALONE, LOOKUP, MIRROR, FakeSession
from tests.timelines import THREE_ROUNDS

MACHINE = {"processor": "Fast One", "cores": 4}
NO_ROUND = replace(THREE_ROUNDS, rounds=())


@dataclass
class Left:
    """What an answer left."""

    kept: Timeline = THREE_ROUNDS
    emulated: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        return {} if self.emulated is None else {"emulated": self.emulated}

    def timeline(self) -> Timeline:
        return self.kept


def settings(*ways: Way) -> dict[Way, dict[str, Any]]:
    return {way: FakeSession(way.strategy, [], draft=way.draft).settings for way in ways}


def trace(*answers: tuple[Way, str, Left]) -> Trace:
    found = Trace("a test")
    for way, title, left in answers:
        found.add(str(way), title, left)
    return found


def test_every_way_with_a_draft_has_a_panel_named_by_model_and_machine() -> None:
    found = panels(
        trace((ALONE, "one", Left()), (MIRROR, "one", Left()), (LOOKUP, "one", Left())),
        settings(ALONE, LOOKUP, MIRROR),
        MACHINE,
    )
    assert [panel.title for panel in found] == [
        "speculative:lookup · a model, int8 · Fast One, 4 cores",
        "mirror:model · a model, int8, draft a draft · Fast One, 4 cores",
    ]
    assert {panel.note for panel in found} == {"one: rounds 1 to 3 of 3"}


def test_what_is_emulated_says_so() -> None:
    for emulated in (None, False, True):
        (panel,) = panels(
            trace((MIRROR, "one", Left(emulated=emulated))), settings(MIRROR), MACHINE
        )
        assert ("emulated" in panel.title) == bool(emulated)


def test_an_answer_without_a_round_is_not_drawn() -> None:
    answers = trace(
        (LOOKUP, "none", Left(NO_ROUND)), (MIRROR, "none", Left(NO_ROUND)), (MIRROR, "one", Left())
    )
    (panel,) = panels(answers, settings(LOOKUP, MIRROR), MACHINE)
    assert (panel.note, panel.first, panel.last) == ("one: rounds 1 to 3 of 3", 0, 2)
