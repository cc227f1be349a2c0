"""The ways to write a text that have to give the same one: every factor and its values."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.hypotheses import SOURCES, Source
from runtime.sampling import Sampling
from scripts.equality.pairs import pairwise, product

DRAFTS = ("model", "model one by one", "lookup", "wrong", "runner-up", "random")
# How many leaves stand beside a trunk, and tokens of a chain that prompt lookup copies.
SHAPES: Mapping[str, tuple[int, int]] = {
    "chain": (0, 0),
    "2 siblings": (2, 0),
    "6 siblings": (6, 0),
    "7 copied": (0, 7),
}
OWN_SOURCES: tuple[Source, ...] = ("bonus", "runner-ups", "masks")  # the draft's
SAMPLINGS = (
    Sampling(),
    Sampling(0.8),
    Sampling(0.8, top_k=50),
    Sampling(0.8, top_p=0.9),
    Sampling(0.8, top_k=50, top_p=0.9, repetition_penalty=1.1),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to write a text.

    strategy: "planned" is auto with its planner, "dice" auto with rounds that are chosen at random.
    draft: the bundle's model with as many tokens a pass as it was trained for, or with one; prompt
    lookup; or tokens that are always wrong, wrong with the right one as runner-up, or random.
    shape: a key of SHAPES. redraft: what follows a miss of a mirror. early_exit: the target is in
    two graphs.
    """

    strategy: str
    draft: str = "model"
    num_draft_tokens: int = 4
    sources: tuple[Source, ...] = ()
    num_hypotheses: int = 0
    redraft: bool | None = None
    shape: str = "chain"
    early_exit: bool = False
    sampling: Sampling = SAMPLINGS[0]

    def values(self) -> dict[str, str]:
        """Each factor's value, in words."""
        return {
            "strategy": self.strategy,
            "draft": self.draft,
            "draft tokens": str(self.num_draft_tokens),
            "sources": ", ".join(self.sources) or "none",
            "hypotheses": str(self.num_hypotheses),
            "after a miss": {None: "none", True: "redraft", False: "verify"}[self.redraft],
            "shape": self.shape,
            "early exit": "on" if self.early_exit else "off",
            "sampling": in_words(self.sampling),
        }

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.values().items())


ALONE = Setting("autoregressive", "none", 0)

FACTORS = (
    ("speculative", "mirror", "dice", "planned"),
    DRAFTS,
    (1, 3, 7),
    ((), *((source,) for source in SOURCES), OWN_SOURCES, SOURCES),
    (0, 1, 4, 16),
    (True, False, None),
    tuple(SHAPES),
    (False, True),
    SAMPLINGS,
)


def allowed(
    strategy: str,
    _draft: str,
    _num_draft_tokens: int,
    sources: tuple[Source, ...],
    num_hypotheses: int,
    redraft: bool | None,  # noqa: FBT001  # a value of a factor
    shape: str,
    early_exit: bool,  # noqa: FBT001
    *_: object,
) -> bool:
    """Whether the values mean something together.

    Plain speculation has no hypotheses, only a mirror has a way to go on after a miss, a planned
    round copies instead of a proposal, and an exit names something only where there is one.
    """
    followed, misses = strategy != "speculative", strategy == "mirror"
    if ("exit" in sources and not early_exit) or (
        SHAPES[shape][1] and strategy in ("dice", "planned")
    ):
        return False
    return bool(sources) == bool(num_hypotheses) == followed and (redraft is not None) == misses


def every() -> list[Setting]:
    """All settings in an order that mixes them, so that a share of it has something of all."""
    settings = [Setting(*values) for values in product(*FACTORS, allowed=allowed)]
    random.Random(1).shuffle(settings)
    return settings


def by_pairs() -> list[Setting]:
    """Few settings in which any two values meet that can."""
    return [Setting(*values) for values in pairwise(*FACTORS, allowed=allowed)]


def in_words(sampling: Sampling) -> str:
    """The temperature, and the filters that are on."""
    words = [f"T={sampling.temperature:g}"]
    words += [f"top-k {sampling.top_k}"] * (sampling.top_k > 0)
    words += [f"top-p {sampling.top_p:g}"] * (sampling.top_p < 1)
    words += [f"penalty {sampling.repetition_penalty:g}"] * (sampling.repetition_penalty != 1)
    return " ".join(words)
