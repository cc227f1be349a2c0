"""Figures of replays: speeds, and how much of what overlap can give was had."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from runtime.profiles import Profile
from runtime.timeline import busy, within
from scripts.emulated.replay import Replayed


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds of all hit rounds: one after the other, by the law of overlap, and as they were."""

    in_turn: float
    by_law: float
    taken: float

    @property
    def could(self) -> float | None:
        """What overlap alone can give, (t + d) / T."""
        return self.in_turn / self.by_law if self.by_law else None

    @property
    def share(self) -> float | None:
        """Which share of it was had."""
        return self.by_law / self.taken if self.taken else None


def overlapped(target: float, draft: float, c_target: float, c_draft: float) -> float:
    """Seconds of two runs that begin together and slow each other while both last.

    Whichever ends first takes c times as long; meanwhile the other does 1/c' of it.
    """
    if draft * c_draft <= target * c_target:
        return target + draft * c_draft * (1 - 1 / c_target)
    return draft + target * c_target * (1 - 1 / c_draft)


def overlap(replays: Sequence[Replayed], profile: Profile) -> Overlap:
    """Of the rounds whose proposal the draft had made while the round before was verified.

    Each is as long as its calls alone and the overhead say, and as it was.
    """
    in_turn = by_law = taken = 0.0
    c_target, c_draft = profile.target.contention.value, profile.draft.contention.value
    overhead = profile.overhead_ms.value / 1000
    for each in replays:
        rounds = each.metrics.round_log
        for before, now in pairwise(rounds):
            if before.hit:
                target, draft = busy(within(each.target, now)), busy(within(each.draft, now))
                in_turn += target + draft + overhead
                by_law += overlapped(target, draft, c_target, c_draft) + overhead
                taken += now.end - now.start
    return Overlap(in_turn, by_law, taken)


def tokens_per_s(replays: Sequence[Replayed]) -> float:
    """Of all answers together, after each one's first token."""
    tokens = sum(each.metrics.emitted_tokens - 1 for each in replays)
    return tokens / sum(_after_first(each) for each in replays)


def length(replays: Sequence[Replayed]) -> float:
    """Tokens a round."""
    settled = sum(each.metrics.settled_tokens for each in replays)
    return settled / max(1, sum(each.metrics.rounds for each in replays))


def hit_rate(replays: Sequence[Replayed]) -> float | None:
    """Rounds whose outcome was foreseen, of those in which the draft looked ahead."""
    followed = sum(each.metrics.rounds_followed for each in replays)
    foreseen = sum(each.metrics.rounds_foreseen for each in replays)
    return foreseen / followed if followed else None


def needed(speed_ups: Sequence[tuple[float, float]], goal: float) -> float | None:
    """The agreement that gives a speed-up, of (agreement, speed-up) in order; None: more than all.

    Between two of them by a straight line; the first where that is enough.
    """
    if speed_ups[0][1] >= goal:
        return speed_ups[0][0]
    for (low, slow), (high, fast) in pairwise(speed_ups):
        if fast >= goal:
            return low + (high - low) * (goal - slow) / (fast - slow)
    return None


def _after_first(each: Replayed) -> float:
    ended, first = each.metrics.ended, each.metrics.first_token
    return 0.0 if ended is None or first is None else ended - first
