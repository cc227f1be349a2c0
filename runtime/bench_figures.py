"""The bench's figures: spreads over answers, ratios to the baseline, and which texts differ."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.bench_runs import Lap, Turn, Way
from runtime.metrics import percentiles_ms
from runtime.prompts import Prompt

SPREAD = (
    "tokens_per_s",
    "ttft_s",
    "tpot_s",
    "mean_acceptance_length",
    "acceptance_rate",
    "hit_rate",
    "hidden_share",
    "overhead_ms",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a conversation first left the baseline's: turn and repeat from 1, token from 0.

    `expected` and `found` are the tokens there, None where that answer had ended. `near_tie`: the
    machine's logits depend on the width of a call, and a choice was as close as that.
    """

    strategy: str
    category: str
    question_id: int
    repeat: int
    turn: int
    token: int
    expected: int | None
    found: int | None
    near_tie: bool


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """The median, and the 10th and 90th percentile, of the values there are; None of none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, median, high = np.percentile(known, (10, 50, 90)).tolist()
    return {"median": median, "p10": low, "p90": high}


def figures(laps: Sequence[Lap], way: Way, baseline: Way) -> dict[str, Any]:
    """What one way took over all laps, by the names of the metrics' schema.

    `ratio`: its tokens_per_s over the baseline's, answer by answer of the same lap and turn.
    `between_tokens_ms`: percentiles over all tokens of all answers.
    """
    pairs = [pair for lap in laps for pair in zip(lap.turns[way], lap.turns[baseline], strict=True)]
    turns = [turn for turn, _ in pairs]
    return {
        "answers": len(turns),
        "emitted_tokens": sum(turn.metrics["emitted_tokens"] for turn in turns),
        **{name: spread(turn.metrics[name] for turn in turns) for name in SPREAD},
        "ratio": spread(_ratio(turn, other) for turn, other in pairs),
        "between_tokens_ms": percentiles_ms(
            [second for turn in turns for second in turn.between_tokens_s]
        ),
        "void_runs": sum(turn.metrics["void_runs"] for turn in turns),
        "near_ties": sum(turn.metrics["near_ties"] for turn in turns),
        "finish_reasons": dict(Counter(turn.metrics["finish_reason"] for turn in turns)),
        "draft_errors": [
            turn.metrics["draft_error"] for turn in turns if turn.metrics["draft_error"]
        ],
    }


def differences(
    laps: Sequence[Lap], ways: Sequence[Way], exactness: Mapping[Way, str]
) -> list[Difference]:
    """Every conversation that is not, token for token, the baseline's first one on its prompt.

    The baseline is the first of `ways`; its own later repeats are compared as well. `exactness`:
    `bitwise`, or a machine on which near-ties may part.
    """
    baseline = ways[0]
    expected: dict[Prompt, Sequence[Turn]] = {}
    found = []
    for lap in laps:
        wanted = expected.setdefault(lap.prompt, lap.turns[baseline])
        for way in ways:
            may_part = not exactness[way] == exactness[baseline] == "bitwise"
            difference = _first_difference(lap, way, wanted, may_part=may_part)
            if difference is not None:
                found.append(difference)
    return found


def equal(way: Way, found: Sequence[Difference]) -> str:
    """`yes`; `near-tie` where every difference was one; else `no`."""
    own = [difference.near_tie for difference in found if difference.strategy == str(way)]
    return ("near-tie" if all(own) else "no") if own else "yes"


def _ratio(turn: Turn, other: Turn) -> float | None:
    speed, base = turn.metrics["tokens_per_s"], other.metrics["tokens_per_s"]
    return speed / base if speed and base else None


def _first_difference(
    lap: Lap, way: Way, wanted: Sequence[Turn], *, may_part: bool
) -> Difference | None:
    for number, (turn, other) in enumerate(zip(lap.turns[way], wanted, strict=True), 1):
        if turn.tokens == other.tokens:
            continue
        pairs = zip(turn.tokens, other.tokens, strict=False)
        shorter = min(len(turn.tokens), len(other.tokens))
        place = next((i for i, (one, two) in enumerate(pairs) if one != two), shorter)
        ties = turn.metrics["near_ties"] + other.metrics["near_ties"]
        return Difference(
            str(way),
            lap.prompt.category,
            lap.prompt.question_id,
            lap.repeat,
            number,
            place,
            other.tokens[place] if place < len(other.tokens) else None,
            turn.tokens[place] if place < len(turn.tokens) else None,
            may_part and ties > 0,
        )
    return None
