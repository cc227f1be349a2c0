"""All or nothing: a folder is made beside its place and moved there when it is complete."""

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, gone when the block ends; those of dead builds go first.

    Its name tells the machine and the process: a build on another machine that shares the disk,
    whose processes cannot be seen from here, is left alone.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    stem = f".{out.name}.building-{socket.gethostname()}-"
    for found in list(out.parent.iterdir()):
        process = found.name.removeprefix(stem)
        if found.name != process and process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(found, ignore_errors=True)
    folder = out.parent / f"{stem}{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, out: Path) -> None:
    """Move the finished `folder` to `out`, which is absent or empty, once it is safe on the disk.

    Raises OSError, leaving `out` as it is, when another process has filled it meanwhile.
    """
    for path in sorted(folder.rglob("*"), reverse=True):
        _flush(path)
    _flush(folder)
    if out.is_dir():
        out.rmdir()
    folder.rename(out)
    _flush(out.parent)


def _flush(path: Path) -> None:
    """Have the system write a file, or a folder's table of names, to the disk."""
    if path.is_dir() and sys.platform == "win32":
        return  # folders cannot be opened there, and their tables are written in order
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_running(process: int) -> bool:
    """Whether another process of this machine is alive under this number."""
    if process == os.getpid():
        return False
    if sys.platform == "win32":
        return True  # the POSIX question would end the process there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
