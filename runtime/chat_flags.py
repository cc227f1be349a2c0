"""The flags of the chat's command line and the help that teaches them."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from runtime.device_flags import add_devices
from runtime.parser import new_parser

PROGRAM = "mirror-chat"
STRATEGIES = ("auto", "autoregressive", "speculative", "mirror")
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_MAX_NEW_TOKENS = 512
DESCRIPTION = """\
Chat with a language model on this machine, a draft model at work beside it. Without
--prompt, and with a terminal for input, a conversation opens; text piped in is one question.
"""
EPILOG = r"""examples:
  mirror-chat                                     chat; the first start builds the model
  mirror-chat --prompt "What is the capital of France?"
  git diff | mirror-chat --system-prompt "Summarise this change in one sentence."
  mirror-chat -m ./my-model.gguf --draft lookup   your own model, no draft model
  mirror-chat -t 0.7 -p 0.9 --seed 7 --stats      sample, repeatably, and show what it took
  mirror-chat --prompt Hello --json | jq .metrics

The draft changes how fast an answer comes, never what it says. In the chat, /help lists the
commands, Ctrl-C stops an answer and Ctrl-D leaves. Flags may be spelled with hyphens or
underscores. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


def flag_parser() -> argparse.ArgumentParser:
    """The parser; its errors are UsageError, --help and --version print and raise SystemExit(0)."""
    parser = new_parser(PROGRAM, DESCRIPTION, EPILOG)
    _add_question(parser.add_argument_group("what to ask"))
    add_models(parser.add_argument_group("models"))
    _add_draft(parser.add_argument_group("how to generate (speed only, never the text)"))
    add_sampling(
        parser.add_argument_group(
            "how to choose tokens", "Defaults are the bundle's own; --stats prints those in use."
        ),
        seed="drawn, and printed on standard error",
    )
    add_limits(
        parser.add_argument_group("limits and machine"), max_new_tokens=DEFAULT_MAX_NEW_TOKENS
    )
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_question(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prompt",
        metavar="TEXT",
        help='one question; standard input is then not read, unless TEXT is "-": that reads the '
        "question from there",
    )
    group.add_argument("--system-prompt", metavar="TEXT", help="instructions for every answer")


def add_models(group: argparse._ArgumentGroup, *, default: str | None = DEFAULT_MODEL) -> None:
    """What is run, where built bundles lie, and whether anything may be fetched."""
    group.add_argument(
        "-m",
        "--model",
        default=default,
        metavar="MODEL",
        help="a recipe's name, a bundle folder, or a GGUF file; recipes and GGUF files are built "
        f"on first use (default: {default or 'none'})",
    )
    group.add_argument(
        "-md",
        "--draft-model",
        metavar="MODEL",
        help="a draft model, named the same way (default: the bundle's own)",
    )
    group.add_argument(
        "--precision",
        choices=("fp32", "int8", "fp16", "int4"),
        help="of the target's weights; fp16 and int4 must have been built into the bundle "
        "(default: int8 on the CPU provider, on others what suits them best)",
    )
    group.add_argument(
        "--cache-dir", type=Path, metavar="FOLDER", help="where built bundles and history are kept"
    )
    group.add_argument("--offline", action="store_true", help="never download; say what is missing")
    group.add_argument(
        "--verify",
        action="store_true",
        help="hash every file of the bundle, also those unchanged since the last time",
    )


def _add_draft(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--draft",
        choices=("none", "lookup", "model"),
        help="who guesses ahead: no one, n-grams of the text so far, or a model "
        "(default: model, but none where there is none or memory is short)",
    )
    group.add_argument(
        "--strategy",
        choices=STRATEGIES,
        help="plain decoding; draft, then verify; draft while the target verifies; or, round by "
        "round, what costs and text let expect most of: --stats says what that was "
        "(default: auto; autoregressive with --draft none)",
    )
    add_draft_lengths(group)
    add_look_ahead(group)


def add_draft_lengths(group: argparse._ArgumentGroup) -> None:
    """How far a guess goes, and a pass of the draft."""
    group.add_argument(
        "--num-draft-tokens",
        type=integer(least=1),
        metavar="N",
        help="length of a guess (default: 4, in mirror one less than a pass of several gives); in "
        "auto the longest that it may choose (default: 8)",
    )
    group.add_argument(
        "--draft-tokens-per-pass",
        type=integer(least=1),
        metavar="N",
        help="tokens that a pass of the draft model gives, at most as many as it was trained for "
        "(default: that many)",
    )


