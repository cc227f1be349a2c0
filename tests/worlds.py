"""Small worlds in which rounds take known times and guesses stand with known chances.

A text is drawn once: whether a guess for a place of it is right depends on the place and on how far
ahead it was guessed, not on who decodes it how, so that ways are compared on the same luck. Times
are worked out here anew: no formula of the runtime's is used.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from runtime.planner import Choice, Planner, Round

TOKENS = 128
RUNNER_UPS = 4
LONGEST = 8

Time = Callable[[int], float]


@dataclass(frozen=True)
class World:
    """Seconds of calls by rows, and by text: agreement at each place, copies, and how hot it is.

    agreement: of the draft at the first place, the second, …; copying: that a copied token is right
    behind a match of 0 or 1, 2, 3, … tokens. heat: what all times of a text are multiplied with.
    """

    target: Time
    draft: Time
    agreement: Callable[[int], Sequence[float]]
    copying: Callable[[int], Sequence[float]] = lambda _text: (0.05, 0.1, 0.2)
    heat: Callable[[int], float] = lambda _text: 1.0
    per_pass: int = 5
    target_slowdown: float = 1.0
    draft_slowdown: float = 1.0
    ranks: Sequence[float] = (0.35, 0.15, 0.08, 0.04)
    overhead_s: float = 0.0


class Text:
    """What one text holds."""

    def __init__(self, world: World, number: int, seed: int) -> None:
        self.heat = world.heat(number)
        rng = np.random.default_rng([seed, number])
        size = TOKENS + 2 * LONGEST
        agreement = np.resize(np.array(world.agreement(number), float), LONGEST + 1)
        self.right = (rng.random(size)[:, None] < agreement).tolist()
        self.rank = (1 + np.searchsorted(np.cumsum(world.ranks), rng.random(size))).tolist()
        self.match = [0] * (size + 1)
        self.copied = [False] * size
        chances = world.copying(number)
        luck = rng.random((2, size)).tolist()
        for place in range(size):
            length = self.match[place]
            chance = chances[min(max(length - 1, 0), len(chances) - 1)]
            self.copied[place] = luck[0][place] < chance
            # A lone token has stood somewhere before more often than not.
            self.match[place + 1] = length + 1 if self.copied[place] else int(luck[1][place] < 0.7)

    def stands(self, source: str, place: int, count: int) -> int:
        """How many of the `count` tokens that a source guesses from a place on are right."""
        for at in range(count):
            if not (self.copied[place + at] if source == "lookup" else self.right[place + at][at]):
                return at
        return count


@functools.cache
def hypotheses(length: int, count: int) -> set[tuple[int, int]]:
    """What a simple draft works on: (place, rank), places less likely the further they are."""
    ranks = range(1, RUNNER_UPS + 1)
    found = [(0.75**place * 0.5**rank, place, rank) for place in range(length) for rank in ranks]
    found += [(0.75**length * 0.5**rank, length, rank) for rank in (0, *ranks)]
    return {(place, rank) for _, place, rank in sorted(found, reverse=True)[:count]}


class _Times(NamedTuple):
    """Seconds of a round, and rows of the draft's passes beside the target and after it."""

    target_s: float
    draft_s: float
    seconds: float
    ahead: tuple[int, ...]
    after: tuple[int, ...]


