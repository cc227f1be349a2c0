import json
from pathlib import Path
from typing import Any

import pytest

from runtime.bench_report import Preparation, _processor, answers, machine, make_report, shown
from runtime.bench_runs import Lap, Plan, Way
from runtime.prompts import Prompt
from runtime.sampling import Sampling
from tests.fake_bench import ALONE, LOOKUP, lap, turn

FIGURES = {
    "answers",
    "emitted_tokens",
    "tokens_per_s",
    "ttft_s",
    "tpot_s",
    "mean_acceptance_length",
    "acceptance_rate",
    "hit_rate",
    "hidden_share",
    "overhead_ms",
    "ratio",
    "between_tokens_ms",
    "void_runs",
    "near_ties",
    "finish_reasons",
    "draft_errors",
}


def report(laps: list[Lap], *, planned: int | None = None, **settings: str) -> dict[str, Any]:
    plan = Plan([Prompt(1, "qa", ("?",))], Sampling(seed=3), 8, repeats=planned or len(laps))
    own = {"exactness": "bitwise", **settings}
    preparation = Preparation(
        {"none": 1.25, "lookup": 0.5},
        {ALONE: 0.25, LOOKUP: 0.75},
        {ALONE: own, LOOKUP: own},
        {"cores": 2},
    )
    return make_report(laps, plan, preparation)


def a_lap(*, category: str = "qa", number: int = 1) -> Lap:
    alone = turn(5, 6, tokens_per_s=20.0, ttft_s=0.05, peak_rss_bytes=2**30, between_s=[0.04])
    values: dict[str, Any] = {
        "tokens_per_s": 30.0,
        "ttft_s": 0.06,
        "mean_acceptance_length": 1.5,
        "hit_rate": 0.5,
    }
    return lap({ALONE: alone, LOOKUP: turn(5, 6, **values)}, category=category, number=number)


def test_the_schema_is_whole_and_json() -> None:
    found = report([a_lap(), a_lap(category="rag", number=2)])
    assert set(found) == {
        "format", "version", "complete", "conversations", "conversations_planned", "baseline",
        "settings", "machine", "load_s", "peak_rss_bytes", "emulated", "equal", "differences",
        "strategies", "categories",
    }  # fmt: skip
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert list(found["strategies"]) == ["autoregressive", "speculative:lookup"]
    for of in found["strategies"].values():
        assert set(of) == {*FIGURES, "settings", "warm_up_s", "equal"}
    assert list(found["categories"]) == ["qa", "rag"]
    for by_name in found["categories"].values():
        assert list(by_name) == list(found["strategies"])
        assert all(set(of) == FIGURES and of["answers"] == 1 for of in by_name.values())
    assert found["settings"]["seed"] == 3
    assert (found["complete"], found["equal"], found["baseline"]) == (True, True, "autoregressive")
    assert found["peak_rss_bytes"] == 2**30


def test_the_table_shows_what_the_report_says() -> None:
    lines = shown(report([a_lap()])).splitlines()
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[:3]]
    assert cells == [
        ["strategy", "tokens/s", "ratio", "ttft ms", "between tokens ms", "length", "hits",
         "hidden", "equal"],
        ["autoregressive", "20.0 (20.0–20.0)", "1.00 (1.00–1.00)", "50 (50–50)",
         "40.0 / 40.0 / 40.0", "–", "–", "–", "yes"],
        ["speculative:lookup", "30.0 (30.0–30.0)", "1.50 (1.50–1.50)", "60 (60–60)", "–", "1.50",
         "0.50", "–", "yes"],
    ]  # fmt: skip
    assert len({len(line) for line in lines[:3]}) == 1
    rest = "\n".join(lines[3:])
    assert "answers of each: 1;" in rest
    assert "loaded for none in 1.2 s, loaded for lookup in 0.5 s" in rest
    assert "warmed up in 1.0 s" in rest
    assert "1.00 GiB" in rest
    assert "INCOMPLETE" not in rest
    assert "by category" not in rest


def test_ratios_by_category_where_there_are_several() -> None:
    lines = shown(report([a_lap(), a_lap(category="rag", number=2)])).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("ratio by category"))
    assert [line.split()[0] for line in lines[start + 1 : start + 3]] == ["qa", "rag"]
    assert lines[start + 1].endswith("1.50 (1.50–1.50)")


def test_what_went_wrong_is_said() -> None:
    wrong = lap({ALONE: turn(5, 6), LOOKUP: turn(5, draft_error="It raised.")}, number=4)
    found = report([a_lap(), wrong], planned=5)
    text = shown(found)
    assert (found["complete"], found["equal"]) == (False, False)
    assert text.startswith("INCOMPLETE: 2 of 5 conversations")
    assert "speculative:lookup: the draft stopped working in 1 of 2 answers" in text
    assert "It raised." in text
    assert (
        "speculative:lookup: 1 of 2 conversations differ from autoregressive; first qa 4, repeat "
        "1, turn 1, token 1: the end instead of token id 6." in text
    )
    assert "near-tie" not in text


def test_near_ties_are_no_failure_and_explained() -> None:
    laps = [lap({ALONE: turn(5, near_ties=1), LOOKUP: turn(6)})]
    found = report(laps, exactness="near-tie")
    assert found["strategies"]["speculative:lookup"]["equal"] == "near-tie"
    assert found["equal"] is False
    assert "so this is no failure" in shown(found)


def test_emulated_figures_are_called_so_and_void_ones_too() -> None:
    laps = [a_lap(), a_lap(category="rag", number=2)]
    for word in ("emulated", "VOID"):
        assert word not in shown(report(laps))
    found = report(laps, emulated="toaster")
    text = shown(found)
    assert found["emulated"] == "toaster"
    assert text.startswith("Every time below is emulated: that of toaster.\n\nemulated strategy ")
    assert "\nemulated ratio by category " in text
    assert "VOID" not in text
    late = [lap({ALONE: turn(5), LOOKUP: turn(5, void_runs=count)}) for count in (0, 2, 1)]
    found = report(late, emulated="toaster")
    assert [of["void_runs"] for of in found["strategies"].values()] == [0, 3]
    assert "VOID: speculative:lookup: 3 calls took longer here" in shown(found)
    assert "VOID: autoregressive" not in shown(found)


def test_every_answer_by_itself() -> None:
    found = answers([lap({ALONE: [turn(1), turn(2, 3)], LOOKUP: [turn(4), turn(5)]}, repeat=2)])
    named = [(item["strategy"], item["repeat"], item["turn"], item["tokens"]) for item in found]
    assert named == [
        ("autoregressive", 2, 1, [1]),
        ("autoregressive", 2, 2, [2, 3]),
        ("speculative:lookup", 2, 1, [4]),
        ("speculative:lookup", 2, 2, [5]),
    ]
    assert found[1]["metrics"]["emitted_tokens"] == 2
    assert json.loads(json.dumps(found)) == found


def test_the_machine_is_named(tmp_path: Path) -> None:
    found = machine()
    assert found["cores"] >= 1
    assert all(found[name] for name in ("system", "processor", "python", "mirror-sd", "numpy"))
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n", encoding="utf-8")
    assert _processor(cpuinfo) == "Some CPU @ 3 GHz"
    assert _processor(tmp_path / "none")


@pytest.mark.parametrize("way", [ALONE, LOOKUP])
def test_nothing_but_empty_answers_is_no_error(way: Way) -> None:
    found = report([lap({ALONE: turn(), LOOKUP: turn()})])
    assert found["strategies"][str(way)]["tokens_per_s"] is None
    assert "–" in shown(found)
