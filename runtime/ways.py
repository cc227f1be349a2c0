"""The ways in which a text can go on: what a round of each takes, gives and promises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Literal

from runtime.chances import Chances
from runtime.costs import (
    Costs,
    Hits,
    Stage,
    autoregressive_s,
    bare_s,
    drafting_s,
    expected_tokens,
    hit_s,
    is_open,
    lookup_s,
    tokens_per_second,
)
from runtime.estimates import Estimates
from runtime.following import Following

Source = Literal["none", "lookup", "model"]
Kind = Literal["autoregressive", "lookup", "speculative", "mirror"]
Shape = tuple[int, ...]  # of a mirror: hypotheses, length, leaves, the exit's part

KINDS: Mapping[Source, Kind] = {
    "none": "autoregressive",
    "lookup": "lookup",
    "model": "speculative",
}
BARE = 0  # hypotheses of a mirror's round without a proposal: the draft's first choice is its one
HYPOTHESES = (1, 2, 4, 8, 16)
NO_EXIT, ALL, HALF = 0, 1, 2  # hypotheses that the early exit names: none, or one of so many
HOPE = 1.0  # standard deviations that may be hoped for


@dataclass(frozen=True, slots=True)
class Choice:
    """What the next round is to be.

    source: who proposes; "none": only the pending token is verified. num_draft_tokens: the length
    of a proposal, and of what the draft makes meanwhile. num_hypotheses: 0 lets the draft rest
    while the target verifies. siblings: runner-ups put beside the trunk as leaves. of_exit: how
    many of the hypotheses the target's early exit names.
    """

    source: Source
    num_draft_tokens: int = 0
    num_hypotheses: int = 0
    siblings: int = 0
    of_exit: int = 0

    @property
    def kind(self) -> Kind:
        """The way of decoding that the round is part of; a mirror's may verify a bare token."""
        if self.num_hypotheses:
            return "mirror"
        return KINDS[self.source]

    @property
    def timed_as(self) -> str:
        """What the times of such rounds are followed by: its kind, and whether the exit is read."""
        return timed_as(has_exit=True) if self.of_exit else self.kind


def timed_as(*, has_exit: bool) -> str:
    """Of a mirror."""
    return "mirror, exit" if has_exit else "mirror"


NOTHING = Choice("none")


