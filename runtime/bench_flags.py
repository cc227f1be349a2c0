"""The flags of the bench's command line, the help that teaches them, and what they ask for."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtime.bench_runs import Plan, Way
from runtime.chat_flags import (
    add_draft_lengths,
    add_limits,
    add_look_ahead,
    add_models,
    add_sampling,
    add_trace,
    integer,
)
from runtime.chat_options import (
    OF_A_DRAFT_MODEL,
    OPEN_SETTINGS,
    chosen_sampling,
    flag_of,
    read_flags,
)
from runtime.errors import UsageError
from runtime.parser import new_parser
from runtime.prompts import load_prompts, prompt_folder, select_prompts
from runtime.round_settings import (
    check_draft_tokens,
    check_planned,
    check_rounds,
    takes_hypotheses,
)
from runtime.sampling import Sampling
from runtime.whole_file import check_writable

PROGRAM = "mirror-bench"
WAYS = (
    Way("autoregressive", "none"),
    Way("speculative", "lookup"),
    Way("mirror", "lookup"),
    Way("speculative", "model"),
    Way("mirror", "model"),
    Way("auto", "lookup"),
    Way("auto", "model"),
)
DEFAULT_LIMIT = 12
DEFAULT_MAX_NEW_TOKENS = 64
# Flags that say which answers to make and what to write of them.
OF_ANSWERS = (
    *("strategies", "prompts", "category", "limit", "repeats", "warm_up", "max_new_tokens", "stop"),
    *("json", "trace", "plot"),
)
OF_ROUNDS = (
    *("num_draft_tokens", "num_siblings", "num_copied_tokens", "num_hypotheses"),
    "after_miss",
)
OTHER_SETS = ("forty.jsonl",)  # for checks: short questions of eight kinds
DESCRIPTION = """\
Measure strategies beside each other on this machine: each answers the same prompts with the
same seed, in turn, in one process. A table and a last line of JSON go to standard output,
progress to standard error.
"""
EPILOG = """examples:
  mirror-bench                                    all strategies, a dozen prompts, some minutes
  mirror-bench --strategies autoregressive,mirror:lookup --category summarization
  mirror-bench --prompts my.jsonl --max-new-tokens 128 --repeats 5 --json result.json
  mirror-bench -m my-model.gguf -md small.gguf --strategies autoregressive,mirror:model
  mirror-bench --calibrate                        what the models' calls cost here
  mirror-bench --limit 4 --repeats 1 | tail -n 1 | jq .strategies

columns:
  tokens/s           of a whole answer, reading the prompt included
  ratio              to the baseline's tokens/s in the same turn; the first strategy is the baseline
  ttft ms            from the question to the first token
  between tokens ms  p50 / p95 / p99 of the wait for the next token. The tokens of one round come
                     together: the first of them had the whole wait, the others none
  length             tokens a round; plain decoding has 1.00
  hits               rounds whose outcome the draft had guessed and drafted for (mirror)
  hidden             share of the draft's work done while the target ran
  equal              yes: token for token the baseline's answers. no: exit code 1

