"""Tests of scripts/check_equality.py: shares, table and exit code, on a random model."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.__main__ import main as export_main
from scripts import check_equality
from scripts.equality.pair import Pair
from scripts.equality.recorder import Written
from scripts.equality.settings import Setting, every

Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture(scope="module")
def with_exit(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exit") / "bundle"
    graphs = "target/fused-int8,target/fused-fp32,draft/fused-int4"
    flags = ["--out", str(folder), "--graphs", graphs, "--early-exit-layer", "1"]
    assert export_main(["gguf", str(tiny_gguf), *flags]) == 0
    return folder


@pytest.fixture
def run(
    with_exit: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Check texts of 12 tokens behind two prompts; the exit code and the lines that were said."""
    prompts = tmp_path / "two.jsonl"
    texts = ("the", "on a tin")
    lines = [
        {"question_id": number, "category": "qa", "turns": [text]}
        for number, text in enumerate(texts)
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def run(*flags: str) -> tuple[int, list[str]]:
        command = ["-m", str(with_exit), "--prompts", str(prompts), "--tokens", "12", *flags]
        monkeypatch.setattr(sys, "argv", ["check_equality.py", *command])
        return check_equality.main(), capsys.readouterr().out.splitlines()

    return run


def test_a_share_of_all_settings(run: Run) -> None:
    code, said = run("--share", "2/2000", "--precision", "int8", "fp32")
    found = json.loads(said[-1])
    assert code == 0
    assert found["settings"] == len(every()[1::2000])
    assert found["of"] == len(every())
    assert found["texts"] == 2 * found["settings"]
    assert 0 < found["tokens"] <= 12 * found["texts"]
    assert found["accepted"] > 0
    assert found["differences"] == []
    row = next(line for line in said if line.startswith("| precision | fp32 |"))
    assert row.split(" | ")[2] == str(found["settings"])


def test_what_differs_is_told_and_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Pair.write

    def other(pair: Pair, prompt: list[int], setting: Setting, *rest: Any) -> Written:
        seed, count = rest
        is_dice = setting.strategy == "dice"
        return write(pair, [*prompt, 5] if is_dice else prompt, setting, seed, count)

    monkeypatch.setattr(Pair, "write", other)
    code, said = run("--pairwise", "--precision", "int8")
    found = json.loads(said[-1])
    assert code == 1
    assert found["differences"]
    assert all("strategy dice" in difference for difference in found["differences"])
    assert {*found["differences"]} <= {*said}
    assert f"{len(found['differences'])} |" in next(line for line in said if "| dice |" in line)


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "1/x", "-1/4", "1/2/3"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no share like 1/20"):
        check_equality.share_of(text)


def test_shares_are_the_whole() -> None:
    shares = [check_equality.share_of(f"{part}/3") for part in (1, 2, 3)]
    numbers = [number for part, parts in shares for number in range(10)[part - 1 :: parts]]
    assert sorted(numbers) == [*range(10)]
