"""A build that ended before its end goes on where it stopped, and gives the same bundle."""

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from export import build
from export.__main__ import main
from export.workshop import workshop
from export.writer import WeightFile
from runtime.manifest import Manifest
from tests.building import ROOT, STEPS, names, stop_after

FEW = ("--graphs", "target/fused-fp32", "--draft", "none")
KEPT = ": kept from an earlier start"


def arguments(tiny_gguf: Path, out: Path, *more: str) -> list[str]:
    return ["gguf", str(tiny_gguf), "--out", str(out), *more]


def kept(said: str) -> list[str]:
    """The steps that a build took from an earlier one."""
    return [line.partition(":")[0] for line in said.splitlines() if KEPT in line]


@pytest.mark.parametrize("step", [4, 8, 12])
def test_a_killed_build_goes_on(
    tiny_gguf: Path,
    tiny_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    step: int,
) -> None:
    out = tmp_path / "bundle"
    assert stop_after(tiny_gguf, out, STEPS[step], signal.SIGKILL)[0] == -signal.SIGKILL
    assert not out.exists()
    assert main(arguments(tiny_gguf, out, "--name", "tiny")) == 0
    parts = [line for line in STEPS[2 : step + 1] if not line.startswith("compute")]
    if step < 12:  # before the parts were put together
        assert kept(capsys.readouterr().err) == [line.partition(":")[0] for line in parts]
    assert names(tmp_path) == ["bundle"]
    Manifest.load(out).verify()
    assert Manifest.load(out) == Manifest.load(tiny_bundle)


def test_a_build_that_is_killed_while_it_writes_trusts_nothing_half_written(
    tiny_gguf: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    code = (
        "import os, signal, sys; from export.__main__ import main; import onnx\n"
        "save = onnx.save\n"
        "def die(graph, path):\n"
        "    save(graph, path)\n"
        "    if 'int8' in str(path) and '8-lanes' in str(path):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "onnx.save = die\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, *arguments(tiny_gguf, out)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert list(left.glob("half-part-*/files/target/int8/fused-8-lanes.onnx"))
    assert main(arguments(tiny_gguf, out)) == 0
    assert kept(capsys.readouterr().err) == ["write target/fp32"]
    assert Manifest.load(out) == Manifest.load(tiny_bundle)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_says_that_the_next_goes_on(
    tiny_gguf: Path, tmp_path: Path, number: int, code: int
) -> None:
    found, said = stop_after(tiny_gguf, tmp_path / "bundle", STEPS[3], number)
    (left,) = tmp_path.iterdir()
    assert found == code
    assert said.startswith(f"the finished parts, 0.9 MB, stay in {left}: the same build goes on")
    assert said.splitlines()[1:] == (["Interrupted."] if number == signal.SIGINT else [])
    assert names(left) == ["parts"]


def test_another_plan_takes_only_what_it_has_in_common(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    stop_after(tiny_gguf, out, STEPS[4], signal.SIGKILL)
    graphs = "target/fused-fp32,target/portable-fp32,target/fused-int8"
    assert main(arguments(tiny_gguf, out, "--graphs", graphs, "--draft", "none")) == 0
    assert kept(capsys.readouterr().err) == ["write target/fp32"]
    assert list(Manifest.load(out).target.graphs) == [
        name.removeprefix("target/") for name in graphs.split(",")
    ]
    assert Manifest.load(out).draft is None
    assert names(tmp_path) == ["bundle"]


def test_another_program_takes_nothing(
    tiny_gguf: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_after(tiny_gguf, tmp_path / "bundle", STEPS[2], signal.SIGKILL)
    monkeypatch.setattr(build, "_program", lambda: "another")
    assert main(arguments(tiny_gguf, tmp_path / "bundle", *FEW)) == 0
    assert kept(capsys.readouterr().err) == []


def test_a_full_disk_is_a_sentence_and_costs_no_finished_part(
    tiny_gguf: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "ein Bündel"
    write = WeightFile.tensor

    def full(file: WeightFile, name: str, value: Any) -> Any:
        if "int4" in str(file._path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, name, value)

    monkeypatch.setattr(WeightFile, "tensor", full)
    assert main(arguments(tiny_gguf, out)) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {out}: No space left on device."
    (left,) = tmp_path.iterdir()
    assert names(left) == ["parts"]
    monkeypatch.undo()
    assert main(arguments(tiny_gguf, out)) == 0
    assert kept(capsys.readouterr().err) == ["write target/fp32", "write target/int8"]
    assert names(tmp_path) == [out.name]


def test_a_file_that_may_grow_no_further_is_a_sentence(tiny_gguf: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "export", *arguments(tiny_gguf, tmp_path / "bundle")]
    limit = 200_000  # bytes; the float32 weights have twice as many
    built = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert built.returncode == 1
    assert built.stderr.splitlines()[-1] == f"error: {tmp_path / 'bundle'}: File too large."
    assert "Traceback" not in built.stderr
    assert names(tmp_path) == []


def test_a_second_build_waits_and_finds_the_bundle(tiny_gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    code = (
        "import sys; from export import command\n"
        "say = command._say\n"
        "def slowly(line):\n"
        "    say(line)\n"
        "    if line.startswith('write target/fp32'):\n"
        "        sys.stdin.read()\n"
        "command._say = slowly\n"
        "sys.exit(command.main(sys.argv[1:]))\n"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *arguments(tiny_gguf, out, *FEW)]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stderr=pipe, text=True) as first:
        assert first.stderr is not None
        assert any(line.startswith("write target/fp32") for line in first.stderr)
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stderr=pipe, text=True) as second:
            assert second.stderr is not None
            assert second.stderr.readline() == f"another process builds {out}: waiting for it\n"
            assert first.communicate("", timeout=60)[1].endswith(f"{out} is ready\n")
            assert second.communicate("", timeout=60)[1] == f"{out} is ready\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert names(tmp_path) == ["bundle"]


def test_a_second_build_begins_when_the_first_ends(tiny_gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    command = [sys.executable, "-m", "export", *arguments(tiny_gguf, out, *FEW)]
    with contextlib.ExitStack() as first:
        first.enter_context(workshop(out, print))
        second = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        with second:
            assert second.stderr is not None
            assert "waiting for it" in second.stderr.readline()
            first.close()
            assert second.stderr.read().endswith(f"{out} is ready\n")
    assert second.returncode == 0
    assert names(tmp_path) == ["bundle"]


def test_a_target_reached_by_a_link(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "real place ü").mkdir()
    (tmp_path / "link").symlink_to("real place ü")
    (tmp_path / "bundle").symlink_to(tmp_path / "link" / "not there yet")
    assert main(arguments(tiny_gguf, tmp_path / "bundle", *FEW)) == 0
    assert names(tmp_path / "real place ü") == ["not there yet"]
    Manifest.load(tmp_path / "bundle").verify()
