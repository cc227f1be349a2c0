"""Ways of decoding with their settings, made for replays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from runtime.auto import Auto
from runtime.calibration import UNMEASURED
from runtime.limits import SIBLINGS
from runtime.planner import Planner
from runtime.profiles import Profile
from runtime.strategy import Mirror, Speculative
from runtime.virtual_time import VirtualTiming
from runtime.worker import DraftWorker
from scripts.emulated.records import Record
from scripts.emulated.replay import MakeStrategy, Replayed, replay

LENGTHS = (1, 2, 4, 8)
USUAL_HYPOTHESES = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """A fixed way: `length` draft tokens, 0 for none; `hypotheses` followed, 0: the draft rests."""

    length: int = 0
    hypotheses: int = 0
    redraft: bool = True
    draft: Literal["model", "lookup"] = "model"

    @property
    def name(self) -> str:
        """Of the strategy."""
        if not self.length:
            return "autoregressive"
        return "mirror" if self.hypotheses else "speculative"

    @property
    def way(self) -> str:
        """As the bench spells it."""
        return f"{self.name}:{self.draft}:{self.length}" if self.length else self.name

    def __str__(self) -> str:
        """What a table says of it."""
        beside = f", B {self.hypotheses}" if self.hypotheses else ""
        return f"γ {self.length}{beside}{'' if self.redraft else ', bare'}"

    @property
    def make(self) -> MakeStrategy | None:
        """What makes it."""
        if not self.length:
            return None
        if not self.hypotheses:
            return partial(Speculative, num_draft_tokens=self.length)
        return partial(
            Mirror,
            num_draft_tokens=self.length,
            num_hypotheses=self.hypotheses,
            redraft=self.redraft,
        )


PLAIN = Setting()


def fixed_ways() -> list[Setting]:
    """Those that `auto` is never to be slower than."""
    return [
        PLAIN,
        *(
            Setting(length, hypotheses, draft=draft)
            for hypotheses in (0, USUAL_HYPOTHESES)
            for draft in ("lookup", "model")
            for length in LENGTHS
        ),
    ]


class Planned:
    """Makes the strategy `auto`, text after text with one planner that knows nothing at first."""

    def __init__(self, tokens_per_pass: int) -> None:
        """A pass of the draft gives so many tokens."""
        self._tokens_per_pass = tokens_per_pass
        self.planner = Planner(
            replace(UNMEASURED, tokens_per_pass=tokens_per_pass), siblings=SIBLINGS
        )

    def __call__(self, worker: DraftWorker) -> Auto:
        """The strategy for the next text."""
        return Auto(worker, self.planner, tokens_per_pass=self._tokens_per_pass)


def replays(profile: Profile, records: Sequence[Record], setting: Setting) -> list[Replayed]:
    """Each answer by a fixed way."""
    return [replay(of, VirtualTiming(profile), setting.make, draft=setting.draft) for of in records]


def planned(profile: Profile, records: Sequence[Record]) -> list[Replayed]:
    """Each answer by `auto`, whose planner learns from the first on."""
    make = Planned(records[0].guesses.shape[1])
    return [replay(of, VirtualTiming(profile), make) for of in records]
