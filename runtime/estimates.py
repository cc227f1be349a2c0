"""What the text so far says: how often guesses stand, where they break, what stands instead.

Cautious until something is seen, and forgetful, as texts change.
"""

import math
from dataclasses import dataclass, field

MOST_PLACES = 16  # of a proposal that are told apart
LONGEST_MATCH = 8  # of a copied text; longer ones count as this
HALF_LIFE = 24.0  # observations of one place after which one weighs half
HALF_LIFE_IN_SESSION = 256.0
HALF_LIFE_UNSEEN = 256.0  # rounds, of whatever kind
OF_AN_EARLIER_TEXT = 0.5  # what its observations weigh in a new one

FADING, FADING_IN_SESSION = 0.5 ** (1 / HALF_LIFE), 0.5 ** (1 / HALF_LIFE_IN_SESSION)

PRIOR_WEIGHT = 2.0  # observations that a prior is worth
# Below what the reference model's drafts show in docs/draft.md and docs/log.md.
FIRST_PLACE, LATER_PLACES = 0.55, 0.45
FIRST_RUNNER_UP, LATER_RUNNER_UPS = 0.25, 0.12
COPIED = (0.2, 0.4, 0.55, 0.7)  # behind a match of 1, 2, 3, 4 tokens and more
NAMED_BY_EXIT = 0.5  # where the draft's hypotheses miss; who asks for the exit has it tried
HITS_WEIGHT = 8.0  # rounds with hits and misses that the model of ranks is worth


@dataclass(slots=True)
class Share:
    """How often something is so, of observations that fade, beside a prior's.

    They fade twice: `yes` of `seen` soon, and with a text; `ever_yes` of `ever` over a session, so
    that what is forgotten of a text returns to what the session has shown and not to the prior.
    """

    prior: float
    weight: float = PRIOR_WEIGHT
    yes: float = 0.0
    seen: float = 0.0
    ever_yes: float = 0.0
    ever: float = 0.0

    def learn(self, *, is_so: bool) -> None:
        """One observation more; those before weigh a little less."""
        self.fade(FADING)
        self.yes += is_so
        self.seen += 1
        self.ever_yes = self.ever_yes * FADING_IN_SESSION + is_so
        self.ever = self.ever * FADING_IN_SESSION + 1

    def fade(self, kept: float) -> None:
        """Let all observations of this text weigh `kept` of what they did."""
        self.yes *= kept
        self.seen *= kept

    def at(self, deviations: float = 0.0, *, prior: float = 0.0) -> float:
        """The mean, or so many standard deviations of what is not known above it; at most 1.

        prior: instead of its own, where that is less.
        """
        usual = (self.ever_yes + max(prior, self.prior) * PRIOR_WEIGHT) / (self.ever + PRIOR_WEIGHT)
        whole = self.seen + self.weight
        mean = (self.yes + usual * self.weight) / whole
        return min(1.0, mean + deviations * math.sqrt(mean * (1 - mean) / (whole + 1)))


def _places() -> list[Share]:
    return [Share(LATER_PLACES if place else FIRST_PLACE) for place in range(MOST_PLACES + 1)]


def _copied() -> list[Share]:
    return [Share(COPIED[min(length, len(COPIED)) - 1]) for length in range(1, LONGEST_MATCH + 1)]


@dataclass(slots=True)
class Estimates:
    """Acceptance by place and source, ranks of what came instead, hits; of the text so far.

    runner_ups: how many other tokens a guess of the model names.
    """

    runner_ups: int
    places: list[Share] = field(default_factory=_places)
    copied: list[Share] = field(default_factory=_copied)
    ranks: list[Share] = field(init=False)
    hits: dict[tuple[int, int], Share] = field(default_factory=dict)
    exits: Share = field(default_factory=lambda: Share(NAMED_BY_EXIT))

    def __post_init__(self) -> None:
        self.ranks = [
            Share(LATER_RUNNER_UPS if rank else FIRST_RUNNER_UP) for rank in range(self.runner_ups)
        ]

    def begin(self) -> None:
        """A new text: what the one before showed weighs less."""
        self._fade(OF_AN_EARLIER_TEXT)

    def pass_by(self, rounds: int) -> None:
        """So many rounds of any kind are over: what was not looked at grows uncertain, slowly."""
        self._fade(0.5 ** (rounds / HALF_LIFE_UNSEEN))

    def learn_model(self, *, proposed: int, accepted: int, rank: int | None) -> None:
        """Of the draft's chain of `proposed` the first `accepted` stood.

        rank: of the target's next token among the draft's guesses at the next place: 0 for its
        first choice, which can be so only after a whole chain; 1, 2, … for its runner-ups; any
        larger number when it is none of them; None when the draft guessed nothing there.
        """
        for place in range(min(accepted, MOST_PLACES)):
            self.places[place].learn(is_so=True)
        if accepted < MOST_PLACES and (accepted < proposed or rank is not None):
            self.places[accepted].learn(is_so=rank == 0)
        if rank:
            for at in range(min(rank, self.runner_ups)):
                self.ranks[at].learn(is_so=at + 1 == rank)

    def learn_lookup(self, *, match_length: int, proposed: int, accepted: int) -> None:
        """Of `proposed` tokens copied behind a match the first `accepted` stood.

        Each that stands makes the match one longer. Also for rounds in which they were not proposed
        and `accepted` tells how many would have stood.
        """
        for place in range(min(proposed, accepted + 1)):
            self._copied_after(match_length + place).learn(is_so=place < accepted)

    def learn_hit(self, num_hypotheses: int, *, is_hit: bool, of_exit: int = 0) -> None:
        """With so many hypotheses, so many the exit's, the outcome was or was not among them."""
        self.hits.setdefault((num_hypotheses, of_exit), Share(0.0, 0.0)).learn(is_so=is_hit)

    def learn_exit(self, *, is_named: bool) -> None:
        """Where the draft's own hypotheses missed, the exit's did or did not."""
        self.exits.learn(is_so=is_named)

    def model(self, count: int, deviations: float = 0.0) -> list[float]:
        """Acceptance at the first `count` places and, last, at the one after them.

        Of a place of which little was seen, as much is expected as of the one before, if that is
        known.
        """
        found, prior = [], 0.0
        for share in self.places[: count + 1]:
            found.append(share.at(deviations, prior=prior))
            prior = found[-1] if share.seen > share.weight else 0.0
        return found

    def lookup(self, match_length: int, count: int, deviations: float = 0.0) -> list[float]:
        """Acceptance at `count` places behind a match of so many tokens."""
        return [self._copied_after(match_length + place).at(deviations) for place in range(count)]

    def by_rank(self) -> list[float]:
        """Where a guess is wrong, how likely its first, second, … runner-up is right."""
        found, left = [], 1.0
        for share in self.ranks:
            found.append(left * share.at())
            left -= found[-1]
        return found

    def hit_rate(self, num_hypotheses: int, expected: float, *, of_exit: int = 0) -> float:
        """The chance of a hit: what ranks let expect, and with time what came."""
        seen = self.hits.get((num_hypotheses, of_exit))
        if seen is None:
            return expected
        return (seen.yes + HITS_WEIGHT * expected) / (seen.seen + HITS_WEIGHT)

    def _copied_after(self, match_length: int) -> Share:
        return self.copied[min(match_length, LONGEST_MATCH) - 1]

    def _fade(self, kept: float) -> None:
        for share in (
            *(*self.places, *self.copied, *self.ranks),
            *(*self.hits.values(), self.exits),
        ):
            share.fade(kept)
