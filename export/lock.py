"""A lock between processes: held by an open file, so the system releases it however one ends."""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

POLL_S = 0.2
REMIND_S = 10.0
NOT_SUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[float], None]) -> Iterator[bool]:
    """Hold the lock of the file `path`, made where it is missing and gone afterwards.

    Where another process holds it, its end is awaited: `waiting` is called with 0, then every ten
    seconds or so with the seconds waited. Yields whether the lock keeps others out: not so on a
    disk that knows no locks. Raises OSError when the file cannot be made.
    """
    handle = _take(path)
    start = told = time.monotonic()
    if handle is None:
        waiting(0.0)
    while handle is None:
        time.sleep(POLL_S)
        handle = _take(path)
        now = time.monotonic()
        if handle is None and now - told >= REMIND_S:
            told = now
            waiting(now - start)
    try:
        yield _lock(handle) is True  # asking again changes nothing for the holder
    finally:
        _release(path, handle)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of the file, if there is such a file."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return _lock(handle) is False
    finally:
        os.close(handle)


def _take(path: Path) -> int | None:
    """A handle that holds the lock, or None while another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:  # its holder has just removed the folder
        return None
    # Whoever held it may have removed the file: then this is the lock of nothing.
    if _lock(handle) is not False and _is_still(handle, path):
        return handle
    os.close(handle)
    return None


def _lock(handle: int) -> bool | None:
    """True when it is locked now, False when another holds it, None where there are no locks."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            return False
        if error.errno in NOT_SUPPORTED:
            return None
        raise
    return True


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _release(path: Path, handle: int) -> None:
    """Remove the file while it is still locked, where the system can, and give the lock up."""
    if sys.platform == "win32":  # an open file cannot be removed there, by nobody
        os.close(handle)
    with contextlib.suppress(OSError):
        path.unlink()
    if sys.platform != "win32":
        os.close(handle)
