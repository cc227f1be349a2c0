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

    QNN's emulator, for one, prints a line there when its first graph is compiled. Where the process
    has no such streams nothing is changed. One thread at a time is inside.
    """
    with _TURN:
        try:
            kept = os.dup(STDOUT)
        except OSError:
            yield
            return
        try:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads, or shut
                sys.stdout.flush()
            with contextlib.suppress(OSError):
                os.dup2(STDERR, STDOUT)
            yield
        finally:
            os.dup2(kept, STDOUT)
            os.close(kept)
