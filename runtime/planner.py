"""What the next round is to be: the way that promises most tokens a second, tried and followed.

Deterministic given what it is told. How it weighs and when it tries something else is told in
docs/planner.md.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from runtime.costs import (
    Costs,
    Stage,
    autoregressive_s,
    bare_s,
    drafting_s,
    expected_tokens,
    hit_s,
    lookup_s,
    speculative_s,
    tokens_per_second,
)
from runtime.estimates import Estimates
from runtime.following import Following

Source = Literal["none", "lookup", "model"]
Kind = Literal["autoregressive", "lookup", "speculative", "mirror"]

KINDS: Mapping[Source, Kind] = {
    "none": "autoregressive",
    "lookup": "lookup",
    "model": "speculative",
}
BARE = 0  # hypotheses of a mirror's round without a proposal: the draft's first choice is its one
HYPOTHESES = (1, 2, 4, 8, 16)
FIRST_ALONE = 2  # rounds that begin a session: what the target alone takes must be known
PLANNED_FOR = 8  # rounds between two looks at everything
LEAST_CHANGE = 0.02  # how seldom, at the least, rounds after hits and after misses alternate
STAYING = 1.02  # how much faster another kind must promise to be
HOPE = 1.0  # standard deviations that may be hoped for
TRYING_SHARE = 0.01  # of all time, what trying may lose
TRYING_START = 8.0  # rounds of the target alone that it may lose besides, where there is hope
SHORTEST_PAUSE, LONGEST_PAUSE = 32, 512  # rounds between two trials without hope, doubled each time


@dataclass(frozen=True, slots=True)
class Choice:
    """What the next round is to be.

    source: who proposes; "none": only the pending token is verified. num_draft_tokens: the length
    of a proposal, and of what the draft makes meanwhile. num_hypotheses: 0 lets the draft rest
    while the target verifies. siblings: runner-ups put beside the trunk as leaves.
    """

    source: Source
    num_draft_tokens: int = 0
    num_hypotheses: int = 0
    siblings: int = 0

    @property
    def kind(self) -> Kind:
        """The way of decoding that the round is part of; a mirror's may verify a bare token."""
        if self.num_hypotheses:
            return "mirror"
        return KINDS[self.source]


Shape = tuple[int, ...]  # of a mirror: hypotheses, length, leaves
NOTHING = Choice("none")


