"""Within which bounds `auto` plans: its usual ones, or what a session was asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.estimates import MOST_PLACES
from runtime.hypotheses import Source
from runtime.settings import Settings
from runtime.ways import ALL, HALF, HYPOTHESES, NO_EXIT

DRAFT_TOKENS = 8
SIBLINGS = (0, 2, 4)  # numbers of leaves that a planned proposal may have


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest proposal, and the numbers of hypotheses and of leaves to choose from.

    hypotheses: ascending; none where the draft is to rest while the target verifies. siblings:
    ascending from 0.
    """

    num_draft_tokens: int = DRAFT_TOKENS
    hypotheses: tuple[int, ...] = HYPOTHESES
    siblings: tuple[int, ...] = SIBLINGS


def limits_of(settings: Settings, *, has_trees: bool) -> Limits:
    """What was asked for is the most of it; no leaves unless proposals may be trees."""
    length, count = settings.num_draft_tokens, settings.num_hypotheses
    siblings = settings.num_siblings if has_trees else 0
    return Limits(
        DRAFT_TOKENS if length is None else min(length, MOST_PLACES),
        HYPOTHESES if count is None else _up_to(count, HYPOTHESES),
        SIBLINGS if siblings is None else _up_to(siblings, SIBLINGS),
    )


def exits_of(sources: Sequence[Source]) -> tuple[int, ...]:
    """What part of the hypotheses the early exit may name, where they come from these sources."""
    if "exit" not in sources:
        return (NO_EXIT,)
    return (ALL,) if len(sources) == 1 else (NO_EXIT, HALF)


def _up_to(most: int, usual: Sequence[int]) -> tuple[int, ...]:
    """`most` and what of the usual numbers is below; beyond them their last is doubled."""
    numbers = [each for each in usual if each < most]
    while numbers and numbers[-1] >= usual[-1] and 2 * numbers[-1] < most:
        numbers.append(2 * numbers[-1])
    return (*numbers, most) if most >= usual[0] else ()
