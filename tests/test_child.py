"""A child that works with a provider: its answer, and every way it may end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.child import run_child
from runtime.errors import LateError, ProviderError

ROOT = Path(__file__).resolve().parent.parent

FOUND = '{"largest_difference": 0.5, "spread": 10.0, "rows": 4, "equal": 3}'
ANSWER = "import json, sys; file = json.loads(sys.stdin.readline())['answer']; "


def child(code: str, *, time_limit_s: float = 20.0) -> dict[str, object]:
    """What a child of this code finds."""
    return run_child([sys.executable, "-c", ANSWER + code], {"a": "é"}, "Trying it", time_limit_s)


def test_an_answer_comes_by_a_file_whatever_is_printed() -> None:
    text = f"print('{{' * 100000); open(file, 'w').write('{{\"found\": {FOUND}}}')"
    found = {"largest_difference": 0.5, "spread": 10.0, "rows": 4, "equal": 3}
    assert child(text) == found
    # What a provider does while it is unloaded does not matter any more.
    assert child(f"{text}; sys.stdout.flush(); import os; os.abort()") == found


def test_what_the_child_says_is_raised() -> None:
    with pytest.raises(ProviderError, match=r"^no such operator$"):
        child('open(file, "w").write(\'{"error": "no such operator"}\')')


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "by SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "by SIGKILL"),
        ("sys.exit(3)", "with exit code 3"),
        ("pass", "with exit code 0"),
        ("open(file, 'w').write('{')", "with exit code 0"),
        ("open(file, 'w').write('[1]')", "with exit code 0"),
        ("open(file, 'w').write('{}')", "with exit code 0"),
    ],
)
def test_a_child_that_dies_is_named_with_what_it_printed(code: str, how: str) -> None:
    printed = r"print('a \x1b[0;93mword', flush=True)"
    message = rf"^Trying it ended its process, {how}\. It said at last: a word b\. "
    with pytest.raises(ProviderError, match=message.replace(r"b\.", "b")):
        child(f"{printed}; print('b', file=sys.stderr, flush=True); {code}")
    with pytest.raises(ProviderError, match=rf"{how}\. Take another"):
        child(code)


def test_a_child_that_hangs_ends_with_its_own_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, time; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); print('busy', flush=True); "
        "time.sleep(60)"
    )
    message = r"^Trying it was not done after 1\.5 s, the time limit\. It said at last: busy$"
    with pytest.raises(LateError, match=message):
        child(code, time_limit_s=1.5)
    assert_gone(int((tmp_path / "pid").read_text()))


def assert_gone(process: int) -> None:
    """Wait until no such process runs; one that nobody has waited for runs no more."""
    for _ in range(1000):
        try:
            if "\nState:\tZ" in Path(f"/proc/{process}/status").read_text():
                return
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError(f"{process} still runs")


def test_an_interrupt_ends_the_child_and_stays_one(tmp_path: Path) -> None:
    code = (
        "import os, time; "
        f"open({str(tmp_path / 'part')!r}, 'w').write(str(os.getpid())); "
        f"os.rename({str(tmp_path / 'part')!r}, {str(tmp_path / 'pid')!r}); time.sleep(60)"
    )

    def interrupt() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        child(code)
    assert_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("work", "left"),
    [
        ("return {'a': request['a']}", {"found": {"a": "é"}}),
        ("raise BundleError('no such operator')", {"error": "no such operator"}),
    ],
)
def test_the_child_leaves_what_it_found_or_why_not(
    work: str, left: dict[str, object], tmp_path: Path
) -> None:
    request = {"a": "é", "answer": str(tmp_path / "answer.json")}
    with answering(work) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(20) == 0
    assert json.loads((tmp_path / "answer.json").read_text(encoding="utf-8")) == left


def test_a_child_whose_parent_is_gone_ends(tmp_path: Path) -> None:
    request = {"answer": str(tmp_path / "answer.json")}
    with answering("time.sleep(60)") as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.close()  # as the system does where the parent is killed
        assert process.wait(20) == 1
    assert not any(tmp_path.iterdir())


def answering(work: str) -> subprocess.Popen[bytes]:
    """A child that does this work with a request."""
    code = (
        "import time\nfrom runtime.child import answer\nfrom runtime.errors import BundleError\n"
        f"def work(request):\n    {work}\nanswer(work)"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE)


class Gone(subprocess.Popen[bytes]):
    """A child that has ended before anyone writes to it."""

    def __enter__(self) -> "Gone":
        self.wait()
        return self


def test_a_child_that_is_gone_before_it_is_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request cannot be written, nor what is left of it when its pipe is closed."""
    monkeypatch.setattr(subprocess, "Popen", Gone)
    with pytest.raises(ProviderError, match=r"^Trying it ended its process, with exit code 3\. "):
        run_child([sys.executable, "-c", "import sys; sys.exit(3)"], {}, "Trying it", 20.0)
