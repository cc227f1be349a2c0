"""The build command: what it says, how it ends, and that it leaves nothing half-made."""

import subprocess
import sys
from pathlib import Path

import pytest

from export.__main__ import main
from runtime.manifest import Manifest
from tests import tiny
from tests.building import ROOT, STEPS, names


def start(tiny_gguf: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "export", "gguf", str(tiny_gguf), "--out", str(out)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_build_reports_every_step_and_a_second_has_nothing_to_do(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    arguments = ["gguf", str(tiny_gguf), "--out", str(out), "--name", "mine"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out == ""
    # A machine that is slow just now is told what takes it long.
    lines = [line for line in said.err.splitlines() if not line.startswith("  …")]
    assert len(lines) == len(STEPS) + 1
    assert all(line.startswith(step) for line, step in zip(lines, STEPS, strict=False))
    assert lines[-1] == f"{out} is ready"
    assert Manifest.load(out).name == "mine"
    before = (out / "manifest.json").stat().st_mtime_ns
    assert main(arguments) == 0
    assert capsys.readouterr().err == f"{out} already holds mine, complete: nothing to do\n"
    assert (out / "manifest.json").stat().st_mtime_ns == before


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


def test_an_exit_after_the_last_layer_leaves_nothing(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["gguf", str(tiny_gguf), "--out", str(tmp_path / "b"), "--early-exit-layer", "2"]
    assert main(command) == 1
    assert "The early exit is after layer 2; the model has 2 layers." in capsys.readouterr().err
    assert names(tmp_path) == []


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


def test_links_in_a_circle(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "circle").symlink_to("circle")
    few = ["--graphs", "target/fused-fp32", "--draft", "none"]
    for file, out in ((tiny_gguf, "circle"), (tiny_gguf, "circle/bundle"), ("circle", "bundle")):
        path = str(file if file == tiny_gguf else tmp_path / file)
        assert main(["gguf", path, "--out", str(tmp_path / out), *few]) == 1
        assert "circle" in capsys.readouterr().err.splitlines()[-1]
    assert main(["inspect", str(tmp_path / "circle")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_absent_files_and_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", str(tmp_path / "no.gguf"), "--out", str(tmp_path / "b")]) == 1
    assert "no.gguf is not a file" in capsys.readouterr().err
    assert main(["recipe", "nothing", "--out", str(tmp_path / "b")]) == 2
    assert "no recipe 'nothing'; there is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gguf"], "required: FILE, --out"),
        (["gguf", "x"], "required: --out"),
        (["recipe", "x", "--out", "b", "--ofline"], "--ofline; did you mean --offline?"),
        (["gguf", "x", "--out", "b", "--offline"], "unrecognized arguments: --offline"),
        (["bulid"], "invalid choice: 'bulid'"),
        (["gguf", __file__, "--out", "b", "--early-exit-layer", "0"], "after layer 0; it must be"),
        (["gguf", __file__, "--out", "b", "--early-exit-layer", "x"], "invalid int value: 'x'"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_no_arguments_are_answered_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "examples:" in said.err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("mirror-export ")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "mirror-export recipe smollm2-135m --out" in capsys.readouterr().out


def test_a_template_that_does_not_compile_is_refused_when_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tiny.metadata({"tokenizer.chat_template": "{{"})
    file = tiny.write_gguf(tmp_path / "broken.gguf", pairs=pairs)
    assert main(["gguf", str(file), "--out", str(tmp_path / "out")]) == 1
    assert "template" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
