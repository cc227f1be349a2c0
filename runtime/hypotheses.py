"""Hypotheses: how a round may end, guessed so that the draft can work on what would follow.

Few can be followed, so they are spread over the places of the proposal by how likely it breaks
there, a capped geometric series at first (speculative speculative decoding, 2603.03251), and what
the text shows soon.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, get_args

from runtime.drafter import Guess

Source = Literal["bonus", "runner-ups", "masks", "exit"]
SOURCES: tuple[Source, ...] = get_args(Source)
USUAL_SOURCES: tuple[Source, ...] = ("bonus", "runner-ups")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """That the first `accepted` tokens of a chain stand and `final_token` follows; None: any does.

    source: the draft's next word after the whole chain, a runner-up of one of its guesses, mask
    tokens alone, or the target's early exit.
    """

    accepted: int
    final_token: int | None
    source: Source = "runner-ups"

    @property
    def tokens(self) -> tuple[int, ...]:
        """The final token where there is one."""
        return () if self.final_token is None else (self.final_token,)


# A probability, how many tokens stand, the rank of the next among what the draft named there (None:
# left open), and the source.
Candidate = tuple[float, int, int | None, Source]
WEIGHED_FOR = 8  # rounds; at first each shifts the order


class Fan:
    """Which outcomes to follow, likeliest first; learns from each round how proposals break."""

    def __init__(self, *, stands: float = 0.7, named: float = 0.35, half_life: float = 64) -> None:
        """Expect that a token stands with `stands` and a first runner-up is right with `named`.

        Each further runner-up is half as likely. half_life: after so many rounds what was seen
        counts half; the expectations weigh as much as eight rounds.
        """
        self._stands = stands
        self._fade = 0.5 ** (1 / half_life)
        self._seen: list[list[float]] = []  # by place: evaluated, accepted
        self._ranks = {"runner-ups": _Ranks(named), "exit": _Ranks(named)}
        self._orders: dict[tuple[object, ...], list[Candidate]] = {}
        self._learned = 0

    def hypotheses(
        self,
        guesses: Sequence[Guess],
        chain: int,
        count: int,
        *,
        sources: Collection[Source] = USUAL_SOURCES,
    ) -> list[Hypothesis]:
        """At most `count` outcomes of verifying the first `chain` of `guesses`.

        A further guess is the draft's word after a whole acceptance. Without one that place is left
        open, for whatever stands there; and so it is from every source where nothing is verified.
        """
        known = guesses[: chain + 1]
        order = self._likeliest(tuple(len(each.runner_ups) for each in known), chain, sources)
        return [
            Hypothesis(place, None if rank is None else _ranked(known[place], rank), source)
            for _, place, rank, source in order[:count]
        ]

    def _likeliest(
        self, runner_ups: tuple[int, ...], chain: int, sources: Collection[Source]
    ) -> Sequence[Candidate]:
        """All outcomes in order, weighed anew when some more rounds have been learned from."""
        kind = runner_ups, chain, tuple(sources)
        if kind not in self._orders:
            candidates = self._candidates(runner_ups, chain, sources)
            self._orders[kind] = sorted(candidates, key=itemgetter(0), reverse=True)
        return self._orders[kind]

    def learn(self, guesses: Sequence[Guess], block: Sequence[int]) -> None:
        """Where `guesses` were made, `block` was committed."""
        self._learned += 1
        if self._learned < WEIGHED_FOR or self._learned % WEIGHED_FOR == 0:
            self._orders.clear()
        for counts in self._seen:
            counts[:] = (number * self._fade for number in counts)
        self._seen += [[0.0, 0.0] for _ in range(len(guesses) - len(self._seen))]
        for counts, guess, token in zip(self._seen, guesses, block, strict=False):
            counts[0] += 1
            counts[1] += token == guess.token
            if token != guess.token:
                self._ranks["runner-ups"].learn(guess.runner_ups, token, self._fade)
                break

    def of_exit(
        self, named: Sequence[Sequence[int]], chain: Sequence[int], known: Collection[Hypothesis]
    ) -> list[Hypothesis]:
        """Outcomes of verifying `chain` that the early exit names, likeliest first, none `known`.

        named: for each place of the chain, and the one after it, tokens, best first.
        """
        followed = {(each.accepted, each.final_token) for each in known}
        found, reached = [], 1.0
        shares = self._ranks["exit"].first(max(map(len, named), default=0))
        for accepted, others in enumerate(_refusals(named, chain)):
            stands = self._stands_at(accepted) if accepted < len(chain) else 0.0
            for share, token in zip(shares, others, strict=False):
                if (accepted, token) not in followed:
                    chance = reached * (1 - stands) * share
                    found.append((chance, Hypothesis(accepted, token, "exit")))
            reached *= stands
        found.sort(key=lambda candidate: -candidate[0])
        return [hypothesis for _, hypothesis in found]

    def learn_exit(
        self, named: Sequence[Sequence[int]], chain: Sequence[int], block: Sequence[int]
    ) -> None:
        """The exit had named these tokens where `block` was committed."""
        for place, (others, token) in enumerate(zip(_refusals(named, chain), block, strict=False)):
            if place == len(chain) or token != chain[place]:
                self._ranks["exit"].learn(others, token, self._fade)
                break

    def _candidates(
        self, runner_ups: Sequence[int], chain: int, sources: Collection[Source]
    ) -> Iterator[Candidate]:
        """Outcomes of a chain, where guesses with so many runner-ups are known."""
        reached = 1.0
        named = self._ranks["runner-ups"].first(max(runner_ups, default=0))
        for place in range(chain + 1):
            stands = self._stands_at(place)
            breaks = reached * (1 - stands)
            if place == len(runner_ups):  # nothing is known of this place, so it is the last
                if "bonus" in sources:
                    yield reached, place, None, "bonus"
                elif "masks" in sources or not chain:
                    yield reached, place, None, "masks"
                return
            if place == chain and "bonus" in sources:
                yield reached * stands, place, 0, "bonus"
            if "runner-ups" in sources:
                for rank, share in enumerate(named[: runner_ups[place]], 1):
                    yield breaks * share, place, rank, "runner-ups"
            if "masks" in sources:
                yield breaks, place, None, "masks"
            reached *= stands

    def _stands_at(self, place: int) -> float:
        evaluated, accepted = self._seen[place] if place < len(self._seen) else (0.0, 0.0)
        return (8 * self._stands + accepted) / (8 + evaluated)


class _Ranks:
    """How often a broken proposal's final token stood at each rank of a list."""

    def __init__(self, named: float) -> None:
        self._named = named
        self._lists = 0.0
        self._seen: list[float] = []

    def learn(self, named: Sequence[int], final_token: int, fade: float) -> None:
        self._lists = self._lists * fade + 1
        self._seen = [number * fade for number in self._seen]
        self._seen += [0.0] * (len(named) - len(self._seen))
        if final_token in named:
            self._seen[named.index(final_token)] += 1

    def first(self, count: int) -> list[float]:
        """The share of each of the first `count` ranks."""
        seen = itertools.chain(self._seen, itertools.repeat(0.0))
        expected = 8 * self._named
        return [
            (expected * 0.5**rank + of) / (8 + self._lists)
            for rank, of in zip(range(count), seen, strict=False)
        ]


def _ranked(guess: Guess, rank: int) -> int:
    """The token of a rank: 0 is the guess itself."""
    return guess.runner_ups[rank - 1] if rank else guess.token


def _refusals(named: Sequence[Sequence[int]], chain: Sequence[int]) -> Iterator[list[int]]:
    """What is named at each place but the chain's own token, which would be an acceptance."""
    for place, tokens in enumerate(named[: len(chain) + 1]):
        own = chain[place] if place < len(chain) else None
        yield [token for token in tokens if token != own]
