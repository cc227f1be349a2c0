"""The flags of the doctor's command line and the help that teaches them."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.chat_flags import add_models, integer
from runtime.chat_options import read_flags
from runtime.device_flags import add_devices
from runtime.errors import UsageError
from runtime.parser import new_parser

PROGRAM = "mirror-doctor"
TIME_LIMIT_S, LONG_LIMIT_S = 55, 600
TOKENS = 16
OF_A_MODEL = ("draft_model", "precision", "verify", "context_length", "report")
DESCRIPTION = """\
Say what is here to run models on: the machine, every execution provider, its devices, and whether a
small graph runs right on each. With --model also which part of a bundle would run where, whether it
fits, and whether it answers there as on the CPU. The exit code says whether the pair that the
device flags ask for can run. What a provider might crash is tried in processes of their own.
"""
EPILOG = """examples:
  mirror-doctor                                   all there is; no model is needed
  mirror-doctor --device GPU --draft-device NPU   can this pair run?
  mirror-doctor -m smollm2-135m --device GPU --draft-device NPU
  mirror-doctor -m my-model.gguf --draft-execution-provider QNN --time-limit 600
  mirror-doctor --json | jq '.providers[].devices[] | select(.smoke.verdict == "right")'
  mirror-doctor -m my-bundle -e OpenVINO --report --tokens 64

What is asked for goes to standard output, progress to standard error. docs/doctor.md explains both
forms. Exit codes: 0 the pair can run (with no device asked for: on the CPU), 1 it cannot, or
something failed, 2 wrong usage, 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for; `asked`: by role, what `places.find_places` takes of it.

    `model`: None for none. `tokens`: how many a row of the report is about.
    """

    model: str | None
    draft_model: str | None
    precision: str | None
    cache_dir: Path | None
    offline: bool
    verify: bool
    context_length: int | None
    asked: Mapping[str, Mapping[str, Any]]
    ep_libraries: Mapping[str, str] | None
    allow_cpu_fallback: bool
    json: bool
    report: bool
    tokens: int
    time_limit_s: float


def flag_parser() -> argparse.ArgumentParser:
    """The parser; its errors are UsageError, --help and --version print and raise SystemExit(0)."""
    parser = new_parser(PROGRAM, DESCRIPTION, EPILOG)
    models = parser.add_argument_group("models")
    add_models(models, default=None)
    models.add_argument(
        "--context-length",
        type=integer(least=2),
        metavar="N",
        help="tokens held, for the memory that is needed (default: the model's)",
    )
    add_devices(parser.add_argument_group("the pair that is to run"))
    _add_output(parser.add_argument_group("what to tell"))
    return parser


def parse(argv: Sequence[str]) -> Options:
    """Read the flags; UsageError says which is wrong. --help and --version raise SystemExit(0)."""
    values = read_flags(flag_parser(), argv)
    if values["model"] is None:
        for name in OF_A_MODEL:
            if values[name]:
                raise UsageError(
                    f"--{name.replace('_', '-')} is about a model: name one with --model."
                )
    if values["report"] and values["json"]:
        raise UsageError("--report and --json are two forms of one output: drop one of them.")
    if values["tokens"] is not None and not values["report"]:
        raise UsageError("--tokens is for the rows of --report: add that, or drop it.")
    values["tokens"] = values["tokens"] or TOKENS
    asked = {
        role: {
            name: values.pop(f"{start}{name}")
            for name in ("device", "execution_provider", "provider_options")
        }
        for role, start in (("target", ""), ("draft", "draft_"))
    }
    return Options(asked=asked, time_limit_s=float(values.pop("time_limit")), **values)


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json", action="store_true", help="one JSON document instead, see docs/doctor.md"
    )
    group.add_argument(
        "--report",
        action="store_true",
        help="rows for the table in docs/providers.md instead: one for every graph of the bundle "
        "that the device takes (of one precision with --precision), tried beside the CPU; for the "
        "models whose device or provider was named, else for the target",
    )
    group.add_argument(
        "--tokens",
        type=integer(least=1),
        metavar="N",
        help="with --report: greedy tokens that are compared; each costs a call on the device and "
        f"one on the CPU, which may be seconds where software plays a device (default: {TOKENS})",
    )
    group.add_argument(
        "--time-limit",
        type=integer(least=1),
        default=TIME_LIMIT_S,
        metavar="SECONDS",
        help="for each thing that is tried; compiling a model for a device may need more, a small "
        "graph never gets more than 59 (default: %(default)s)",
    )
