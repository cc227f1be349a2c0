"""One process holds a lock at a time, and its end gives it up, however it comes."""

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from export import lock
from export.lock import is_held, locked

ROOT = Path(__file__).resolve().parent.parent
HOLD = (
    "import sys; from pathlib import Path; from export.lock import locked\n"
    "with locked(Path(sys.argv[1]), lambda _: print('waiting', flush=True)):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


def no_wait(_seconds: float) -> None:
    raise AssertionError("nobody holds it")


@contextlib.contextmanager
def child(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that takes the lock and holds it until its input ends."""
    command = [sys.executable, "-c", HOLD, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_free_lock_is_taken_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new folder ü" / "lock"
    for _ in range(2):
        with locked(path, no_wait) as alone:
            assert alone
            assert is_held(path)
        assert list(path.parent.iterdir()) == []
    assert not is_held(path)


def test_it_is_given_up_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "lock", no_wait):
        raise KeyboardInterrupt
    assert not (tmp_path / "lock").exists()


def test_a_second_process_says_that_it_waits_and_gets_it_next(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with child(path) as first, child(path) as second:
        # Which of the two was first is chance.
        lines = {said(first), said(second)}
        assert lines == {"held", "waiting"}
        assert is_held(path)
        assert first.stdin is not None
        assert second.stdin is not None
        first.stdin.close()
        second.stdin.close()
        assert sorted([said(first), said(second)]) == ["", "held"]
        assert (first.wait(), second.wait()) == (0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with child(path) as first:
        assert said(first) == "held"
        first.kill()
        first.wait()
        assert path.exists()
        assert not is_held(path)
        with locked(path, no_wait) as alone:
            assert alone


def test_the_lock_of_a_removed_file_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    real = lock._lock
    calls: list[int] = []

    def remove_first(handle: int) -> bool | None:
        calls.append(handle)
        if len(calls) == 1:  # its holder ends between the opening and the locking
            path.unlink()
        return real(handle)

    monkeypatch.setattr(lock, "_lock", remove_first)
    monkeypatch.setattr(lock, "POLL_S", 0.0)
    with locked(path, lambda _: None) as alone:
        assert alone
        assert path.exists()


def test_a_disk_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock", no_wait) as alone:
        assert not alone
        assert not is_held(tmp_path / "lock")


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), locked(tmp_path / "file" / "lock", no_wait):
        pass


def test_a_long_wait_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    waited: list[float] = []
    with child(path) as first:
        assert said(first) == "held"

        def waiting(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                first.kill()

        monkeypatch.setattr(lock, "REMIND_S", 0.0)
        monkeypatch.setattr(lock, "POLL_S", 0.001)
        with locked(path, waiting):
            assert waited[0] == 0.0
            assert 0.0 < waited[1] < waited[2]