@dataclass(frozen=True, slots=True)
class Round:
    """What a round was; times in seconds.

    proposed, accepted: of the trunk; nodes: with the leaves. leaf: one of them stood as well.
    rank: see `Estimates.learn_model`; where a leaf stood, its own. hit: whether the outcome was
    among the hypotheses; None without any. match_length: of the text behind which lookup copied.
    by_exit: and among those that the exit named. drafted, ahead, late, after: rows of the draft's
    passes before the target's run, beside it, beside it as the exit fed them, and after it.
    draft_s: of them all. reading_s: what the draft read first took, while the target waited.
    """

    choice: Choice
    seconds: float
    target_s: float
    nodes: int = 0
    proposed: int = 0
    accepted: int = 0
    leaf: bool = False
    rank: int | None = None
    hit: bool | None = None
    match_length: int = 0
    draft_s: float = 0.0
    is_shared: bool = False
    drafted: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    by_exit: bool = False
    after: tuple[int, ...] = ()
    reading_s: float = 0.0

    @property
    def settled(self) -> int:
        """Tokens that it committed."""
        return self.accepted + self.leaf + 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to go on: what a round of it takes and gives, and what it promises in the long run.

    choice, stage: of a round whose proposal must be made first; with a rollout at hand those are
    `after_hit` and `hit`. speed: tokens a second; hopeful: what it may be at best.
    """

    choice: Choice
    stage: Stage
    speed: float
    hopeful: float
    after_hit: Choice | None = None
    hit: Stage | None = None


class Ways:
    """Weighs the ways by the costs and estimates of now, which others keep up to date."""

    def __init__(
        self,
        costs: Following,
        estimates: Estimates,
        *,
        sources: Sequence[Source],
        most_draft_tokens: int,
        hypotheses: Sequence[int],
        siblings: Sequence[int],
        exits: Sequence[int],
    ) -> None:
        """The settings are the planner's."""
        self._costs, self._estimates = costs, estimates
        self._sources = sources
        self._lengths = range(1, most_draft_tokens + 1)
        self._hypotheses, self._siblings, self._exits = hypotheses, siblings, exits
        self._misses: dict[tuple[int, float, bool], tuple[float, Stage]] = {}  # of one look
        self._most_nodes = most_draft_tokens + max(siblings)
        self._shape: Shape = (0, self._lengths[-1], siblings[0], exits[-1])
        if hypotheses:
            self._shape = (hypotheses[len(hypotheses) // 2], *self._shape[1:])

    def everywhere(self) -> list[Plan]:
        """The best plan of each kind that does not depend on the place in the text."""
        plans = [self._plan(NOTHING, autoregressive_s(self._costs.alone), 1.0, 1.0)]
        if "model" not in self._sources:
            return plans
        most = self._lengths[-1]
        mean, hope = Chances(self._estimates, most), Chances(self._estimates, most, HOPE)
        plans.append(self._speculative(mean, hope))
        return [*plans, self._mirror(mean, hope)] if self._hypotheses else plans

    def copying(self, match_length: int) -> list[Plan]:
        """The best length to copy, where there is something to copy."""
        if match_length < 1 or "lookup" not in self._sources:
            return []
        most = self._lengths[-1]
        alone = self._costs.alone
        mean = accumulate(self._estimates.lookup(match_length, most), mul)
        tokens = list(accumulate(mean, initial=1.0))
        seconds = [lookup_s(alone, length) for length in self._lengths]
        length = max(self._lengths, key=lambda length: tokens[length] / seconds[length - 1])
        hope = expected_tokens(self._estimates.lookup(match_length, length, HOPE))
        choice = Choice("lookup", length)
        return [self._plan(choice, seconds[length - 1], tokens[length], hope)]

    def given(self, rollout: int) -> Plan:
        """To verify what the draft has made, as far as it may, and let it rest."""
        rollout = min(rollout, self._lengths[-1])
        tokens = expected_tokens(self._estimates.model(rollout)[:rollout])
        return self._plan(
            Choice("model", rollout), lookup_s(self._costs.alone, rollout), tokens, tokens
        )

    def _plan(self, choice: Choice, seconds: float, tokens: float, hopeful: float) -> Plan:
        """A way whose rounds are all alike."""
        seconds *= self._costs.ratio(choice.kind)
        return Plan(choice, Stage(tokens, seconds), tokens / seconds, hopeful / seconds)

    def _speculative(self, mean: Chances, hope: Chances) -> Plan:
        """The best length and leaves of a draft that rests while the target verifies."""
        alone = self._costs.alone
        drafting = [drafting_s(alone, length) for length in self._lengths]
        verifying = [lookup_s(alone, nodes) for nodes in range(self._most_nodes + 1)]

        def seconds(shape: tuple[int, int]) -> float:
            return drafting[shape[0] - 1] + verifying[sum(shape)]

        shapes = [(length, siblings) for length in self._lengths for siblings in self._siblings]
        best = max(shapes, key=lambda shape: mean.tokens(*shape) / seconds(shape))
        length, siblings = best
        hopeful = hope.tokens(length) + mean.gain(*best)
        choice = Choice("model", length, 0, siblings)
        return self._plan(choice, seconds(best), mean.tokens(*best), hopeful)

    def _mirror(self, mean: Chances, hope: Chances) -> Plan:
        """The best length, leaves, hypotheses, use of the exit and answer to a miss.

        Of the first four one is varied after the other, beginning at what was best the last time.
        """
        self._misses.clear()
        beside, hoped = self._costs.beside, self._costs.hoped
        best = self._mirrored(self._shape, mean, beside)
        choices = (self._hypotheses, self._lengths, self._siblings, self._exits)
        for place, values in enumerate(choices):
            start = self._shape
            for value in values:
                shape = (*start[:place], value, *start[place + 1 :])
                if value != start[place] and self._at_best(shape, mean) > best.speed:
                    plan = self._mirrored(shape, mean, beside)
                    if plan.speed > best.speed:
                        best, self._shape = plan, shape
        most = (self._hypotheses[-1], self._lengths[-1], self._siblings[0], self._exits[-1])
        hopeful = max(self._mirrored(shape, hope, hoped).speed for shape in (self._shape, most))
        return replace(best, hopeful=hopeful)

    def _at_best(self, shape: Shape, chances: Chances) -> float:
        """Tokens a second if every round were a hit and hid all that the draft does."""
        _, length, siblings, part = shape
        beside = self._costs.beside
        seconds = self._costs.ratio(timed_as(has_exit=part > 0)) * lookup_s(
            beside, length + siblings
        )
        return chances.tokens(length, siblings) / seconds

    def _mirrored(self, shape: Shape, chances: Chances, beside: Costs) -> Plan:
        """A mirror of one shape with the better answer to a miss.

        On a miss it drafts anew and verifies, or verifies the bare token while the draft does.
        """
        count, length, siblings, part = shape
        of_exit = count // part if part else 0
        ratio = self._costs.ratio(timed_as(has_exit=of_exit > 0))
        any_next = beside.tokens_per_pass > 1 and is_open(length, beside.tokens_per_pass)
        own = expected = chances.hit_rate(length, siblings, count - of_exit, any_next=any_next)
        if of_exit:
            expected += (1 - own) * self._estimates.exits.at()
        rate = self._estimates.hit_rate(count, expected, of_exit=of_exit)
        tokens = chances.tokens(length, siblings)
        own = min(own, rate) if of_exit else rate
        hits = _hits(own, chances, length, siblings, beside.tokens_per_pass)
        hits = replace(hits, late=rate - own)
        hit_seconds = hit_s(beside, length, count, siblings=siblings, of_exit=of_exit, hits=hits)
        hit = Stage(tokens, ratio * hit_seconds, rate)
        drafting, bare = self._missed(length, chances.acceptance[0], beside)
        again = Stage(tokens, hit.seconds + drafting, rate)
        choice = Choice("model", length, count, siblings, of_exit)
        misses = ((again, choice), (bare, Choice("none", length, count)))
        speeds = [tokens_per_second(hit, miss) for miss, _ in misses]
        miss, on_miss = misses[speeds[1] > speeds[0]]
        return Plan(on_miss, miss, max(speeds), max(speeds), choice, hit)

    def _missed(self, length: int, first: float, beside: Costs) -> tuple[float, Stage]:
        """Seconds of drafting anew, and a round of the bare token, whose successor is foreseen.

        first: acceptance at the first place.
        """
        place = length, first, beside is self._costs.beside
        if place not in self._misses:
            ratio = self._costs.ratio("mirror")
            drafting = drafting_s(self._costs.alone, length, has_next=True, unread=1)
            found = self._estimates.hit_rate(BARE, first)
            hits = Hits(0.0, first, max(0.0, found - first))
            bare = Stage(1.0, ratio * bare_s(beside, length, hits=hits), found)
            self._misses[place] = ratio * drafting, bare
        return self._misses[place]


def _hits(rate: float, chances: Chances, length: int, siblings: int, per_pass: int) -> Hits:
    """What `rate` is made of."""
    whole = chances.wholes[length] if is_open(length, per_pass) else 0.0
    after = chances.acceptance[length]
    opened = min(rate, whole * after)
    begun = chances.gain(length, siblings) * chances.acceptance[0]
    begun = min(rate - opened, begun + whole * (1 - after) * (per_pass > 1))
    return Hits(rate - opened - begun, opened, begun)
