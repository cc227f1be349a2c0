"""What native code prints to standard output, kept out of the answers that are written there."""

import contextlib
import os
import sys
from collections.abc import Iterator
from threading import Lock

STDOUT, STDERR = 1, 2
_TURN = Lock()  # of two threads the second would keep the first one's stderr for stdout


@contextlib.contextmanager
def printed_to_stderr() -> Iterator[None]:
    """Lead the process's standard output to its standard error for a while, for every thread.

    QNN's emulator, for one, prints a line there when its first graph is compiled. Without a
    standard error it is lost; without a standard output nothing is changed. One thread at a time is
    inside.
    """
    with _TURN:
        try:
            os.fstat(STDOUT)
        except OSError:  # there is none
            yield
            return
        other = _other_place()  # first, or what is kept may get the number of a shut standard error
        kept = os.dup(STDOUT)
        try:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads, or shut
                sys.stdout.flush()
            os.dup2(other, STDOUT)
            os.close(other)
            yield
        finally:
            os.dup2(kept, STDOUT)
            os.close(kept)


def _other_place() -> int:
    """A descriptor of standard error, or of nothing where the process has none; to be closed."""
    if sys.__stderr__ is not None:  # or a file may have its number
        with contextlib.suppress(OSError):
            return os.dup(STDERR)
    return os.open(os.devnull, os.O_WRONLY)
