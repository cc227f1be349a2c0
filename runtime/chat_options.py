"""What the chat's command line asks for, and what of it is refused before a model loads."""

import dataclasses
import re
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.chat_flags import flag_parser, well_formed
from runtime.errors import UsageError
from runtime.sampling import Sampling
from runtime.whole_file import check_writable

# What goes to open_session under the flag's own name.
OPEN_SETTINGS = (
    "draft_model",
    "precision",
    "num_draft_tokens",
    "draft_tokens_per_pass",
    "num_siblings",
    "num_copied_tokens",
    "num_hypotheses",
    "hypothesis_sources",
    "after_miss",
    "context_length",
    "threads",
    "draft_threads",
    "device",
    "draft_device",
    "execution_provider",
    "draft_execution_provider",
    "ep_libraries",
    "provider_options",
    "draft_provider_options",
    "draft_time_limit_s",
    "allow_cpu_fallback",
    "cache_dir",
    "offline",
    "verify",
    "emulate",
    "time_scale",
)
OF_A_DRAFT_MODEL = (
    *("draft_model", "draft_tokens_per_pass"),
    *("draft_device", "draft_execution_provider", "draft_provider_options"),
)
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for; None where it left the choice to the bundle or the machine.

    `strategy` is the one to use, resolved from --strategy and --draft.
    """

    prompt: str | None
    system_prompt: str | None
    model: str
    draft_model: str | None
    precision: str | None
    draft: str | None
    strategy: str
    num_draft_tokens: int | None
    draft_tokens_per_pass: int | None
    num_siblings: int | None
    num_copied_tokens: int
    num_hypotheses: int | None
    hypothesis_sources: tuple[str, ...] | None
    after_miss: str | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None
    max_new_tokens: int | None
    stop: tuple[str, ...]
    context_length: int | None
    threads: int | None
    draft_threads: int | None
    device: str | None
    draft_device: str | None
    execution_provider: str | None
    draft_execution_provider: str | None
    ep_libraries: Mapping[str, str] | None
    provider_options: Mapping[str, str] | None
    draft_provider_options: Mapping[str, str] | None
    draft_time_limit_s: float | None
    allow_cpu_fallback: bool
    cache_dir: Path | None
    offline: bool
    verify: bool
    emulate: str | None
    time_scale: float | None
    stats: bool
    json: bool
    trace: Path | None

    def sampling(self, default: Sampling, *, seed: int) -> Sampling:
        """The bundle's `default` with the given flags in place, and `seed` unless given."""
        return chosen_sampling(dataclasses.replace(default, seed=seed), self)


def parse(argv: Sequence[str]) -> Options:
    """Read the flags; UsageError says which is wrong. --help and --version raise SystemExit(0)."""
    values = read_flags(flag_parser(), argv)
    explicit = values["strategy"]
    draft = values["draft"]
    if draft == "none" and explicit not in (None, "autoregressive"):
        raise UsageError(
            f"--strategy {explicit} needs a draft: leave out --draft none, "
            "or take --strategy autoregressive."
        )
    for flag in OF_A_DRAFT_MODEL:
        if values[flag] is not None and draft not in (None, "model"):
            raise UsageError(
                f"{flag_of(flag)} is for a draft model, but --draft {draft} uses none: drop one."
            )
    values["strategy"] = explicit or ("autoregressive" if draft == "none" else "auto")
    values["stop"] = tuple(values["stop"])
    for name in ("prompt", "system_prompt"):
        values[name] = None if values[name] is None else well_formed(values[name])
    options = Options(**values)
    # Refuses values out of range now, while nothing has been loaded.
    options.sampling(Sampling(), seed=0)
    if options.trace is not None:
        check_writable("--trace", options.trace)
    return options


def read_flags(parser: ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """The flags' values by name; UsageError for what cannot be read."""
    return vars(parser.parse_args(_with_hyphens(argv)))


def flag_of(name: str) -> str:
    """How the command line spells the flag of this name; repeatable ones lack its s."""
    return f"--{name.replace('_', '-').replace('-options', '-option')}"


def chosen_sampling(default: Sampling, flags: object) -> Sampling:
    """`default` with the attributes of `flags` that are not None in place; checks their ranges."""
    given = {name: getattr(flags, name) for name in SAMPLING}
    return dataclasses.replace(
        default, **{name: value for name, value in given.items() if value is not None}
    )


def _with_hyphens(argv: Sequence[str]) -> list[str]:
    """`argv` with the underscores in the names of long flags as hyphens; values stay."""
    flag = re.compile(r"\A--[A-Za-z][\w-]*(?==|\Z)")
    return [flag.sub(lambda name: name[0].replace("_", "-"), word) for word in argv]
