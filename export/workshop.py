"""Where a bundle is built: beside its place, part by part, so that a build that ends goes on later.

A part is made in a folder of its own and renamed when it is whole and safe on the disk, so what
bears a part's name is finished, however the process that made it ended. The bundle is put together
from its parts and moved to its place in one step.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.lock import is_held, locked
from runtime.bundle_files import file_sha256
from runtime.errors import MirrorError

LOCK = "lock"
FORGOTTEN_AFTER_S = 7 * 24 * 3600.0  # leftovers that nobody came back for
LONGEST_NAME = 100  # file systems allow 255 bytes, and the host's name stands there too


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part: the folder of its files, their sha256 by relative path, and its result."""

    folder: Path
    sha256: dict[str, str]
    result: Any


class Workshop:
    """A folder of finished parts by key, and of those being made."""

    def __init__(self, folder: Path) -> None:
        """Open the workshop; parts that a process left half-made go."""
        self.folder = folder
        self._parts = folder / "parts"
        self._parts.mkdir(parents=True, exist_ok=True)
        self.tidy()
        self.bundle = self._new("bundle")

    @property
    def bytes(self) -> int:
        """The size of the finished parts."""
        return sum(path.stat().st_size for path in self._parts.rglob("*") if path.is_file())

    def find(self, key: str) -> Part | None:
        """The part that was finished under this key, if its files are still what they were."""
        folder = self._parts / key
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((folder / "part.json").read_text(encoding="utf-8"))
            files = folder / "files"
            if record["sha256"] == _hashes(files):
                return Part(files, record["sha256"], record["result"])
        return None

    def make(self, key: str, fill: Callable[[Path], Any]) -> Part:
        """Have `fill` write a part's files into an empty folder; what it returns must be JSON."""
        half = self._new("part")
        files = half / "files"
        files.mkdir()
        result = fill(files)
        record = {"sha256": _hashes(files), "result": result}
        (half / "part.json").write_text(json.dumps(record), encoding="utf-8")
        flush(half)
        shutil.rmtree(self._parts / key, ignore_errors=True)
        half.rename(self._parts / key)
        return Part(self._parts / key / "files", record["sha256"], result)

    def tidy(self) -> None:
        """Remove what is half-made."""
        for found in self.folder.glob("half-*"):
            shutil.rmtree(found, ignore_errors=True)

    def empty(self) -> None:
        """Remove everything but the lock."""
        for found in self.folder.iterdir():
            if found.name != LOCK:
                shutil.rmtree(found, ignore_errors=True)

    def _new(self, kind: str) -> Path:
        folder = self.folder / f"half-{kind}-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


@contextlib.contextmanager
def workshop(out: Path, say: Callable[[str], None]) -> Iterator[Workshop]:
    """The workshop for the bundle `out`, in a hidden folder beside it, for one process at a time.

    A second process on this machine says now and then that it waits; one on another machine that
    shares the disk has a folder of its own. A build that is interrupted, or stopped by the system,
    leaves its finished parts to the next; one that fails for good, or succeeds, leaves nothing.
    Leftovers beside `out` that nobody touched for a week go. Raises OSError where nothing can be
    written.
    """
    folder = out.parent / f".{_short(out.name)}.building-{_short(socket.gethostname())}"

    def waiting(seconds: float) -> None:
        since = f", {seconds:.0f} s so far" if seconds else ""
        say(f"another process builds {out}: waiting for it{since}")

    try:
        with locked(folder / LOCK, waiting) as alone:
            _sweep(out.parent)
            place = folder if alone else Path(tempfile.mkdtemp(prefix="apart-", dir=folder))
            with _kept_when_interrupted(Workshop(place), say) as work:
                yield work
            if not alone:
                place.rmdir()
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _kept_when_interrupted(work: Workshop, say: Callable[[str], None]) -> Iterator[Workshop]:
    try:
        yield work
    except MirrorError:
        work.empty()
        raise
    except BaseException:
        work.tidy()
        if work.bytes:
            say(
                f"the finished parts, {work.bytes / 1e6:.1f} MB, stay in {work.folder}: the same "
                "build goes on from there"
            )
        else:
            work.empty()
        raise
    work.empty()


def publish(folder: Path, out: Path) -> None:
    """Move the finished `folder` to `out`, which is absent or empty, once it is safe on the disk.

    Raises OSError, leaving `out` as it is, when another process has filled it meanwhile.
    """
    flush(folder)
    if out.is_dir():
        out.rmdir()
    folder.rename(out)
    _flush(out.parent)


def flush(folder: Path) -> None:
    """Have the system write a folder and all it holds to the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        _flush(path)
    _flush(folder)


def _flush(path: Path) -> None:
    """Have the system write a file, or a folder's table of names, to the disk."""
    if path.is_dir() and sys.platform == "win32":
        return  # folders cannot be opened there, and their tables are written in order
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hashes(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}


def _short(name: str) -> str:
    """A name that leaves room for others beside it."""
    if len(os.fsencode(name)) <= LONGEST_NAME:
        return name
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def _sweep(parent: Path) -> None:
    """Remove what other builds left beside this one, if it is old and nobody is at work there."""
    for found in parent.glob(".*.building-*"):
        with contextlib.suppress(OSError):
            inner = [found, *found.iterdir(), *found.glob("*/*")]
            age = time.time() - max(path.stat().st_mtime for path in inner)
            if age > FORGOTTEN_AFTER_S and not is_held(found / LOCK):
                shutil.rmtree(found, ignore_errors=True)
