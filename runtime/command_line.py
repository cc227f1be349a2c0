"""What the command lines share: exit codes, errors as sentences, and streams that always work."""

import contextlib
import io
import os
from collections.abc import Callable
from typing import Any, TextIO

from runtime.errors import MirrorError, UsageError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def exit_code(program: str, work: Callable[[], int], say: Callable[[str], object]) -> int:
    """What `work` returns; every expected error becomes a sentence for `say` and an exit code.

    An interrupt that bears a message has been told already, by a child of this process.
    """
    try:
        return work()
    except UsageError as error:
        say(f"{program}: {error}")
        return USAGE
    except MirrorError as error:
        say(f"{program}: {error}")
        return FAILED
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            say("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        return OK  # the reader has seen enough
    except OSError as error:
        say(f"{program}: {error}")
        return FAILED


def runtime_open_session() -> Callable[..., Any]:
    """The runtime's own, imported late: --help and wrong flags need no onnxruntime.

    Raises MirrorError where onnxruntime is not installed.
    """
    try:
        from runtime import open_session
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # while native code was loading
            raise KeyboardInterrupt from error
        if not isinstance(error, ModuleNotFoundError) or error.name != "onnxruntime":
            raise
        raise MirrorError(
            "onnxruntime is not installed: python -m pip install onnxruntime"
        ) from error
    return open_session


def readied(stream: TextIO | None) -> TextIO:
    """The stream in UTF-8, whatever the locale; what it cannot carry is replaced, not an error.

    One that the process was started without (None) is empty, and takes everything in silence.
    """
    if stream is None:
        return io.StringIO()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="replace")
    return stream


def flush(*streams: TextIO) -> None:
    """Write out what is held; a stream whose reader is gone is pointed to nowhere."""
    for stream in streams:
        try:
            stream.flush()
        except OSError:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    """Point the stream to nowhere, so that Python's own flush at exit does not complain."""
    with contextlib.suppress(OSError, ValueError):
        target = os.open(os.devnull, os.O_WRONLY)
        os.dup2(target, stream.fileno())
        os.close(target)
