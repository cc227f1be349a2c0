"""Tests of scripts/never_slower.py: what it reads, replays, and says."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts import never_slower
from scripts.emulated.paired import Took
from scripts.emulated.records import save
from scripts.never_slower import AUTO, WAYS, compared_of, enough, of_bench, replayed_by, show
from tests.test_replay import a_record

PLAIN = "autoregressive"


def answer(way: str, question: int, tokens: list[int], tpot_s: float | None) -> dict[str, Any]:
    return {
        "strategy": way,
        "category": "qa",
        "question_id": question,
        "repeat": 1,
        "turn": 1,
        "tokens": tokens,
        "metrics": {"emitted_tokens": len(tokens), "tpot_s": tpot_s},
    }


def report(*answers: dict[str, Any]) -> dict[str, Any]:
    return {"strategies": {PLAIN: {}, AUTO: {}}, "answers": list(answers)}


def test_answers_of_a_bench_are_paired() -> None:
    found = of_bench(
        report(
            answer(PLAIN, 1, [5, 6, 7], 0.5),
            answer(AUTO, 1, [5, 6, 7], 0.25),
            answer(PLAIN, 2, [5, 6], 0.5),  # texts that differ
            answer(AUTO, 2, [5, 7], 0.5),
            answer(PLAIN, 3, [5], None),  # no token after the first
            answer(AUTO, 3, [5], None),
            answer(PLAIN, 4, [5, 6], 0.5),  # which auto did not come to
        )
    )
    assert found == {PLAIN: [Took("qa", 2, 1.0)], AUTO: [Took("qa", 2, 0.5)]}


def test_what_a_bench_did_not_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    both = [answer(PLAIN, 1, [5, 6], 0.5), answer(AUTO, 1, [5, 6], 0.5)]
    answers = [*both, answer("auto:lookup", 1, [5, 6], 0.1)]
    other = {"strategies": {PLAIN: {}, AUTO: {}, "auto:lookup": {}}, "answers": answers}
    assert set(of_bench(other)) == {PLAIN, AUTO}
    assert "speculative:lookup:4" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="auto:model"):
        of_bench({"strategies": {PLAIN: {}}, "answers": []})


def test_nothing_to_compare_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(report(answer(PLAIN, 1, [5, 6], 0.5))))
    command = [sys.executable, never_slower.__file__, "measured", "--json"]
    done = subprocess.run(
        [*command, str(tmp_path / "bench.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "fewer than two answers" in done.stderr


@pytest.mark.parametrize(("speed", "holds"), [(1.0, True), (0.98, True), (0.96, False)])
def test_a_row_says_whether_the_claim_holds(
    speed: float, *, holds: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = [Took("qa", 200, 100.0)] * 4
    ways = {PLAIN: plain, AUTO: [Took("qa", 200, 100.0 / speed)] * 4}
    assert list(show({"here": ways})) == [holds] * 2
    shown = capsys.readouterr().out
    row = f"| here | overall | 4 | {PLAIN} | {speed:.3f} | {speed:.3f}–{speed:.3f} |"
    assert f"{row} {'yes' if holds else 'no'} |" in shown


def test_a_kind_with_one_answer_is_not_compared() -> None:
    ways = {PLAIN: [Took("qa", 200, 1.0)], AUTO: [Took("qa", 200, 1.0)]}
    assert compared_of(ways, "qa") is None


def test_every_way_writes_every_answer() -> None:
    records = [a_record(12), a_record(9)]
    found = {
        way: replayed_by(("dual-desktop-gpu", "recorded", way, records)) for way in (AUTO, *WAYS)
    }
    assert len(found) == 18
    assert all([of.tokens for of in own] == [11, 8] for own in found.values())
    assert found["speculative:model:4"][0].seconds < found[PLAIN][0].seconds
    # Nothing stands twice in the text, so that lookup proposes nothing.
    assert found["speculative:lookup:4"][0].seconds == pytest.approx(found[PLAIN][0].seconds)


def test_the_command_replays_records(tmp_path: Path) -> None:
    for name, kind in [("0", "qa"), ("0.8", "rag")]:
        save(tmp_path / f"answers-{name}.npz", [replace(a_record(8), kind=kind)])
    command = [sys.executable, never_slower.__file__, "emulated", "--records", str(tmp_path)]
    command += ["--profiles", "dual-desktop-gpu", "--json", str(tmp_path / "took.json")]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], capture_output=True, text=True, check=False)

    done, after = run(), run()
    assert "dual-desktop-gpu, recorded draft" in done.stdout, done.stderr
    assert len(json.loads((tmp_path / "took.json").read_text())) == 2
    assert (after.stdout, after.stderr) == (done.stdout, "")  # nothing was left to do
    again = run("--again")
    assert again.stdout == done.stdout
    assert again.stderr.count("done") == again.stderr.count(f"{AUTO}: done") == 2


def test_of_each_kind_there_are_as_many_as_give_enough_pairs() -> None:
    long, short = replace(a_record(140), kind="qa"), replace(a_record(70), kind="rag")
    found = enough([long, short] * 6, 2)
    assert [of.kind for of in found] == ["qa", "rag", "qa", "rag", "rag", "rag"]