@dataclass(frozen=True, slots=True)
class Round:
    """What a round was; times in seconds.

    proposed, accepted: of the trunk; nodes: with the leaves. leaf: one of them stood as well.
    rank: see `Estimates.learn_model`; where a leaf stood, its own. hit: whether the outcome was
    among the hypotheses; None without any. match_length: of the text behind which lookup copied.
    drafted, ahead: rows of the draft's passes before the target's run, and beside it. draft_s: of
    them all.
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
    drafted: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()

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


@dataclass(slots=True)
class Trials:
    """When a kind of round was last had, and how long to wait before it is tried again."""

    last: int = 0
    pause: int = SHORTEST_PAUSE


class Planner:
    """Chooses every round of a session and learns from what it was; one thread uses it."""

    def __init__(
        self,
        costs: Costs,
        *,
        sources: Sequence[Source] = ("lookup", "model"),
        runner_ups: int = 4,
        most_draft_tokens: int = 8,
        hypotheses: Sequence[int] = HYPOTHESES,
        siblings: Sequence[int] = (0,),
    ) -> None:
        """Plan with `costs` to begin with; only their proportions count, as the first rounds show.

        sources: who can propose. runner_ups: how many other tokens a guess of the model names.
        siblings: the numbers of leaves that a proposal may have.
        """
        self.estimates = Estimates(runner_ups)
        self._costs = Following(costs)
        self._sources = sources
        self._lengths = range(1, most_draft_tokens + 1)
        self._hypotheses, self._siblings = hypotheses, siblings
        self._shape: Shape = (hypotheses[len(hypotheses) // 2], self._lengths[-1], siblings[0])
        self._trials: dict[Kind, Trials] = {}
        self._rounds, self._elapsed, self._unread = 0, 0.0, 0
        self._kind: Kind = "autoregressive"
        self._trial_against: Plan | None = None
        self._lost = 0.0
        self._counts: Counter[Kind] = Counter()
        self._tried = 0
        self._plans: list[Plan] = []
        self._planned_at = -1

    def begin(self) -> None:
        """A new text: what the one before showed weighs less."""
        self.estimates.begin()
        self._planned_at = -1

    def choose(self, room: int, lookup_match_length: int, *, rollout: int = 0) -> Choice:
        """What the next round is to be, with at most `room` proposed tokens.

        lookup_match_length: of the text's end, how many tokens stood before; 0: nothing to copy.
        rollout: tokens of the draft's proposal for the outcome that came; 0 after a miss.
        """
        self._trial_against = None
        if room < 1 or self._rounds < FIRST_ALONE:
            return NOTHING
        if self._planned_at < 0 or self._rounds >= self._planned_at + PLANNED_FOR:
            self._look()
        steady = max(self._plans, key=self._promise)
        self._kind = steady.choice.kind
        plans = [steady, *self._copying(lookup_match_length)]
        if rollout:
            plans.append(self._given(rollout))
        best = max(plans, key=lambda plan: self._advantage(plan, steady, rollout))
        trial = None if rollout else self._trial([*self._plans, *plans[1:]], best)
        plan = trial or best
        choice = plan.after_hit if rollout and plan.after_hit else plan.choice
        return _within(choice, min(room, rollout or room))

    def learn(self, told: Round) -> None:
        """Take in what the round that was chosen last has been."""
        choice, kind = told.choice, told.choice.kind
        self._rounds += 1
        self._elapsed += told.seconds
        self._counts[kind] += 1
        self.estimates.round()
        if choice.source == "model" and told.proposed:
            self.estimates.learn_model(
                proposed=told.proposed, accepted=told.accepted, rank=told.rank
            )
        elif choice.source == "lookup" and told.proposed:
            self.learn_lookup(told.match_length, told.proposed, told.accepted)
        elif choice.kind == "mirror" and told.hit is not None:  # a bare token: was it the first?
            self.estimates.learn_model(proposed=0, accepted=0, rank=told.rank)
        if told.hit is not None:
            hypotheses = choice.num_hypotheses if told.proposed else BARE
            self.estimates.learn_hit(hypotheses, is_hit=told.hit)
        self._unread = 0 if told.drafted or told.ahead else self._unread + told.settled
        self._costs.learn(
            kind,
            rows=told.nodes + 1,
            target_s=told.target_s,
            drafted=told.drafted,
            ahead=told.ahead,
            draft_seconds=told.draft_s,
            seconds=told.seconds,
        )
        self._account(told)

    def learn_lookup(self, match_length: int, proposed: int, accepted: int) -> None:
        """What copying would have given in a round in which something else was proposed."""
        self.estimates.learn_lookup(match_length=match_length, proposed=proposed, accepted=accepted)

    def explain(self) -> str:
        """In a sentence or two what was chosen, how often, and why."""
        if not self._rounds:
            return "Nothing was planned yet."
        shares = ", ".join(f"{kind} {count}" for kind, count in self._counts.most_common())
        text = f"Rounds: {shares}; {self._tried} of them to try, "
        text += f"which lost {100 * self._lost / self._elapsed:.1f} % of the time."
        if not self._plans:
            return text
        plans = sorted(self._plans, key=lambda plan: -plan.speed)
        promises = ", ".join(f"{_named(plan.choice)} {plan.speed:.1f}" for plan in plans)
        return f"{text} Tokens a second now promised: {promises}."

    def _promise(self, plan: Plan) -> float:
        """Its speed; the present kind is left only for something clearly better."""
        return plan.speed * (STAYING if plan.choice.kind == self._kind else 1.0)

    def _advantage(self, plan: Plan, steady: Plan, rollout: int) -> float:
        """Tokens that one round of `plan` gains on `steady`, what it leaves behind included."""
        worth = 0.0  # of a rollout at hand, in tokens
        if steady.hit is not None:
            miss, hit, speed = steady.stage, steady.hit, steady.speed
            now = hit.tokens - miss.tokens - speed * (hit.seconds - miss.seconds)
            worth = now / max(1 - hit.hit + miss.hit, LEAST_CHANGE)
        stage = plan.hit if rollout and plan.hit else plan.stage
        return stage.tokens - steady.speed * stage.seconds + stage.hit * worth

    def _look(self) -> None:
        """Weigh all but copying, which depends on the place in the text."""
        self._planned_at = self._rounds
        self._costs.follow()
        self._plans = [self._plan(NOTHING, autoregressive_s(self._costs.alone), 1.0, 1.0)]
        if "model" in self._sources:
            self._plans += [self._speculative(), self._mirror()]

    def _plan(self, choice: Choice, seconds: float, tokens: float, hopeful: float) -> Plan:
        """A way whose rounds are all alike."""
        seconds *= self._costs.ratio(choice.kind)
        return Plan(choice, Stage(tokens, seconds), tokens / seconds, hopeful / seconds)

    def _copying(self, match_length: int) -> list[Plan]:
        """The best length to copy, where there is something to copy."""
        if match_length < 1 or "lookup" not in self._sources:
            return []
        most = self._lengths[-1]
        mean = self.estimates.lookup(match_length, most)
        hope = self.estimates.lookup(match_length, most, HOPE)
        plans = [
            self._plan(
                Choice("lookup", length),
                lookup_s(self._costs.alone, length),
                expected_tokens(mean[:length]),
                expected_tokens(hope[:length]),
            )
            for length in self._lengths
        ]
        return [max(plans, key=lambda plan: plan.speed)]

    def _given(self, rollout: int) -> Plan:
        """To verify what the draft has made and let it rest."""
        tokens = expected_tokens(self.estimates.model(rollout)[:rollout])
        return self._plan(
            Choice("model", rollout), lookup_s(self._costs.alone, rollout), tokens, tokens
        )

    def _speculative(self) -> Plan:
        """The best length and leaves of a draft that rests while the target verifies."""
        plans = []
        for length in self._lengths:
            mean, hope = self.estimates.model(length), self.estimates.model(length, HOPE)
            guessed = self.estimates.guessed(mean)
            for siblings in self._siblings:
                gain, _ = guessed.with_siblings(siblings)
                plans.append(
                    self._plan(
                        Choice("model", length, 0, siblings),
                        speculative_s(self._costs.alone, length, siblings=siblings),
                        expected_tokens(mean[:length]) + gain,
                        expected_tokens(hope[:length]) + gain,
                    )
                )
        return max(plans, key=lambda plan: plan.speed)

    def _mirror(self) -> Plan:
        """The best length, leaves, number of hypotheses and answer to a miss.

        Of these three one is varied after the other, beginning at what was best the last time.
        """
        best = self._mirrored(self._shape)
        for place, values in enumerate((self._hypotheses, self._lengths, self._siblings)):
            for value in values:
                if value != self._shape[place]:
                    shape = (*self._shape[:place], value, *self._shape[place + 1 :])
                    best = max(best, self._mirrored(shape), key=lambda plan: plan.speed)
            self._shape = _shape_of(best)
        most = (self._hypotheses[-1], self._lengths[-1], self._siblings[0])
        hopeful = max(self._mirrored(shape, HOPE).speed for shape in (self._shape, most))
        return replace(best, hopeful=hopeful)

    def _mirrored(self, shape: Shape, deviations: float = 0.0) -> Plan:
        """A mirror of one shape with the better answer to a miss; acceptance: `deviations` above.

        On a miss it drafts anew and verifies, or verifies the bare token while the draft does.
        """
        ratio = self._costs.ratio("mirror")
        alone, beside = self._costs.alone, self._costs.beside
        count, length, siblings = shape
        acceptance = self.estimates.model(length, deviations)
        gain, left = self.estimates.guessed(acceptance).with_siblings(siblings)
        rates = left.hit_rates()
        rate = self.estimates.hit_rate(count, rates[min(count, len(rates) - 1)])
        tokens = expected_tokens(acceptance[:length]) + gain
        hit = Stage(tokens, ratio * hit_s(beside, length, count, siblings=siblings), rate)
        again = Stage(tokens, hit.seconds + ratio * drafting_s(alone, length), rate)
        first = self.estimates.hit_rate(BARE, acceptance[0])
        bare = Stage(1.0, ratio * bare_s(beside, length), first)
        choice = Choice("model", length, count, siblings)
        misses = ((again, choice), (bare, Choice("none", length, count)))
        speeds = [tokens_per_second(hit, miss) for miss, _ in misses]
        miss, on_miss = misses[speeds[1] > speeds[0]]
        return Plan(on_miss, miss, max(speeds), max(speeds), choice, hit)

    def _trial(self, plans: Sequence[Plan], best: Plan) -> Plan | None:
        """Another plan to try now, if one gives hope or was not had for long, and costs little."""
        now = self._costs.alone
        unread = now.draft(self._unread + 1) - now.draft(1)
        for plan in sorted(plans, key=lambda plan: -plan.hopeful):
            kind = plan.choice.kind
            if kind == best.choice.kind:
                continue
            trials = self._trials.setdefault(kind, Trials())
            is_due = self._rounds >= trials.last + trials.pause
            gives_hope = plan.hopeful > best.hopeful
            means = TRYING_SHARE * self._elapsed
            means += TRYING_START * autoregressive_s(now) * gives_hope
            loss = plan.stage.seconds - 1 / best.speed  # if it settles one token
            loss += unread * (kind in ("speculative", "mirror"))
            if (is_due or gives_hope) and self._lost + loss <= means:
                if is_due:
                    trials.pause = min(2 * trials.pause, LONGEST_PAUSE)
                self._trial_against = best
                return plan
        return None

    def _account(self, told: Round) -> None:
        """What a trial lost, and when its kind was had."""
        kind = told.choice.kind
        trials = self._trials.setdefault(kind, Trials())
        trials.last = self._rounds
        if self._trial_against is None:
            trials.pause = SHORTEST_PAUSE
            return
        self._tried += 1
        lost = told.seconds - told.settled / self._trial_against.speed
        self._lost = max(0.0, self._lost + lost)
        self._planned_at = -1  # what was tried may change everything


def _within(choice: Choice, room: int) -> Choice:
    return replace(choice, num_draft_tokens=min(choice.num_draft_tokens, room))


def _shape_of(plan: Plan) -> Shape:
    choice = plan.after_hit or plan.choice
    return (choice.num_hypotheses, choice.num_draft_tokens, choice.siblings)


def _named(choice: Choice) -> str:
    details = [f"{choice.num_draft_tokens} drafted"] if choice.num_draft_tokens else []
    details += [f"{choice.num_hypotheses} hypotheses"] if choice.num_hypotheses else []
    details += [f"{choice.siblings} leaves"] if choice.siblings else []
    return f"{choice.kind} ({', '.join(details)})" if details else choice.kind