A line of a prompt file: {"question_id": 1, "category": "qa", "turns": ["Why?", "And then?"]},
perhaps with "reference", a list of texts. Turns are asked one after the other, each after the
answer to the one before. Ctrl-C prints what has been measured so far. Leave the machine alone
meanwhile. Exit codes: 0 done, 1 failed or not equal, 2 wrong usage, 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for; the first of `ways` is the baseline.

    `open`: settings for open_session, under its own names. `json`, `trace`, `plot`: a file to
    write, or None. `calibrate`: time the models' calls instead.
    """

    ways: tuple[Way, ...]
    model: str
    open: Mapping[str, Any]
    plan: Plan
    json: Path | None
    trace: Path | None
    plot: Path | None
    calibrate: bool = False


def flag_parser() -> argparse.ArgumentParser:
    """The parser; its errors are UsageError, --help and --version print and raise SystemExit(0)."""
    parser = new_parser(PROGRAM, DESCRIPTION, EPILOG)
    _add_measuring(parser.add_argument_group("what to measure"))
    add_models(parser.add_argument_group("models"))
    add_sampling(
        parser.add_argument_group("how to choose tokens", "Temperature 0 unless said otherwise."),
        seed="0",
    )
    limits = parser.add_argument_group("limits and machine")
    add_draft_lengths(limits)
    add_look_ahead(limits)
    add_limits(limits, max_new_tokens=DEFAULT_MAX_NEW_TOKENS)
    return parser


def parse(argv: Sequence[str]) -> Options:
    """Read flags and prompts; UsageError says what is wrong. --help raises SystemExit(0)."""
    parser = flag_parser()
    flags = argparse.Namespace(**read_flags(parser, argv))
    if flags.calibrate:
        _check_calibrates(parser, flags)
    for name in OF_A_DRAFT_MODEL:
        if getattr(flags, name) and all(way.draft != "model" for way in flags.strategies):
            raise UsageError(
                f"{flag_of(name)} is for a draft model, but no strategy uses one: drop one of them."
            )
    check_rounds(**{name: getattr(flags, name) for name in OF_ROUNDS})
    for way in flags.strategies:
        check_planned(
            way.strategy,
            num_copied_tokens=flags.num_copied_tokens,
            after_miss=flags.after_miss,
        )
    takers = [way for way in flags.strategies if takes_hypotheses(way.strategy, way.draft)]
    if flags.num_hypotheses is not None and not takers:
        raise UsageError(
            "--num-hypotheses is for mirror, and for auto with a draft model, and neither is "
            "measured: leave it out."
        )
    if flags.json is not None and not flags.json.absolute().parent.is_dir():
        raise UsageError(f"--json {flags.json}: there is no folder {flags.json.absolute().parent}.")
    if flags.plot is not None and all(way.draft == "none" for way in flags.strategies):
        raise UsageError("--plot draws a draft beside its target, but no strategy has a draft.")
    for flag, path in (("--trace", flags.trace), ("--plot", flags.plot)):
        if path is not None:
            check_writable(flag, path)
    limit = flags.limit
    if limit is None and not flags.prompts:
        limit = DEFAULT_LIMIT
    plan = Plan(
        select_prompts(
            load_prompts(*(flags.prompts or _own_sets())),
            categories=flags.category,
            limit=limit or None,
        ),
        chosen_sampling(Sampling(), flags),
        DEFAULT_MAX_NEW_TOKENS if flags.max_new_tokens is None else flags.max_new_tokens,
        tuple(flags.stop),
        flags.repeats,
        flags.warm_up,
    )
    settings = {name: getattr(flags, name) for name in OPEN_SETTINGS}
    return Options(
        flags.strategies,
        flags.model,
        settings,
        plan,
        flags.json,
        flags.trace,
        flags.plot,
        flags.calibrate,
    )


def _check_calibrates(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> None:
    """Raise UsageError for a flag that would be of no use."""
    if flags.emulate is not None or flags.time_scale is not None:
        raise UsageError("--calibrate times this machine, not an emulated one: drop one of them.")
    for name in (*OF_ANSWERS, *OF_ROUNDS):
        if getattr(flags, name) != parser.get_default(name):
            raise UsageError(
                f"--{name.replace('_', '-')} is for answers, and --calibrate makes none: drop one "
                "of them."
            )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--strategies",
        type=_ways,
        default=WAYS,
        metavar="LIST",
        help="strategies with their draft, and commas between them, the baseline first; a name "
        "alone has the draft model, and speculative:model:8 drafts 8 tokens a round "
        f"(default: {_spelled(WAYS)})",
    )
    group.add_argument(
        "--calibrate",
        action="store_true",
        help="time the calls of target and draft instead, in under a minute, and keep the "
        "figures for the planner",
    )
    group.add_argument(
        "--prompts",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="lines of JSON, see below; repeatable (default: the sets of this package)",
    )
    group.add_argument(
        "--category",
        action="append",
        default=[],
        metavar="NAME",
        help="only prompts of this kind; repeatable (default: all)",
    )
    group.add_argument(
        "--limit",
        type=integer(least=0),
        metavar="N",
        help="at most N prompts, taken from the categories in turn; 0: all (default: all of FILE, "
        f"{DEFAULT_LIMIT} of the package's sets)",
    )
    group.add_argument(
        "--repeats",
        type=integer(least=1),
        default=3,
        metavar="N",
        help="have every conversation N times (default: %(default)s)",
    )
    group.add_argument(
        "--warm-up",
        type=integer(least=0),
        default=1,
        metavar="N",
        help="conversations of each strategy before, not counted (default: %(default)s)",
    )
    group.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the JSON there too, and every answer with its tokens and metrics",
    )
    add_trace(group)
    group.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.svg",
        help="draw some rounds of an answer of each strategy that has a draft, both threads over "
        "time",
    )


def _ways(text: str) -> tuple[Way, ...]:
    ways: list[Way] = []
    for name in (part.strip() for part in text.split(",")):
        way = _way(name)
        if way in ways:
            raise argparse.ArgumentTypeError(f"{way} stands twice")
        ways.append(way)
    return tuple(ways)


def _way(name: str) -> Way:
    known = {str(way): way for way in WAYS}
    # A name alone means the draft that the chat takes unless told otherwise.
    known |= {way.strategy: way for way in WAYS if way.draft == "model"}
    spelled, _, count = name.rpartition(":")
    drafts = spelled in known and known[spelled].draft != "none"
    if drafts and count.isdecimal() and int(count):
        if known[spelled].strategy == "auto":
            raise argparse.ArgumentTypeError(
                f"{name!r}: auto chooses how many tokens to draft; leave the number out"
            )
        try:
            check_draft_tokens(int(count))
        except UsageError as error:
            raise argparse.ArgumentTypeError(f"{name!r}: {error}") from error
        return replace(known[spelled], num_draft_tokens=int(count))
    if name not in known:
        raise argparse.ArgumentTypeError(f"{name!r} is no strategy; there are {_spelled(WAYS)}")
    return known[name]


def _spelled(ways: Sequence[Way]) -> str:
    return ",".join(str(way) for way in ways)


def _own_sets() -> list[Path]:
    paths = sorted(prompt_folder().glob("*.jsonl"))
    return [path for path in paths if path.name not in OTHER_SETS]