def add_look_ahead(group: argparse._ArgumentGroup) -> None:
    """What the draft does while the target verifies."""
    group.add_argument(
        "--num-siblings",
        type=integer(least=0),
        metavar="N",
        help="second choices of the draft that are verified beside its first, as leaves of a tree "
        "(default: 0); in auto the most that it may choose (default: 4)",
    )
    group.add_argument(
        "--num-copied-tokens",
        type=integer(least=0),
        default=0,
        metavar="N",
        help="and tokens that followed where the last two stood before, as a second branch; not in "
        "auto (default: %(default)s)",
    )
    group.add_argument(
        "--num-hypotheses",
        type=integer(least=0),
        metavar="B",
        help="outcomes of a round that the draft follows in mirror, all in one pass where it gives "
        "several tokens in one (default: 8); in auto the most that it may choose (default: 16)",
    )
    group.add_argument(
        "--hypothesis-sources",
        type=lambda text: tuple(name.strip() for name in text.split(",")),
        metavar="LIST",
        help="where they come from, with commas between: bonus (the draft's next word after a "
        "whole acceptance), runner-ups (its second choices), masks (any token at a place), exit "
        "(what the target leans to after its first layers, of a bundle built with an early exit) "
        "(default: bonus,runner-ups)",
    )
    group.add_argument(
        "--after-miss",
        choices=("redraft", "verify"),
        help="when none of them came true: wait for a new draft, or verify the pending token alone "
        "while the draft works; not in auto, which weighs the two (default: redraft)",
    )


def add_sampling(group: argparse._ArgumentGroup, *, seed: str) -> None:
    """How tokens are chosen and where a text ends; `seed` says what its default is."""
    group.add_argument(
        "-t", "--temperature", type=_real, metavar="T", help="0 takes the likeliest token"
    )
    group.add_argument(
        "-k", "--top-k", type=integer(), metavar="K", help="keep K tokens; 0 keeps all"
    )
    group.add_argument(
        "-p", "--top-p", type=_real, metavar="P", help="keep the likeliest with this total; 1: all"
    )
    group.add_argument(
        "--min-p",
        type=_real,
        metavar="P",
        help="drop what is below this share of the likeliest; 0: off",
    )
    group.add_argument(
        "--repetition-penalty", type=_real, metavar="R", help="above 1 discourages repeats; 1: off"
    )
    group.add_argument(
        "--seed",
        type=integer(),
        metavar="N",
        help=f"repeats an answer (default: {seed})",
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        type=_stop,
        metavar="TEXT",
        help=r"end the answer before TEXT; repeatable; \n, \t and \\ are understood",
    )


def add_limits(group: argparse._ArgumentGroup, *, max_new_tokens: int) -> None:
    """Lengths, threads, devices, providers; `max_new_tokens` is the default that its help names."""
    positive = integer(least=1)
    group.add_argument(
        "--max-new-tokens",
        type=integer(least=0),
        metavar="N",
        help=f"length of an answer (default: {max_new_tokens})",
    )
    group.add_argument(
        "--context-length", type=positive, metavar="N", help="tokens held (default: the model's)"
    )
    group.add_argument("--threads", type=positive, metavar="N", help="of the target")
    group.add_argument("--draft-threads", type=positive, metavar="N", help="of the draft")
    add_devices(group)
    group.add_argument(
        "--draft-time-limit-s",
        type=_real,
        metavar="S",
        help="drop a draft that gives no answer for so many seconds; a fresh one takes over "
        "(default: 5, and 300 where software plays its device)",
    )
    group.add_argument(
        "--emulate",
        metavar="PROFILE",
        help="give every call the time it would take on the devices of this profile, a name (such "
        "as lunar-lake-igpu-npu) or a JSON file; every time shown is emulated then",
    )
    group.add_argument(
        "--time-scale",
        type=_real,
        metavar="X",
        help="with --emulate: how many times slower time goes here, so that the computing fits "
        "(default: measured)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--stats", action="store_true", help="after each answer, settings and metrics on stderr"
    )
    group.add_argument(
        "--json",
        action="store_true",
        help="one line per answer, with text, tokens, finish_reason and metrics",
    )
    add_trace(group)


def add_trace(group: argparse._ArgumentGroup) -> None:
    """Where to write what both threads did."""
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write what both threads did, and when, in the Chrome trace format",
    )


def well_formed(text: str) -> str:
    """`text` as UTF-8 can carry it: bytes the terminal's encoding did not know are read again."""
    try:
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        content = text.encode("utf-8", "surrogatepass")
    return content.decode("utf-8", "replace")


def integer(*, least: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers for argparse, which refuses those below `least`."""

    def read(text: str) -> int:
        what = "a whole number" if least is None else f"a whole number, {least} or more"
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"{text} is not {what}")
        return value

    return read


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _stop(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty text would end every answer at once")
    escapes = {"n": "\n", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nt\\])", lambda escape: escapes[escape[1]], well_formed(text))
