"""Tests of scripts/emulated_table.py and what it is made of: settings, choices, tables."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime.profiles import load_profile
from scripts.draft.texts import KINDS
from scripts.emulated.records import Record
from scripts.emulated.settings import PLAIN, Setting, fixed_ways, planned, replays
from scripts.emulated.shown import (
    AGREEMENTS,
    BASE,
    FACTORS,
    FIXED,
    TEMPERATURES,
    WAYS,
    named,
    tables,
)
from scripts.emulated_table import Job, Tried, of_profile, spread
from tests.devices import seconds
from tests.test_replay import a_record

FAST = "dual-desktop-gpu"


def of_kind(kind: str, answer: int) -> Record:
    return replace(a_record(answer, agreement=0.7), kind=kind)


def test_settings_say_what_they_are() -> None:
    settings = [PLAIN, Setting(4), Setting(2, 8), Setting(2, 8, redraft=False)]
    assert [each.name for each in settings] == ["autoregressive", "speculative"] + 2 * ["mirror"]
    assert [str(each) for each in settings[1:]] == ["γ 4", "γ 2, B 8", "γ 2, B 8, bare"]


def test_fixed_ways_are_named_as_the_bench_names_them() -> None:
    names = [each.way for each in fixed_ways()]
    assert len(set(names)) == 17
    assert {"autoregressive", "speculative:lookup:8", "mirror:model:1"} <= set(names)


@pytest.mark.parametrize(
    "setting", [PLAIN, Setting(2), Setting(2, 4), Setting(2, 4, redraft=False)]
)
def test_a_setting_is_replayed_by_its_strategy(setting: Setting) -> None:
    (done,) = replays(seconds(), [a_record(20, agreement=0.6)], setting)
    assert done.metrics.strategy == setting.name
    proposals = {each.proposed for each in done.metrics.round_log[:-2]}
    expected = {"autoregressive": {0}, "mirror": {0, 2} if not setting.redraft else {2}}
    assert proposals == expected.get(setting.name, {2})


def test_auto_learns_from_answer_to_answer() -> None:
    records = [a_record(60) for _ in range(3)]
    first, _, last = planned(load_profile(FAST), records)
    assert first.metrics.strategy == "auto"
    assert last.metrics.rounds < first.metrics.rounds  # which begins with the target alone


def test_records_are_spread_over_the_kinds_the_longest_first() -> None:
    records = [of_kind("qa", 5), of_kind("rag", 3), of_kind("qa", 9), of_kind("qa", 7)]
    chosen = [(of.kind, len(of.answer)) for of in spread(records, 3)]
    assert chosen == [("qa", 9), ("rag", 3), ("qa", 7)]
    assert len(spread(records, 9)) == 4


def test_the_fastest_setting_is_chosen() -> None:
    # Calls of n rows take n seconds: a draft that is always wrong only costs, and the more the
    # longer its proposals are.
    wrong = replace(a_record(20), guesses=np.full((20, 3, 9), 999, np.int32))
    tried = Tried(seconds(), [wrong])
    assert tried.best([Setting(4), Setting(1), PLAIN, Setting(2)]) == PLAIN
    assert tried.mirror((1, 2), (1, 4)).length == 1
    speeds = list(tried.speed_ups(1).values())
    assert speeds
    assert max(speeds) < 1


def test_a_whole_profile_becomes_tables() -> None:
    records = {name: [of_kind(kind, 8) for kind in KINDS[:2]] for name in TEMPERATURES}
    figures = of_profile(Job(FAST, records, choosing=1, scripted=1))
    assert figures["seconds"] > 0
    whole = figures[TEMPERATURES[0]]["mirror"]
    assert set(whole) == {named(each) for each in (BASE, *FACTORS)}
    assert set(whole[named(BASE)]) == {"overall", *KINDS[:2]}
    assert whole[named(BASE)]["overall"]["speed_up"] > 1
    lines = list(tables(json.loads(json.dumps({FAST: figures}))))
    assert sum(FAST in line for line in lines) == 6
    heads = [place for place, line in enumerate(lines) if line.startswith("|---")]
    for place in heads:  # every row has a head's cells
        assert lines[place].count("|") == lines[place + 1].count(" | ") + 2


def test_an_agreement_that_is_not_enough_is_said_to_be_so() -> None:
    figures: dict[str, Any] = {
        f"scripted {each:g}": {"mirror": everywhere({"speed_up": 5 * each})} for each in AGREEMENTS
    }
    whole = everywhere(
        dict.fromkeys(("plain", "speed_up", "length", "hit_rate", "could", "share"), 1.0)
    )
    for of in TEMPERATURES:
        ways: dict[str, Any] = dict.fromkeys(WAYS, whole)
        figures[of] = {**ways, "settings": dict.fromkeys(FIXED, "γ 1"), "tried": {}}
    assert list(tables({"a": figures}))[-1].endswith("| 0.56 | not reached |")


def everywhere(figures: dict[str, float]) -> dict[str, Any]:
    return {named(factors): {"overall": figures} for factors in (BASE, *FACTORS)}
