"""What the chat's command line asks for, and what of it is refused before a model loads."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.chat_flags import flag_parser, well_formed
from runtime.errors import UsageError
from runtime.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for; None where it left the choice to the bundle or the machine.

    `strategy` is the one to use, resolved from --strategy and --draft.
    """

    prompt: str | None
    system_prompt: str | None
    model: str
    draft_model: str | None
    precision: str
    draft: str
    strategy: str
    num_draft_tokens: int
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
    device: str
    draft_device: str
    cache_dir: Path | None
    offline: bool
    stats: bool
    json: bool

    def sampling(self, default: Sampling, *, seed: int) -> Sampling:
        """The bundle's `default` with the given flags in place, and `seed` unless given."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return dataclasses.replace(default, **{"seed": seed, **given})


def parse(argv: Sequence[str]) -> Options:
    """Read the flags; UsageError says which is wrong. --help and --version raise SystemExit(0)."""
    values = vars(flag_parser().parse_args(_with_hyphens(argv)))
    explicit = values["strategy"]
    draft = values["draft"]
    if draft == "none" and explicit not in (None, "autoregressive"):
        raise UsageError(
            f"--strategy {explicit} needs a draft: leave out --draft none, "
            "or take --strategy autoregressive."
        )
    if values["draft_model"] is not None and draft != "model":
        raise UsageError(f"--draft-model names a model, but --draft {draft} uses none: drop one.")
    for name in ("device", "draft_device"):
        if values[name].upper() != "CPU":
            raise UsageError(
                f"--{name.replace('_', '-')} {values[name]}: this version runs on the CPU only; "
                "leave the flag out, or say CPU."
            )
        values[name] = "CPU"
    values["strategy"] = explicit or ("autoregressive" if draft == "none" else "mirror")
    values["stop"] = tuple(values["stop"])
    for name in ("prompt", "system_prompt"):
        values[name] = None if values[name] is None else well_formed(values[name])
    options = Options(**values)
    # Refuses values out of range now, while nothing has been loaded.
    options.sampling(Sampling(), seed=0)
    return options


def _with_hyphens(argv: Sequence[str]) -> list[str]:
    """`argv` with the underscores in the names of long flags as hyphens; values stay."""
    flag = re.compile(r"\A--[A-Za-z][\w-]*(?==|\Z)")
    return [flag.sub(lambda name: name[0].replace("_", "-"), word) for word in argv]
