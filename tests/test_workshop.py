"""What is made in a workshop appears whole or not at all, and what is finished is not lost."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from export import lock, workshop
from export.workshop import Workshop, publish
from runtime.errors import BuildError

ROOT = Path(__file__).resolve().parent.parent


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(folder: Path) -> dict[str, int]:
    (folder / "inner").mkdir()
    (folder / "inner" / "weights").write_bytes(b"0123456789")
    (folder / "graph").write_bytes(b"graph")
    return {"figure": 7}


def refuse(line: str) -> None:
    raise AssertionError(line)


def test_a_finished_folder_is_moved_and_nothing_stays(tmp_path: Path) -> None:
    out = tmp_path / "made by" / "bündel"
    with workshop.workshop(out, print) as work:
        part = work.make("a", write)
        part.folder.rename(work.bundle / "target")
        assert not out.exists()
        publish(work.bundle, out)
    assert names(out.parent) == ["bündel"]
    assert (out / "target" / "inner" / "weights").read_bytes() == b"0123456789"
    assert (out.stat().st_mode | 0o022) == (out.parent.stat().st_mode | 0o022)


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    out.mkdir()
    with workshop.workshop(out, print) as work:
        (work.bundle / "file").touch()
        publish(work.bundle, out)
    assert names(out) == ["file"]


def test_a_filled_folder_stays_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    with workshop.workshop(out, print) as work:
        (work.bundle / "mine").touch()
        out.mkdir()
        (out / "theirs").touch()
        with pytest.raises(OSError, match="not empty"):
            publish(work.bundle, out)
    assert names(tmp_path) == ["bundle"]
    assert names(out) == ["theirs"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError, MemoryError])
def test_finished_parts_are_kept_for_the_next_build(
    tmp_path: Path, error: type[BaseException]
) -> None:
    said: list[str] = []

    def half(folder: Path) -> None:
        (folder / "weights").write_bytes(b"half")
        raise error

    def build() -> None:
        with workshop.workshop(tmp_path / "bundle", said.append) as work:
            work.make("a", write)
            work.make("b", half)

    with pytest.raises(error):
        build()
    (folder,) = tmp_path.iterdir()
    assert said == [
        f"the finished parts, 0.0 MB, stay in {folder}: the same build goes on from there"
    ]
    with workshop.workshop(tmp_path / "bundle", said.append) as again:
        found = again.find("a")
        assert found is not None
        assert found == again.find("a")
        assert sorted(found.sha256) == ["graph", "inner/weights"]
        assert found.result == {"figure": 7}
        assert again.find("b") is None
        assert [name for name in names(again.folder) if "part" in name] == ["parts"]
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, BuildError])
def test_what_is_of_no_use_is_not_kept(tmp_path: Path, error: type[BaseException]) -> None:
    def build() -> None:
        with workshop.workshop(tmp_path / "bundle", refuse) as work:
            if error is BuildError:
                work.make("a", write)
            (work.bundle / "file").touch()
            raise error

    with pytest.raises(error):
        build()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("files/graph", b"grapf"),
        ("files/graph", None),
        ("files/inner/weights", b"012345678"),
        ("files/more", b""),
        ("part.json", b"{"),
        ("part.json", None),
    ],
)
def test_a_damaged_part_is_not_trusted(tmp_path: Path, name: str, content: bytes | None) -> None:
    work = Workshop(tmp_path)
    path = work.make("a", write).folder.parent / name
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    assert work.find("a") is None
    work.make("a", write)
    assert work.find("a") is not None


def test_builds_on_a_disk_without_locks_keep_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_lock", lambda _: None)
    out = tmp_path / "bundle"
    with workshop.workshop(out, print) as one, workshop.workshop(out, print) as other:
        assert one.folder != other.folder
        one.make("a", write)
        other.make("a", write)
        other.empty()
        assert one.find("a") is not None
    assert names(tmp_path) == []


def test_builds_of_two_machines_on_one_disk_keep_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bundle"
    with workshop.workshop(out, refuse) as one:
        one.make("a", write)
        monkeypatch.setattr(socket, "gethostname", lambda: "another-machine")
        with workshop.workshop(out, refuse) as other:
            assert other.find("a") is None
            (other.bundle / "theirs").touch()
            publish(other.bundle, out)
        assert one.find("a") is not None
        with pytest.raises(OSError, match="not empty"):
            publish(one.bundle, out)
    assert names(tmp_path) == ["bundle"]


def test_old_leftovers_go_and_others_stay(tmp_path: Path) -> None:
    now = time.time()
    kept = {".bundle.building-other-host": now, "x.building-y": 0.0, "bundle-of-mine": 0.0}
    old = {".bundle.building-another": now - 8 * 24 * 3600, ".old.building-x": 0.0}
    for name, moment in {**kept, **old}.items():
        inner = tmp_path / name / "parts" / "a"
        inner.mkdir(parents=True)
        (tmp_path / name / "lock").touch()
        for path in (inner, inner.parent, tmp_path / name / "lock", tmp_path / name):
            os.utime(path, (moment, moment))
    with workshop.workshop(tmp_path / "bundle", print) as work:
        assert names(tmp_path) == sorted([*kept, work.folder.name])
    assert names(tmp_path) == sorted(kept)


def test_an_old_build_that_still_runs_stays(tmp_path: Path) -> None:
    folder = tmp_path / ".other.building-host"
    with lock.locked(folder / "lock", print):
        for path in (folder / "lock", folder):
            os.utime(path, (0, 0))
        with workshop.workshop(tmp_path / "bundle", print):
            assert folder.exists()


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    out = tmp_path / ("ü" * 127)
    with workshop.workshop(out, print) as work:
        (work.bundle / "file").touch()
        publish(work.bundle, out)
    assert names(tmp_path) == [out.name]


def test_a_killed_process_leaves_its_finished_parts(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from export.workshop import workshop; from tests.test_workshop import write\n"
        "with workshop(Path(sys.argv[1]), print) as work:\n"
        "    work.make('a', write)\n"
        "    work.make('b', lambda folder: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "bundle")]
    child = subprocess.run(command, cwd=ROOT, check=False)
    assert child.returncode < 0
    with workshop.workshop(tmp_path / "bundle", refuse) as work:
        assert work.find("a") is not None
        assert work.find("b") is None
        assert names(work.folder) == sorted(["lock", "parts", work.bundle.name])