class Decoder:
    """Decodes texts of a world round by round; the clock is the sum of its rounds."""

    def __init__(self, world: World) -> None:
        self.world, self.seconds = world, 0.0
        self.unread = 0

    def begin(self, text: Text) -> None:
        self.text, self.place = text, 0
        self.rollout = 0
        self.unread = 0

    @property
    def room(self) -> int:
        return TOKENS - self.place - 1

    @property
    def match(self) -> int:
        return self.text.match[self.place]

    def round(self, choice: Choice) -> Round:
        """Have one round and say what it was."""
        text = self.text
        count = min(choice.num_draft_tokens, self.room)
        if choice.source == "none" or (choice.source == "lookup" and not self.match):
            count = 0
        match = self.match
        drafted = self._drafted(choice, count)
        accepted = text.stands(choice.source, self.place, count)
        broke = self.place + accepted
        rank = None
        if choice.source == "model" and (accepted < count or choice.num_hypotheses):
            whole = accepted == count and text.right[broke][accepted]
            rank = 0 if whole else text.rank[broke]
        hit = None
        ahead: tuple[int, ...] = ()
        self.rollout = 0
        k = self.world.per_pass
        is_open = accepted == count and count % k == 0
        if choice.num_hypotheses and choice.source == "model":
            ahead = self._ahead(count, choice.num_hypotheses)
            hit = (accepted, rank) in hypotheses(count, choice.num_hypotheses)
            if is_open and k > 1:  # whatever stands there, the masks after it hold
                hit = (accepted, 0) in hypotheses(count, choice.num_hypotheses)
            self.rollout = (choice.num_draft_tokens or count) if hit else 0
        elif choice.num_hypotheses:  # a bare token, and the draft guesses it and what follows
            ahead = self._in_passes(choice.num_draft_tokens + 1)
            rank = 0 if text.right[broke][0] else text.rank[broke]
            hit = k > 1 or rank == 0
            self.rollout = choice.num_draft_tokens if hit else 0
        times = self._times(count + 1, drafted, ahead, is_open=is_open, is_right=rank == 0)
        self.place += accepted + 1
        self.unread = accepted + 1 + (0 if drafted or ahead else self.unread)
        self.seconds += times.seconds
        return Round(
            choice,
            times.seconds,
            times.target_s,
            nodes=count,
            proposed=count,
            accepted=accepted,
            rank=rank,
            hit=hit,
            match_length=match,
            draft_s=times.draft_s,
            drafted=drafted,
            ahead=times.ahead,
            after=times.after,
        )

    def _drafted(self, choice: Choice, count: int) -> tuple[int, ...]:
        if choice.source != "model" or self.rollout or not count:
            return ()
        return self._in_passes(count)

    def _in_passes(self, count: int) -> tuple[int, ...]:
        k = self.world.per_pass
        return tuple(
            (max(1, self.unread) if at == 0 else 1 + at) + min(k, count - at) - 1
            for at in range(0, count, k)
        )

    def _ahead(self, count: int, branches: int) -> tuple[int, ...]:
        """Where the last pass has no room for the word after, one branch begins with it open."""
        k = self.world.per_pass
        rows = [
            (count if at == 0 else 0) + 1 + branches * (at + min(k, count + 1 - at))
            for at in range(0, count, k)
        ]
        return tuple(rows) if count % k else (*rows, 1 + count)

    def _wanted(self, made: int, *, is_open: bool, is_right: bool) -> tuple[int, ...]:
        """Passes that the rollout lacks after `made` of them.

        Of one that began with an open place only the first pass counts where another word came.
        """
        k, count = self.world.per_pass, self.rollout
        known = (made if is_right or not is_open else 1) * k - is_open
        return tuple(at + min(k, count + 1 - at) for at in range(known, count, k))

    def _times(
        self,
        rows: int,
        drafted: Sequence[int],
        ahead: Sequence[int],
        *,
        is_open: bool,
        is_right: bool,
    ) -> _Times:
        """Passes beside the target begin while it runs; those that are wanted still, follow."""
        world, heat = self.world, self.text.heat
        t = heat * world.target(rows)
        before = heat * sum(world.draft(each) for each in drafted)
        target_s, draft_s, made = t, 0.0, 0
        ct, cd = world.target_slowdown, world.draft_slowdown
        while made < len(ahead) and (not made or draft_s < target_s):
            made += 1
            d = heat * sum(world.draft(each) for each in ahead[:made])
            both = min(t * ct, d * cd)  # wall seconds in which both run
            target_s, draft_s = both + (t - both / ct), both + (d - both / cd)
        after = self._wanted(made, is_open=is_open, is_right=is_right) if ahead else ()
        left = heat * sum(world.draft(each) for each in after)
        seconds = before + max(target_s, draft_s) + left + world.overhead_s
        return _Times(target_s, before + draft_s + left, seconds, tuple(ahead[:made]), after)


def texts(world: World, count: int, *, seed: int = 1) -> list[Text]:
    """The first texts of a world."""
    return [Text(world, number, seed) for number in range(count)]


def fixed_s(world: World, choice: Choice, own: Sequence[Text]) -> float:
    """Seconds that one way takes over all texts."""
    decoder = Decoder(world)
    for text in own:
        decoder.begin(text)
        while decoder.place < TOKENS:
            decoder.round(choice)
    return decoder.seconds


def planned_s(world: World, planner: Planner, own: Sequence[Text]) -> float:
    """Seconds that a planner takes over all texts."""
    decoder = Decoder(world)
    for text in own:
        decoder.begin(text)
        planner.begin()
        while decoder.place < TOKENS:
            choice = planner.choose(max(0, decoder.room), decoder.match, rollout=decoder.rollout)
            planner.learn(decoder.round(choice))
    return decoder.seconds
