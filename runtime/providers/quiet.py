"""What native code prints to standard output, kept out of the answers that are written there."""

import contextlib
import os
import sys
from collections.abc import Iterator

STDOUT, STDERR = 1, 2


@contextlib.contextmanager
def printed_to_stderr() -> Iterator[None]:
    """Lead the process's standard output to its standard error for a while, for every thread.

    QNN's emulator, for one, prints a line there when its first graph is compiled. Where the process
    has no such streams nothing is changed.
    """
    try:
        kept = os.dup(STDOUT)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads, or closed
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            os.dup2(STDERR, STDOUT)
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)
