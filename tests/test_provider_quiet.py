"""What native code prints while a graph is loaded is none of the answers."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtime.providers.quiet import printed_to_stderr

ROOT = Path(__file__).resolve().parent.parent


def test_output_goes_to_stderr_inside_and_to_stdout_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with printed_to_stderr():
        os.write(1, b"inside\n")
    os.write(1, b"outside\n")
    assert capfd.readouterr() == ("outside\n", "inside\n")


def test_two_threads_leave_the_streams_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    inside, waits = threading.Event(), threading.Event()

    def first() -> None:
        with printed_to_stderr():
            inside.set()
            waits.wait(0.2)  # for the second, which must not get so far

    def second() -> None:
        inside.wait()
        with printed_to_stderr():
            waits.set()

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(1, b"outside\n")
    assert capfd.readouterr() == ("outside\n", "")


def test_what_was_printed_before_stays_there_and_an_error_passes() -> None:
    code = """
from runtime.providers.quiet import printed_to_stderr
print("before")
try:
    with printed_to_stderr():
        raise ValueError
except ValueError:
    print("after")
"""
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert child.stdout.split() == [b"before", b"after"]


def test_without_streams_nothing_happens() -> None:
    code = """
import os
from runtime.providers.quiet import printed_to_stderr
os.close(1)
with printed_to_stderr():
    pass
try:
    os.fstat(1)
except OSError:
    os._exit(7)
"""
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert child.returncode == 7, "it has a standard output now"


@pytest.mark.parametrize("shut", ["os.close(2)", "sys.__stderr__ = None"])
def test_without_a_standard_error_it_is_lost_and_in_no_answer(shut: str) -> None:
    """None stands there from the start, whichever file has the number 2 by now."""
    code = f"""
import os, sys
from runtime.providers.quiet import printed_to_stderr
{shut}
with printed_to_stderr():
    os.write(1, b"inside")
os.write(1, b"outside")
"""
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert (child.stdout, child.stderr) == (b"outside", b"")
