"""What the next round is to be: the way that promises most tokens a second, tried and followed.

Deterministic given what it is told. How it weighs and when it tries something else is told in
docs/planner.md.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.costs import Costs, autoregressive_s
from runtime.estimates import Estimates
from runtime.following import Following
from runtime.ways import (
    BARE,
    HYPOTHESES,
    NO_EXIT,
    NOTHING,
    Choice,
    Kind,
    Plan,
    Round,
    Source,
    Ways,
)

__all__ = ["NOTHING", "Choice", "Kind", "Planner", "Round", "Source"]

DRAFTED: tuple[Kind, ...] = ("speculative", "mirror")
FIRST_ALONE = 2  # rounds that begin a session: what the target alone takes must be known
PLANNED_AFTER_TRIAL = 4  # rounds until the next look at everything
PLANNED_FOR, PLANNED_LONGEST = 8, 16  # otherwise, doubled while looks change nothing
DECIDED = 64  # of a session, after which it is known whether the draft is of use
KNOWN, SAMPLED = 16, 4  # after so many rounds of a choice each fourth tells what it costs
LEAST_CHANGE = 0.02  # how seldom, at the least, rounds after hits and after misses alternate
READ_FOR = 128  # tokens that are to come, over which reading is spread
STAYING = 1.02  # how much faster another kind must promise to be
TRYING_SHARE = 0.01  # of all time, what trying may lose
TRYING_START = 8.0  # rounds of the target alone that it may lose besides, where there is hope
SHORTEST_PAUSE, LONGEST_PAUSE = 32, 512  # rounds between two trials without hope, doubled each time


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
        exits: Sequence[int] = (NO_EXIT,),
        chill: float = 1.0,
        first_use: float = 0.0,
    ) -> None:
        """Plan with `costs` to begin with; only their proportions count, as the first rounds show.

        sources: who can propose. runner_ups: how many other tokens a guess of the model names.
        siblings: the numbers of leaves that a proposal may have. exits: what part of the hypotheses
        the target's early exit may name. chill: how much longer the target's calls take between
        those of a draft than among themselves, where both share a processor. A round alone between
        two with the draft does not show it, so the draft must promise so much more. first_use:
        what the first use of the draft costs besides, in rounds of the target alone.
        """
        self.estimates = Estimates(runner_ups)
        self._costs = Following(costs)
        self._ways = Ways(
            self._costs,
            self.estimates,
            sources=sources,
            most_draft_tokens=most_draft_tokens,
            hypotheses=hypotheses,
            siblings=siblings,
            exits=exits,
        )
        self._chill, self._first_use, self._has_drafted = chill, first_use, False
        self._trials: dict[Kind, Trials] = {}
        self._rounds, self._timed, self._elapsed, self._unread = 0, 0, 0.0, 0
        self._kind: Kind = "autoregressive"
        self._trial_against: Plan | None = None
        self._lost = 0.0
        self._counts: Counter[Kind] = Counter()
        self._had: Counter[Choice] = Counter()
        self._tried = 0
        self._may_try = False
        self._plans: list[Plan] = []
        self._weighed: dict[tuple[int, int], tuple[list[Plan], Plan]] = {}  # since the last look
        self._faded_at = self._looks_at = 0
        self._pause = PLANNED_FOR
        self._has_draft = True

    def begin(self, *, unread: int = 0, is_waited_for: bool = False) -> None:
        """A new text: what the one before showed weighs less.

        unread: tokens of it that the draft reads only when it is asked. is_waited_for: the target
        waits meanwhile; else it is slowed down.
        """
        self.estimates.begin()
        slowdown = self._costs.alone.target_slowdown
        self._unread = unread if is_waited_for else round(unread * (1 - 1 / slowdown))
        self._looks_at, self._pause = self._rounds, PLANNED_FOR

    def draft_is(self, *, there: bool) -> None:
        """Whether there is a draft now; without one, nothing is planned or tried with it."""
        if there != self._has_draft:
            self._has_draft, self._looks_at = there, self._rounds

    @property
    def wants_draft(self) -> bool:
        """Whether the draft is likely to be asked in the next text, as far as is known."""
        return self._kind in DRAFTED or self._rounds < DECIDED

    def choose(self, room: int, lookup_match_length: int, *, rollout: int = 0) -> Choice:
        """What the next round is to be, with at most `room` proposed tokens.

        lookup_match_length: of the text's end, how many tokens stood before; 0: nothing to copy.
        rollout: tokens of the draft's proposal for the outcome that came; 0 after a miss.
        """
        self._trial_against = None
        if room < 1 or self._timed < FIRST_ALONE:
            return NOTHING
        if self._rounds >= self._looks_at:
            self._look()
        plans, best = self._best(lookup_match_length, rollout)
        trial = None
        if self._may_try and not rollout:
            self._may_try = False  # nothing that bears on it changes before the next look
            trial = self._trial(plans, best)
        plan = trial or best
        choice = plan.after_hit if rollout and plan.after_hit else plan.choice
        is_made = rollout > 0 and choice.source == "model"
        return _within(choice, min(room, rollout) if is_made else room)

    def learn(self, told: Round) -> None:
        """Take in what the round that was chosen last has been."""
        choice, kind = told.choice, told.choice.kind
        self._rounds += 1
        self._elapsed += told.reading_s + told.seconds
        self._counts[kind] += 1
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
            self.estimates.learn_hit(hypotheses, is_hit=told.hit, of_exit=choice.of_exit)
            if choice.of_exit and (told.by_exit or not told.hit):
                self.estimates.learn_exit(is_named=told.by_exit)
        self._unread += told.settled
        if told.drafted or told.ahead or told.late:
            self._unread, self._has_drafted = 0, True
        if not told.is_shared:
            self._timed += 1
            self._had[choice] += 1
            if self._had[choice] <= KNOWN or self._had[choice] % SAMPLED == 0:
                self._learn_costs(told)
        self._account(told)

    def _learn_costs(self, told: Round) -> None:
        """Its times were its own."""
        self._costs.learn(
            told.choice.timed_as,
            rows=told.nodes + 1,
            target_s=told.target_s,
            drafted=(*told.drafted, *told.after),
            ahead=told.ahead,
            late=told.late,
            has_exit=told.choice.of_exit > 0,
            draft_seconds=told.draft_s,
            seconds=told.seconds,
        )

    def learn_lookup(self, match_length: int, proposed: int, accepted: int) -> None:
        """What copying would have given in a round in which something else was proposed."""
        self.estimates.learn_lookup(match_length=match_length, proposed=proposed, accepted=accepted)

    def learn_guessed(self, proposed: int, accepted: int, rank: int | None) -> None:
        """What the draft's guesses would have given in a round that did not verify them."""
        self.estimates.learn_model(proposed=proposed, accepted=accepted, rank=rank)

    def explain(self) -> str:
        """In a sentence or two what was chosen, how often, and why."""
        if not self._rounds:
            return "Nothing was planned yet."
        shares = ", ".join(f"{kind} {count}" for kind, count in self._counts.most_common())
        text = f"Rounds: {shares}; {self._tried} of them to try, "
        share = self._lost / self._elapsed if self._elapsed else 0.0
        text += f"which lost {100 * share:.1f} % of the time."
        if not self._plans:
            return text
        plans = sorted(self._plans, key=lambda plan: -plan.speed)
        promises = ", ".join(f"{_named(plan.choice)} {plan.speed:.1f}" for plan in plans)
        return f"{text} Tokens a second now promised: {promises}."

    def _best(self, match_length: int, rollout: int) -> tuple[list[Plan], Plan]:
        """All plans at such a place, with such a rollout at hand, and the best of them."""
        place = match_length, rollout
        if place not in self._weighed:
            steady = self._steady
            plans = [steady, *self._ways.copying(match_length)]
            if rollout:
                plans.append(self._ways.given(rollout))
            best = max(plans, key=lambda plan: self._advantage(plan, steady, rollout))
            self._weighed[place] = [*self._plans, *plans[1:]], best
        return self._weighed[place]

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
        self.estimates.pass_by(self._rounds - self._faded_at)
        self._faded_at = self._rounds
        self._costs.follow()
        plans = map(self._chilled, self._ways.everywhere())
        self._plans = [plan for plan in plans if self._has_draft or plan.choice.kind not in DRAFTED]
        self._steady = max(self._plans, key=self._promise)
        stays = self._steady.choice.kind == self._kind
        self._kind = self._steady.choice.kind
        self._pause = min(2 * self._pause, PLANNED_LONGEST) if stays else PLANNED_FOR
        self._looks_at = self._rounds + self._pause
        self._weighed.clear()
        self._may_try = True

    def _chilled(self, plan: Plan) -> Plan:
        """With what the draft's nearness and its reading cost, and a single round does not show."""
        if plan.choice.kind not in DRAFTED:
            return plan
        more = self._reading_s / READ_FOR
        return replace(
            plan,
            speed=1 / (self._chill / plan.speed + more),
            hopeful=1 / (self._chill / plan.hopeful + more),
        )

    @property
    def _reading_s(self) -> float:
        """Seconds that the draft takes more for what it has not read, and for its first pass."""
        alone = self._costs.alone
        first_use = 0.0 if self._has_drafted else self._first_use * autoregressive_s(alone)
        return first_use + max(0.0, alone.draft(self._unread + 1) - alone.draft(1))

    def _trial(self, plans: Sequence[Plan], best: Plan) -> Plan | None:
        """Another plan to try now, if one gives hope or was not had for long, and costs little."""
        for plan in sorted(plans, key=_hopeful, reverse=True):
            kind = plan.choice.kind
            trials = self._trials.setdefault(kind, Trials())
            is_due = self._rounds >= trials.last + trials.pause
            gives_hope = plan.hopeful > best.hopeful
            if kind == best.choice.kind or not (is_due or gives_hope):
                continue
            means = TRYING_SHARE * self._elapsed
            means += TRYING_START * autoregressive_s(self._costs.alone) * gives_hope
            loss = plan.stage.seconds - 1 / best.speed  # if it settles one token
            if kind in DRAFTED:
                loss += self._reading_s
            if self._lost + loss <= means:
                self._trial_against = best
                return plan
        return None

    def _account(self, told: Round) -> None:
        """What a trial lost, and when its kind was had.

        While the draft reads, what was to be tried was not, and is still due.
        """
        trials = self._trials.setdefault(told.choice.kind, Trials())
        was_due = self._rounds > trials.last + trials.pause
        trials.last = self._rounds
        if self._trial_against is None:
            trials.pause = SHORTEST_PAUSE
            return
        if was_due:
            trials.pause = min(2 * trials.pause, LONGEST_PAUSE)
        self._tried += 1
        lost = told.reading_s + told.seconds - told.settled / self._trial_against.speed
        self._lost = max(0.0, self._lost + lost)
        # What was tried may change everything, but a look takes time and trials may come in a row.
        self._looks_at = min(self._looks_at, self._rounds + PLANNED_AFTER_TRIAL)


def _within(choice: Choice, room: int) -> Choice:
    return choice if choice.num_draft_tokens <= room else replace(choice, num_draft_tokens=room)


def _hopeful(plan: Plan) -> float:
    return plan.hopeful


def _named(choice: Choice) -> str:
    details = [f"{choice.num_draft_tokens} drafted"] if choice.num_draft_tokens else []
    details += [f"{choice.num_hypotheses} hypotheses"] if choice.num_hypotheses else []
    details += [f"{choice.of_exit} of them the exit's"] if choice.of_exit else []
    details += [f"{choice.siblings} leaves"] if choice.siblings else []
    return f"{choice.kind} ({', '.join(details)})" if details else choice.kind
