"""Work with a provider in a process of its own: it may end that process, hang, or print."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runtime.errors import LateError, MirrorError, ProviderError
from runtime.records import read_record
from runtime.whole_file import write_whole

TAIL_CHARACTERS = 300


def run_child(
    command: Sequence[str], request: dict[str, Any], what: str, time_limit_s: float
) -> dict[str, Any]:
    """Run a child on `request` and return what it found.

    It reads the request as a line of JSON, and writes {"found": ..} or {"error": ..} to the file
    "answer" of the request: its standard output may be full of what a provider prints. what: for a
    sentence. Raises ProviderError with what the child said, or how it ended: by a signal, with an
    exit code; LateError at `time_limit_s`.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log.txt"
        line = json.dumps(request | {"answer": str(answer)}) + "\n"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            ) as child,
        ):
            try:
                code = _ended(child, line.encode(), time_limit_s)
            except subprocess.TimeoutExpired:
                _kill(child)
                raise LateError(
                    f"{what} was not done after {time_limit_s:g} s, the time limit.{_tail(log)}"
                ) from None
            except BaseException:
                _kill(child)
                raise
        found = read_record(answer)
        if isinstance(found, dict) and "error" in found:
            raise ProviderError(str(found["error"]))
        if not isinstance(found, dict) or "found" not in found:
            raise ProviderError(
                f"{what} ended its process, {_how(code)}.{_tail(log)} Take another "
                "execution provider, or another version of it or of the device's driver."
            )
        result: dict[str, Any] = found["found"]
        return result


def _ended(child: subprocess.Popen[bytes], line: bytes, time_limit_s: float) -> int:
    """Hand the child its request, leaving its input open, and wait for its exit code."""
    assert child.stdin is not None
    try:
        child.stdin.write(line)
        child.stdin.flush()
    except BrokenPipeError:  # it has ended; what is left in the pipe would be written once more
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    return child.wait(time_limit_s)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its own children, where the system can."""
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _how(code: int) -> str:
    """How a process ended; a signal is a negative code, and an exception of Windows a large one."""
    if code < 0:
        names = {int(each): each.name for each in signal.Signals}
        return f"by {names.get(-code, f'signal {-code}')}"
    return f"with exit code {code if code < 256 else hex(code)}"


def _tail(log: Path) -> str:
    """The end of what a child printed, as a sentence; nothing where it printed nothing."""
    printed = log.read_text(encoding="utf-8", errors="replace")
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", printed).split())  # without colours
    return f" It said at last: {text[-TAIL_CHARACTERS:]}" if text else ""


def answer(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """In the child: do the work that standard input asks for, leave what it found, and end.

    The process ends where standard input does, too: nobody waits for the answer any more.
    """
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        found: dict[str, Any] = {"found": work(request)}
    except MirrorError as error:
        found = {"error": str(error)}
    write_whole(Path(request["answer"]), json.dumps(found))
    # Some providers hang or crash while they are unloaded, when all has been said.
    os._exit(0)


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)
