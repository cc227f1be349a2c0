"""The cost model: how long a round takes and how many tokens it is expected to settle.

Pure functions of measured costs, in seconds. While target and draft both run, each progresses at
1/c of its speed; alone, at full speed. docs/planner.md has it in one page. The law without a shared
bus (c = 1) is that of Mirror-SD (arXiv 2510.13161, section 3).
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import mul

UNREAD = 2  # rows of text that a draft has not read after a round: mostly a guess and a final token


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
        start, end = self.rows[place - 1], self.rows[place]
        first, last = self.seconds[place - 1], self.seconds[place]
        slope = (last - first) / (end - start)
        # Beyond what was measured a call is never taken for shorter.
        return (
            first + (rows - start) * slope if rows <= end else last + (rows - end) * max(0, slope)
        )


NO_DRAFT = Curve((1,), (0.0,))


@dataclass(frozen=True, slots=True)
class Costs:
    """What the calls of one pair of models cost on their devices, in seconds.

    tokens_per_pass: k of the draft. target_slowdown, draft_slowdown: c_t, c_d, at least 1.
    prefix_share: of the target's time, what lies before its early exit; exit_s: what reading the
    exit adds to it. overhead_s: of every round. handing_over_s: of every wait for the draft.
    is_guess: nothing of it was measured on these devices.
    """

    target: Curve
    draft: Curve = NO_DRAFT
    tokens_per_pass: int = 1
    target_slowdown: float = 1.0
    draft_slowdown: float = 1.0
    prefix_share: float = 0.5
    exit_s: float = 0.0
    overhead_s: float = 0.0
    handing_over_s: float = 0.0
    is_guess: bool = False


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


@dataclass(frozen=True, slots=True)
class Hits:
    """How likely an outcome is foreseen, by what is left of its rollout.

    named: all of it. opened: all but the first word, which was the one after the whole proposal.
    begun: what its first pass gave, but for the first word, as it goes on behind a leaf, or where
    another word than that one came. late: what one pass gave, as the early exit named it.
    """

    named: float = 1.0
    opened: float = 0.0
    begun: float = 0.0
    late: float = 0.0


SURE, SURE_OPENED = Hits(), Hits(0.0, 1.0)


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


@cache
def rollout_rows(
    least: int, most: int, tokens_per_pass: int, *, known: int = 0, unread: int = 1
) -> tuple[int, ...]:
    """Rows of each pass that adds to one rollout's `known` guesses until there are `least`.

    The first reads the text's last `unread` tokens, a later one the last alone. Behind them it is
    fed the guesses so far and masks: it gives `tokens_per_pass` guesses, `most` in all.
    """
    rows = []
    while known < least:
        given = min(tokens_per_pass, most - known)
        rows.append(unread + known + given - 1)
        known, unread = known + given, 1
    return tuple(rows)


def is_open(num_draft_tokens: int, tokens_per_pass: int) -> bool:
    """Whether the passes of a proposal have no room for the word after it.

    One hypothesis then begins with that word left open: a guess more, and no final token.
    """
    return num_draft_tokens % tokens_per_pass == 0


def drafting_rows(
    num_draft_tokens: int,
    tokens_per_pass: int,
    *,
    has_next: bool = False,
    unread: int = UNREAD,
) -> tuple[int, ...]:
    """Rows of each pass that drafts a proposal; has_next: and the word after it, if it is free."""
    most = num_draft_tokens + has_next
    return rollout_rows(num_draft_tokens, most, tokens_per_pass, unread=unread)


@cache
def look_ahead_rows(
    num_draft_tokens: int, num_hypotheses: int, tokens_per_pass: int
) -> tuple[int, ...]:
    """Rows of each pass that drafts rollouts under every hypothesis.

    The first reads the chain and the final token before it; every pass feeds the whole branches,
    which are not kept between passes.
    """
    has_open = is_open(num_draft_tokens, tokens_per_pass)
    most = num_draft_tokens + 1 + has_open
    rows = []
    for known in range(0, num_draft_tokens + has_open, tokens_per_pass):
        branch = 1 + known + min(tokens_per_pass, most - known) - 1
        branches = num_hypotheses if known < num_draft_tokens else 1
        rows.append((1 if known else num_draft_tokens + 1) + branches * branch - has_open)
    return tuple(rows)


def draft_s(costs: Costs, rows: Sequence[int]) -> float:
    """Seconds of passes of so many rows each."""
    return sum(map(costs.draft, rows))


def drafting_s(
    costs: Costs, num_draft_tokens: int, *, has_next: bool = False, unread: int = UNREAD
) -> float:
    """Seconds that a proposal is waited for."""
    rows = drafting_rows(num_draft_tokens, costs.tokens_per_pass, has_next=has_next, unread=unread)
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


def looking_ahead(
    costs: Costs, target_s: float, rows: Sequence[int], *, late_s: float = 0.0
) -> tuple[Span, int]:
    """A target's run and passes of so many rows beside it, and how many of these are made.

    The first always is; a later one begins only while nobody has told how the run ended, or what
    the exit named, which then takes a pass of `late_s`.
    """
    made, draft = 0, 0.0
    if late_s:
        told_s = target_s * costs.prefix_share + costs.exit_s
        span = Span(told_s, 0.0)
        while made < len(rows) and (not made or span.draft_s < span.target_s):
            draft += costs.draft(rows[made])
            span = _side_by_side(costs, told_s, draft)
            made += 1
        return together(costs, target_s, draft, late_s=late_s, has_exit=True), made
    span = Span(target_s, 0.0)
    while made < len(rows) and (not made or span.draft_s < span.target_s + costs.overhead_s):
        draft += costs.draft(rows[made])
        span = together(costs, target_s, draft)
        made += 1
    return span, made


def hit_s(
    costs: Costs,
    num_draft_tokens: int,
    num_hypotheses: int,
    *,
    siblings: int = 0,
    of_exit: int = 0,
    hits: Hits = SURE,
) -> float:
    """Seconds of a round whose proposal is there, and beside which the draft looks ahead.

    of_exit: how many of the hypotheses the early exit names, for a further pass. A round
    with a mask-only rollout, which is there whatever the final token was, takes as long. Only on
    a hit the passes are made that there was no time for.
    """
    count, per_pass = num_draft_tokens, costs.tokens_per_pass
    own = num_hypotheses - of_exit
    rows = look_ahead_rows(count, own, per_pass) if own else ()
    late_s = costs.draft(look_ahead_rows(count, of_exit, per_pass)[0]) if of_exit else 0.0
    span, made = looking_ahead(costs, costs.target(count + siblings + 1), rows, late_s=late_s)
    left_s = (
        hits.named * _lengthening_s(costs, count, made * per_pass)
        + hits.opened * _lengthening_s(costs, count, made * per_pass - 1)
        + hits.begun * _lengthening_s(costs, count, per_pass - 1)
        + hits.late * _lengthening_s(costs, count, per_pass)
    )
    return span.seconds + left_s + costs.handing_over_s + costs.overhead_s


def redraft_s(
    costs: Costs,
    num_draft_tokens: int,
    num_hypotheses: int,
    *,
    siblings: int = 0,
    of_exit: int = 0,
    hits: Hits = SURE,
) -> float:
    """Seconds of the round after a miss that drafts a proposal first and then is like a hit's.

    It also drafts the guess that comes after the proposal, the likeliest of the hypotheses.
    """
    after = hit_s(
        costs,
        num_draft_tokens,
        num_hypotheses,
        siblings=siblings,
        of_exit=of_exit,
        hits=hits,
    )
    return drafting_s(costs, num_draft_tokens, has_next=True, unread=1) + after


def bare_s(costs: Costs, num_draft_tokens: int, *, hits: Hits = SURE_OPENED) -> float:
    """Seconds of the round after a miss that verifies the pending token alone.

    Beside it the draft guesses that token's successor, which is left open, and `num_draft_tokens`
    after it. Only on a hit the passes are made that there was no time for.
    """
    count, per_pass = num_draft_tokens, costs.tokens_per_pass
    rows = rollout_rows(count + 1, count + 2, per_pass)
    span, made = looking_ahead(costs, costs.target(1), rows)
    left_s = hits.opened * _lengthening_s(costs, count, made * per_pass - 1)
    left_s += hits.begun * _lengthening_s(costs, count, per_pass - 1)
    return span.seconds + left_s + costs.handing_over_s + costs.overhead_s


def _lengthening_s(costs: Costs, num_draft_tokens: int, known: int) -> float:
    """Seconds of the passes that the rollout that came true lacks, where it has `known` guesses."""
    most = num_draft_tokens + 1
    rows = rollout_rows(num_draft_tokens, most, costs.tokens_per_pass, known=known)
    return draft_s(costs, rows)


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
