"""The build command: what it says, how it ends, and that it leaves nothing half-made."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from export.__main__ import main
from runtime.manifest import Manifest
from tests import tiny

ROOT = Path(__file__).resolve().parent.parent
STEPS = [
    "read tiny.gguf: 2 layers",
    "rebuild the tokenizer: 271 tokens",
    "write target/fp32: ",
    "write target/int8: ",
    "write draft/int4: ",
    "write a text to measure on: ",
    "compute its logits in numpy: ",
    "measure the target's fused-fp32 graph: ",
    "measure the target's fused-int8 graph: ",
    "measure the target's portable-fp32 graph: ",
    "measure the target's portable-int8 graph: ",
    "measure the draft's fused-int4 graph: ",
    "put the bundle together: ",
]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start(tiny_gguf: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "export", "gguf", str(tiny_gguf), "--out", str(out)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def stop_after(tiny_gguf: Path, out: Path, step: str, number: int) -> tuple[int, str]:
    """Build until `step` is done, then send the signal; the exit code and what was said after."""
    code = (
        "import sys, time; from export import __main__ as command\n"
        "say = command._say\n"
        "def stop(line):\n"
        "    say(line)\n"
        "    time.sleep(60 if line.startswith(sys.argv[1]) else 0)\n"
        "command._say = stop\n"
        "sys.exit(command.main(sys.argv[2:]))\n"
    )
    command = [sys.executable, "-c", code, step, "gguf", str(tiny_gguf), "--out", str(out)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith(step) for line in process.stderr)
        process.send_signal(number)
        return process.wait(60), process.stderr.read()


def test_a_build_reports_every_step_and_a_second_has_nothing_to_do(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    arguments = ["gguf", str(tiny_gguf), "--out", str(out), "--name", "mine"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == len(STEPS) + 1
    assert all(line.startswith(step) for line, step in zip(lines, STEPS, strict=False))
    assert lines[-1] == f"{out} is ready"
    assert Manifest.load(out).name == "mine"
    before = (out / "manifest.json").stat().st_mtime_ns
    assert main(arguments) == 0
    assert capsys.readouterr().err == f"{out} already holds mine, complete: nothing to do\n"
    assert (out / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("step", [STEPS[0], STEPS[3], STEPS[5], STEPS[-1]])
def test_a_killed_build_leaves_nothing_half_made(
    tiny_gguf: Path, tmp_path: Path, step: str
) -> None:
    out = tmp_path / "bundle"
    assert stop_after(tiny_gguf, out, step, signal.SIGKILL)[0] == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.startswith(".bundle.building-")
    assert main(["gguf", str(tiny_gguf), "--out", str(out)]) == 0
    assert names(tmp_path) == ["bundle"]
    Manifest.load(out).verify()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_cleans_up(
    tiny_gguf: Path, tmp_path: Path, number: int, code: int
) -> None:
    found, _ = stop_after(tiny_gguf, tmp_path / "bundle", STEPS[0], number)
    assert (found, names(tmp_path)) == (code, [])


def test_two_builds_at_once_end_well(tiny_gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    builds = [start(tiny_gguf, out) for _ in range(2)]
    said = [build.communicate(timeout=120)[1] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], said
    assert names(tmp_path) == ["bundle"]


def test_what_is_in_the_way_is_not_touched(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    assert main(["gguf", str(tiny_gguf), "--out", str(tmp_path)]) == 2
    assert "is in the way" in capsys.readouterr().err
    assert names(tmp_path) == ["letter.txt"]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_a_bad_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(content)
    assert main(["gguf", str(bad), "--out", str(tmp_path / "bundle")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"error: {bad} is not a GGUF file")
    assert names(tmp_path) == ["bad.gguf"]


def test_a_bad_tokenizer_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tiny.metadata({"tokenizer.ggml.pre": "klingon"})
    path = tiny.write_gguf(tmp_path / "odd.gguf", pairs=pairs)
    assert main(["gguf", str(path), "--out", str(tmp_path / "bundle")]) == 1
    assert "'klingon', which is unknown" in capsys.readouterr().err
    assert names(tmp_path) == ["odd.gguf"]


def test_a_folder_that_cannot_be_made(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["gguf", str(tiny_gguf), "--out", str(tmp_path / "file" / "bundle")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'file'}")
    assert len(said.splitlines()) == 1


def test_absent_files_and_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", str(tmp_path / "no.gguf"), "--out", str(tmp_path / "b")]) == 1
    assert "no.gguf is not a file" in capsys.readouterr().err
    assert main(["recipe", "nothing", "--out", str(tmp_path / "b")]) == 2
    assert "no recipe 'nothing'; there is" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["gguf"], ["gguf", "x"], ["recipe", "x", "--outt"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "python -m export recipe smollm2-135m --out" in capsys.readouterr().out


def test_a_template_that_does_not_compile_is_refused_when_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tiny.metadata({"tokenizer.chat_template": "{{"})
    file = tiny.write_gguf(tmp_path / "broken.gguf", pairs=pairs)
    assert main(["gguf", str(file), "--out", str(tmp_path / "out")]) == 1
    assert "template" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
