"""What a distillation is made of, with what is usual."""

from dataclasses import dataclass
from typing import Literal

Aim = Literal["kl", "sharp", "tv"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a distillation is; see `python -m export distill --help` for each.

    layers: the target's layers to begin as; empty to find `depth` of them.
    """

    target: str
    prompts: int = 4608
    begun: int = 768
    max_new_tokens: int = 224
    context: int = 768
    precision: str = "int8"
    layers: tuple[int, ...] = ()
    depth: int = 15
    head_width: int = 16384
    tokens_per_pass: int = 5
    tokens: int = 4_000_000
    batch_tokens: int = 4096
    rate: float = 1e-3
    blocks: float = 0.1
    aim: Aim = "kl"
    lenses: tuple[int, ...] = ()
    lens_tokens: int = 200_000
    seed: int = 0
