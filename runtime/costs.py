"""The cost model: how long a round takes and how many tokens it is expected to settle.

Pure functions of measured costs, in seconds. While target and draft both run, each progresses at
1/c of its speed; alone, at full speed. docs/planner.md has it in one page. The law without a shared
bus (c = 1) is that of Mirror-SD (arXiv 2510.13161, section 3).
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

UNREAD = (
    2  # rows of text that a draft has not read after a round: mostly a guess and the final token
)


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a call by its rows, measured at some, and a line between and beyond them.

    rows: ascending, at least one. Below the first it is as long as the first.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, rows: float) -> float:
        """Seconds of a call of so many rows."""
        place = bisect.bisect_left(self.rows, rows)
        if place == 0 or len(self.rows) == 1:
            return self.seconds[0]
        place = min(place, len(self.rows) - 1)
        start, end = self.rows[place - 1 : place + 1]
        first, last = self.seconds[place - 1 : place + 1]
        slope = (last - first) / (end - start)
        # Beyond what was measured a call is never taken for shorter.
        return (
            first + (rows - start) * slope if rows <= end else last + (rows - end) * max(0, slope)
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """What the calls of one pair of models cost on their devices, in seconds.

    tokens_per_pass: k of the draft. target_slowdown, draft_slowdown: c_t, c_d, at least 1.
    prefix_share: of the target's time, what lies before its early exit; exit_s: what reading the
    exit adds to it. overhead_s: of every round. handing_over_s: of every wait for the draft.
    """

    target: Curve
    draft: Curve = Curve((1,), (0.0,))
    tokens_per_pass: int = 1
    target_slowdown: float = 1.0
    draft_slowdown: float = 1.0
    prefix_share: float = 0.5
    exit_s: float = 0.0
    overhead_s: float = 0.0
    handing_over_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """Two runs that begin together: when each ends."""

    target_s: float
    draft_s: float

    @property
    def seconds(self) -> float:
        """When both have ended."""
        return max(self.target_s, self.draft_s)


@dataclass(frozen=True, slots=True)
class Stage:
    """A kind of round: tokens and seconds expected of it, and how likely a proposal comes of it."""

    tokens: float
    seconds: float
    hit: float = 0.0


def together(
    costs: Costs, target_s: float, draft_s: float, *, late_s: float = 0.0, has_exit: bool = False
) -> Span:
    """A target's run of `target_s` and a draft's of `draft_s`, each as long as it takes alone.

    late_s: passes of the draft that need the early exit, so that they start after the prefix at the
    soonest. With `has_exit` the target's run also reads its exit.
    """
    if not has_exit:
        return _side_by_side(costs, target_s, draft_s)
    prefix = target_s * costs.prefix_share
    suffix = target_s - prefix
    first = _side_by_side(costs, prefix + costs.exit_s, draft_s)
    if first.draft_s <= first.target_s:  # the draft rests until the exit is there
        rest = _side_by_side(costs, suffix, late_s)
        draft_end = first.target_s + rest.draft_s if late_s else first.draft_s
        return Span(first.target_s + rest.target_s, draft_end)
    # At the exit the draft is still at work: what is left of it goes on.
    left = draft_s - first.target_s / costs.draft_slowdown
    rest = _side_by_side(costs, suffix, left + late_s)
    return Span(first.target_s + rest.target_s, first.target_s + rest.draft_s)


def _side_by_side(costs: Costs, target_s: float, draft_s: float) -> Span:
    """Both run until the shorter ends; the other goes on alone.

    Of a target slowed down c_t times for s seconds, s / c_t is done, so s * (1 - 1 / c_t) is lost.
    """
    target, draft = target_s * costs.target_slowdown, draft_s * costs.draft_slowdown
    if draft <= target:
        return Span(target_s + draft * (1 - 1 / costs.target_slowdown), draft)
    return Span(target, draft_s + target * (1 - 1 / costs.draft_slowdown))


def drafting_rows(num_draft_tokens: int, tokens_per_pass: int) -> list[int]:
    """Rows of each pass that drafts so many tokens after a text of which two are not read yet.

    A pass has the text that is not read, ending in the guesses of the pass before, and the masks.
    """
    rows, unread = [], UNREAD
    for left in range(num_draft_tokens, 0, -tokens_per_pass):
        rows.append(unread + min(left, tokens_per_pass) - 1)
        unread = tokens_per_pass
    return rows


def look_ahead_rows(num_draft_tokens: int, num_hypotheses: int, tokens_per_pass: int) -> list[int]:
    """Rows of each pass that drafts rollouts and the guess after them under every hypothesis.

    The first reads the chain and the final token before it; every pass feeds the whole branches,
    which are not kept between passes.
    """
    passes = math.ceil((num_draft_tokens + 1) / tokens_per_pass)
    branches = num_hypotheses * tokens_per_pass
    return [
        (num_draft_tokens + 1 if number == 1 else 1) + number * branches
        for number in range(1, passes + 1)
    ]


def draft_s(costs: Costs, rows: Sequence[int]) -> float:
    """Seconds of passes of so many rows each."""
    return sum(map(costs.draft, rows))


def drafting_s(costs: Costs, num_draft_tokens: int) -> float:
    """Seconds that a proposal is waited for."""
    rows = drafting_rows(num_draft_tokens, costs.tokens_per_pass)
    return draft_s(costs, rows) + costs.handing_over_s if rows else 0.0


def autoregressive_s(costs: Costs) -> float:
    """Seconds of a round of the pending token alone."""
    return costs.target(1) + costs.overhead_s


def lookup_s(costs: Costs, nodes: int) -> float:
    """Seconds of a round with `nodes` tokens that cost nothing to propose."""
    return costs.target(nodes + 1) + costs.overhead_s


def speculative_s(costs: Costs, num_draft_tokens: int, *, siblings: int = 0) -> float:
    """Seconds of a round that drafts, then verifies."""
    return drafting_s(costs, num_draft_tokens) + lookup_s(costs, num_draft_tokens + siblings)


def hit_s(
    costs: Costs,
    num_draft_tokens: int,
    num_hypotheses: int,
    *,
    siblings: int = 0,
    late_passes: int = 0,
) -> float:
    """Seconds of a round whose proposal is there, and beside which the draft looks ahead.

    late_passes: further passes that the early exit feeds; 0 when the target has none. A round
    with a mask-only rollout, which is there whatever the final token was, takes as long.
    """
    rows = look_ahead_rows(num_draft_tokens, num_hypotheses, costs.tokens_per_pass)
    span = together(
        costs,
        costs.target(num_draft_tokens + siblings + 1),
        draft_s(costs, rows),
        late_s=late_passes * costs.draft(rows[-1]),
        has_exit=late_passes > 0,
    )
    return span.seconds + costs.handing_over_s + costs.overhead_s


def redraft_s(
    costs: Costs,
    num_draft_tokens: int,
    num_hypotheses: int,
    *,
    siblings: int = 0,
    late_passes: int = 0,
) -> float:
    """Seconds of the round after a miss that drafts a proposal first and then is like a hit's.

    It also drafts the guess that comes after the proposal, the likeliest of the hypotheses.
    """
    hit = hit_s(costs, num_draft_tokens, num_hypotheses, siblings=siblings, late_passes=late_passes)
    return drafting_s(costs, num_draft_tokens + 1) + hit


def bare_s(costs: Costs, num_draft_tokens: int) -> float:
    """Seconds of the round after a miss that verifies the pending token alone.

    Beside it the draft guesses that token's successor and `num_draft_tokens` after it.
    """
    rows = drafting_rows(num_draft_tokens + 1, costs.tokens_per_pass)
    span = together(costs, costs.target(1), draft_s(costs, rows))
    return span.seconds + costs.handing_over_s + costs.overhead_s


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Tokens a round settles: those accepted and the final one.

    acceptance: for each place, how likely its guess is right where all before it are.
    """
    return sum(accumulate(acceptance, mul), 1.0)


def tokens_per_second(hit: Stage, miss: Stage) -> float:
    """Speed in the long run of rounds after hits and after misses, each by how often it occurs.

    Between the two the rounds go as a chain: one after a hit hits again with `hit.hit`, one after a
    miss with `miss.hit`.
    """
    leaving = 1.0 - hit.hit
    after_hit = miss.hit / (miss.hit + leaving) if miss.hit + leaving else 1.0
    tokens = after_hit * hit.tokens + (1.0 - after_hit) * miss.tokens
    return tokens / (after_hit * hit.seconds + (1.0 - after_hit) * miss.seconds)
