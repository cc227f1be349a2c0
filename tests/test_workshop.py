"""What is made in a workshop appears whole or not at all."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from export.workshop import publish, workshop


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def temporary(process: int, host: str | None = None) -> str:
    return f".bundle.building-{host or socket.gethostname()}-{process}"


def ended_process() -> int:
    """The number of a process that has just ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_finished_folder_is_moved_and_nothing_stays(tmp_path: Path) -> None:
    out = tmp_path / "made" / "by" / "bundle"
    with workshop(out) as folder:
        (folder / "bundle" / "inner").mkdir(parents=True)
        (folder / "bundle" / "inner" / "file").write_text("content", encoding="utf-8")
        assert not out.exists()
        publish(folder / "bundle", out)
    assert names(out.parent) == ["bundle"]
    assert (out / "inner" / "file").read_text(encoding="utf-8") == "content"


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    out.mkdir()
    with workshop(out) as folder:
        (folder / "bundle").mkdir()
        (folder / "bundle" / "file").touch()
        publish(folder / "bundle", out)
    assert names(out) == ["file"]


def test_a_filled_folder_stays_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    with workshop(out) as folder:
        (folder / "bundle").mkdir()
        (folder / "bundle" / "mine").touch()
        out.mkdir()
        (out / "theirs").touch()
        with pytest.raises(OSError, match="not empty"):
            publish(folder / "bundle", out)
    assert names(tmp_path) == ["bundle"]
    assert names(out) == ["theirs"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with workshop(tmp_path / "bundle") as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="other processes cannot be asked there")
def test_leftovers_of_dead_builds_go_and_others_stay(tmp_path: Path) -> None:
    dead = ended_process()
    living = os.getppid()
    kept = [
        temporary(living),
        temporary(dead, host="another-machine"),
        temporary(dead) + "-backup",
        f".other.building-{socket.gethostname()}-{dead}",
        "bundle-of-mine",
    ]
    for name in [temporary(dead), temporary(os.getpid()), *kept]:
        (tmp_path / name / "inner").mkdir(parents=True)
    with workshop(tmp_path / "bundle") as folder:
        assert names(folder) == []
        assert names(tmp_path) == sorted([*kept, folder.name])
    assert names(tmp_path) == sorted(kept)
