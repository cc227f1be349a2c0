"""What a distillation is made of, with what is usual."""

import math
from dataclasses import dataclass
from typing import Literal

from runtime.errors import UsageError
from runtime.manifest import MOST_TOKENS_PER_PASS

Aim = Literal["kl", "sharp", "tv"]
Optimizer = Literal["adamw", "muon"]

TOP = 5  # a student's first choices that are looked at
LEAST = {
    "prompts": 0,
    "begun": 0,
    "max_new_tokens": 1,
    "context": 2,
    "depth": 1,
    "head_width": TOP,
    "tokens_per_pass": 1,
    "tokens": 0,
    "held_out": 1,
    "batch_tokens": 1,
    "rate": 0,
    "masks_from": 0,
    "blocks": 0,
    "mask_weight": 0,
    "lens_tokens": 1,
    "seed": 0,
}
MOST = {
    "tokens_per_pass": MOST_TOKENS_PER_PASS,
    "rate": 1,
    "masks_from": 1,
    "blocks": 1,
    "seed": 1 << 32,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a distillation is; see `python -m export distill --help` for each.

    layers: the target's layers to begin as; empty to find `depth` of them. depth: None for half of
    the target's, or all of an earlier draft's. Raises UsageError for what no target can have.
    """

    target: str
    prompts: int = 4608
    begun: int = 768
    held_out: int = 120
    max_new_tokens: int = 224
    context: int = 768
    precision: str = "int8"
    layers: tuple[int, ...] = ()
    depth: int | None = None
    head_width: int = 16384
    tokens_per_pass: int = 5
    tokens: int = 4_000_000
    batch_tokens: int = 2048
    optimizer: Optimizer = "adamw"
    rate: float = 1.5e-3
    masks_from: float = 0.6
    blocks: float = 0.15
    mask_weight: float = 3.0
    aim: Aim = "kl"
    lenses: tuple[int, ...] = ()
    lens_tokens: int = 200_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value, most = getattr(self, name), MOST.get(name, math.inf)
            if value is not None and not least <= value <= most:
                bounds = f"{least} to {most}" if name in MOST else f"{least} or more"
                raise UsageError(f"{_flag(name)} is {value}; it must be {bounds}.")
        for name in ("layers", "lenses"):
            numbers: tuple[int, ...] = getattr(self, name)
            if list(numbers) != sorted(set(numbers)) or min(numbers, default=0) < 0:
                raise UsageError(f"{_flag(name)} must be numbers from 0 up, in ascending order.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
