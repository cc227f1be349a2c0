"""Unknown flags are answered with those that were meant, and errors are left to the caller."""

import pytest

from runtime.bench_flags import flag_parser as bench_parser
from runtime.chat_flags import flag_parser as chat_parser
from runtime.errors import UsageError
from runtime.parser import ELSEWHERE, likely, new_parser


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--temp", ["--temperature"]),
        ("--temprature", ["--temperature"]),
        ("--top", ["--top-k", "--top-p"]),
        ("--max-tokens", ["--max-new-tokens"]),
        ("--n-predict", ["--max-new-tokens"]),
        ("--ctx-size", ["--context-length"]),
        ("--context", ["--context-length"]),
        ("--system", ["--system-prompt"]),
        ("--repeat-penalty", ["--repetition-penalty"]),
        ("--model", []),
        ("--nonsense", []),
        ("--d", []),
        ("-n", []),
    ],
)
def test_what_was_meant(flag: str, meant: list[str]) -> None:
    known = [
        name
        for action in chat_parser()._actions
        for name in action.option_strings
        if name.startswith("--")
    ]
    assert likely(flag, known) == meant
    assert set(ELSEWHERE.values()) <= set(known)


@pytest.mark.parametrize("words", ["--temp 1", "--temp=1", "--json --temp 1"])
def test_the_error_says_what_was_meant(words: str) -> None:
    with pytest.raises(UsageError, match=r"arguments: --temp.*; did you mean --temperature\?\Z"):
        chat_parser().parse_args(words.split())


def test_each_program_knows_its_own_flags() -> None:
    with pytest.raises(UsageError, match=r"did you mean --prompts\?"):
        bench_parser().parse_args(["--prompt", "x"])
    with pytest.raises(UsageError, match=r'; a question is asked with --prompt "TEXT"\Z'):
        chat_parser().parse_args(["Why?", "--temp"])
    with pytest.raises(UsageError, match=r"arguments: Why\?\Z"):
        bench_parser().parse_args(["Why?"])


def test_flags_of_subcommands_are_known() -> None:
    parser = new_parser("program", "What it does.", "")
    parser.add_subparsers().add_parser("build").add_argument("--output")
    with pytest.raises(UsageError, match=r"did you mean --output\?"):
        parser.parse_args(["build", "--outputs", "x"])


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        new_parser("program", "What it does.", "").parse_args(["--version"])
    assert capsys.readouterr().out.startswith("program ")
