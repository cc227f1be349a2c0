"""Which strategy a session's models run, and what plans for the one that is planned."""

from dataclasses import replace
from typing import Any

from runtime.auto import Auto
from runtime.calibrating import Pair
from runtime.calibration import UNMEASURED, UNMEASURED_IN_TURN, read_costs
from runtime.costs import Costs
from runtime.limits import Limits, exits_of, limits_of
from runtime.models import Models
from runtime.planner import Planner
from runtime.strategy import Autoregressive, Mirror, Speculative, Strategy
from runtime.ways import Source

FIRST_USE = 20.0  # rounds; 0.3 s beside 16 ms in docs/log.md: weights are read, buffers bound
CHILL = 1.3  # on one processor; 9.0 ms became 12.9 in docs/log.md, of the target's call alone


class Strategies:
    """Makes strategies of models that were prepared for them; one planner serves all texts.

    There is another for other limits, as a session's can be changed.
    """

    def __init__(self, models: Models) -> None:
        """A planner is made when it is first needed."""
        self._models = models
        self._planners: dict[Limits, Planner] = {}

    @property
    def limits(self) -> Limits:
        """Of what is planned."""
        models = self._models
        return limits_of(models.settings, has_trees=models.exactness.kind == "bitwise")

    def rounds(self, name: str) -> dict[str, Any]:
        """What rounds of that strategy are like, by the names of settings.

        Of `auto` the most it may choose, and None for what it weighs itself.
        """
        models, settings = self._models, self._models.settings
        if name == "auto":
            limits = self.limits
            return {
                "num_draft_tokens": limits.num_draft_tokens,
                "num_siblings": limits.siblings[-1],
                "num_copied_tokens": 0,
                "num_hypotheses": max(limits.hypotheses, default=0),
                "after_miss": None,
            }
        return {
            "num_draft_tokens": models.num_draft_tokens,
            "num_siblings": settings.num_siblings or 0,
            "num_copied_tokens": settings.num_copied_tokens,
            "num_hypotheses": models.num_hypotheses,
            "after_miss": settings.after_miss or "redraft",
        }

    def make(self, name: str) -> Strategy:
        """The strategy of that name; plain decoding where there is no draft."""
        models, settings = self._models, self._models.settings
        if models.early_exit is not None:
            models.early_exit.tell(None)  # the strategy before may have listened
        if name == "autoregressive" or models.worker is None:
            return Autoregressive()
        worker, in_turn = models.worker, models.layout.sharing == "in turn"
        if name == "auto":
            return Auto(
                worker,
                self._plan(),
                tokens_per_pass=models.draft_tokens_per_pass or 1,
                in_turn=in_turn,
                most_copied=self.limits.num_draft_tokens,
                sources=settings.hypothesis_sources,
                early_exit=models.early_exit,
            )
        if name == "mirror":
            return Mirror(
                worker,
                num_draft_tokens=models.num_draft_tokens,
                num_hypotheses=models.num_hypotheses,
                num_siblings=settings.num_siblings or 0,
                num_copied_tokens=settings.num_copied_tokens,
                sources=settings.hypothesis_sources,
                early_exit=models.early_exit,
                redraft=settings.after_miss != "verify",
            )
        return Speculative(
            worker,
            num_draft_tokens=models.num_draft_tokens,
            num_siblings=settings.num_siblings or 0,
            num_copied_tokens=settings.num_copied_tokens,
            in_turn=in_turn,
            one_pass=models.one_pass,
        )

    def _plan(self) -> Planner:
        """The planner, which goes by what it learned in the texts before."""
        limits = self.limits
        if limits not in self._planners:
            models = self._models
            in_turn = models.layout.sharing == "in turn"
            sources: tuple[Source, ...] = ("lookup",)
            if models.draft == "model":
                sources = ("lookup", "model")
            self._planners[limits] = Planner(
                self._known_costs(),
                sources=sources,
                most_draft_tokens=limits.num_draft_tokens,
                hypotheses=limits.hypotheses,
                siblings=limits.siblings,
                exits=exits_of(models.settings.hypothesis_sources),
                chill=CHILL if in_turn else 1.0,
                first_use=FIRST_USE if in_turn else 0.0,
            )
        return self._planners[limits]

    def _known_costs(self) -> Costs:
        """What was calibrated for these models here, else cautious proportions."""
        models, settings = self._models, self._models.settings
        pair = Pair(
            models.manifest,
            models.draft_manifest if models.draft == "model" else None,
            models.precision,
            settings.place,
            settings.draft_place,
            settings.threads,
            settings.draft_threads,
            settings.draft_tokens_per_pass,
        )
        known = None
        if models.devices is None:  # else the clock is another one
            known = read_costs(
                pair.costs_path(models.probes, models.layout), has_draft=pair.draft is not None
            )
        unknown = UNMEASURED_IN_TURN if models.layout.sharing == "in turn" else UNMEASURED
        return known or replace(unknown, tokens_per_pass=models.draft_tokens_per_pass or 1)
