import io
import os
from pathlib import Path

import pytest

from runtime.command_line import exit_code, flush, readied
from runtime.errors import BundleError, ContextError, UsageError


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (UsageError("No such flag."), 2, ["prog: No such flag."]),
        (ContextError("Too long."), 2, ["prog: Too long."]),
        (BundleError("Damaged."), 1, ["prog: Damaged."]),
        (OSError("Disk full."), 1, ["prog: Disk full."]),
        (KeyboardInterrupt(), 130, ["Interrupted."]),
        (KeyboardInterrupt("told"), 130, []),
        (BrokenPipeError(), 0, []),
    ],
)
def test_expected_errors_are_sentences(raised: BaseException, code: int, said: list[str]) -> None:
    def work() -> int:
        raise raised

    heard: list[str] = []
    assert exit_code("prog", work, heard.append) == code
    assert heard == said


def test_other_errors_pass_and_codes_stay() -> None:
    def broken() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exit_code("prog", broken, print)
    assert exit_code("prog", lambda: 7, print) == 7


def test_streams_carry_everything_or_nothing() -> None:
    raw = io.BytesIO()
    stream = readied(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("é\ud83d")
    stream.flush()
    assert raw.getvalue() == "é?".encode()
    assert readied(None).write("lost") == 4


def test_a_reader_that_is_gone_is_no_error_at_the_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone, (tmp_path / "kept").open("w+") as kept:
        gone.write("unheard")
        kept.write("heard")
        flush(gone, kept)
        kept.seek(0)
        assert kept.read() == "heard"
