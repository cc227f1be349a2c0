"""The flags of `python -m export distill`: told without torch, refused before anything starts."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from export.command import main
from export.distill.settings import Settings
from tests.building import ROOT

NOT_FLAGS = {"lens_tokens"}


def test_help_is_there_without_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from export.command import main\n"
        "main(['distill', '--help'])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stderr == ""
    for item in fields(Settings):
        if item.name not in NOT_FLAGS:
            assert f"--{item.name.replace('_', '-')}" in found.stdout
    usual = Settings("")
    for value in (usual.prompts, usual.head_width, usual.rate, usual.blocks, usual.aim):
        assert f"(default: {value})" in " ".join(found.stdout.split())


def test_a_missing_torch_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    out = tmp_path / "out"
    assert main(["distill", "--target", "smollm2-135m", "--out", str(out)]) == 1
    assert "Distilling needs the package torch: " in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tokens-per-pass", "0"], "--tokens-per-pass is 0; it must be 1 to 1024."),
        (["--tokens-per-pass", "2000"], "--tokens-per-pass is 2000; it must be 1 to 1024."),
        (["--tokens", "-1"], "--tokens is -1; it must be 0 or more."),
        (["--tokens", "1.5"], "argument --tokens: invalid int value: '1.5'"),
        (["--depth", "0"], "--depth is 0; it must be 1 or more."),
        (["--depth", "3", "--layers", "1,2"], "argument --layers: not allowed with argument"),
        (["--layers", "1,x"], "argument --layers: '1,x' is no list of numbers"),
        (["--layers", "0,0"], "--layers must be numbers from 0 up, in ascending order"),
        (["--lenses", "3,1"], "--lenses must be numbers from 0 up, in ascending order"),
        (["--layers=-1,2"], "--layers must be numbers from 0 up"),
        (["--lenses", ""], "argument --lenses: '' is no list of numbers"),
        (["--rate", "nan"], "--rate is nan; it must be 0 to 1."),
        (["--blocks", "1.1"], "--blocks is 1.1; it must be 0 to 1."),
        (["--minutes", "0"], "argument --minutes: '0' is not a number above 0"),
        (["--minutes", "nan"], "argument --minutes: 'nan' is not a number"),
        (["--minutes", "soon"], "argument --minutes: 'soon' is not a number"),
        (["--workers", "0"], "argument --workers: 0 is not a whole number, 1 or more"),
        (["--aim", "high"], "argument --aim: invalid choice: 'high'"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--precision", "int4"], "argument --precision: invalid choice: 'int4'"),
        (["--tokns", "5"], "did you mean --tokens?"),
    ],
)
def test_what_cannot_work_is_refused(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["distill", "--target", "x", "--out", str(out), *flags]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_target_and_out_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distill", "--target", "x"]) == 2
    assert "the following arguments are required: --out" in capsys.readouterr().err


def test_a_target_that_is_nothing_and_a_device_that_is_not_there_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    out = tmp_path / "out"
    assert main(["distill", "--target", "no-such-model", "--out", str(out)]) == 2
    assert "no-such-model" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["distill", "--target", "x", "--out", str(out), "--device", "cuda"]) == 2
    assert "torch finds no such device here" in capsys.readouterr().err
    assert not out.exists()
