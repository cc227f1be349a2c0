"""Compare the cost model with rounds of the real engine on emulated devices.

    python scripts/check_cost_model.py

Engine, strategies, worker and its thread are the real ones, on a virtual clock; drafts are scripted
(right in 0.7 at each place). The cost model is given the devices' own curves, and how often the
draft had foreseen the outcome. Ends with 1 where a mean round is more than 5 % off, or less than
0.95 of a draft's time is hidden on hits where its pass is the shorter one.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.emulated.modelled import Case, Compared, compared

MOST_OFF = 0.05
LEAST_HIDDEN = 0.95
RATIOS = (0.2, 0.5, 0.9, 1.0, 1.1, 2.0, 4.0)
SLOWDOWNS = ((1.3, 1.3), (2.0, 2.0), (1.0, 1.3), (1.3, 2.0), (2.0, 1.3))  # of target and draft
CASES = (
    Case(0.5, 5, 4, draft="lookup"),
    Case(0.2, 1, 3),
    Case(0.5, 5, 4),
    Case(1.1, 5, 4, siblings=2),
    *(Case(ratio, 5, 4, 8) for ratio in RATIOS),
    Case(0.5, 5, 2, 4, siblings=2),
    Case(1.1, 5, 2, 4, siblings=2),
    Case(0.5, 5, 4, 8, redraft=False),
    Case(2.0, 5, 4, 8, redraft=False),
    Case(0.5, 5, 7, 8),
    Case(1.1, 5, 7, 8),
    Case(0.2, 5, 7, 4, redraft=False),
    Case(0.5, 1, 1, 1),
    Case(2.0, 1, 1, 4),
    Case(0.2, 1, 3, 4),
    Case(0.9, 1, 3, 4, redraft=False),
    Case(0.5, 1, 3, 8, siblings=2),
    Case(0.2, 1, 7, 8),
    Case(1.0, 1, 7, 8),
)


def main() -> int:
    """Print a line for each way and ratio; 1 where any is out of bounds."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    found: list[Compared] = []
    print(
        "| draft / target | emulated | hits | predicted ms | emulated ms | off % | "
        "with contention: c_t, c_d | predicted ms | emulated ms | off % | hidden |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        alone, *beside = these = [compared(each) for each in with_contention(case)]
        print(line(alone, beside), flush=True)
        found += these
    worst = max(found, key=lambda each: abs(each.difference))
    print(f"\n{len(found)} settings, at most {100 * abs(worst.difference):.1f} % off.")
    hidden = [each.hidden for each in found if is_hidden(each) and each.hidden is not None]
    print(
        f"Where a pass of the draft is the shorter, at least {min(hidden):.3f} of its time is "
        f"hidden on hits ({len(hidden)} settings)."
    )
    return int(abs(worst.difference) > MOST_OFF or min(hidden) < LEAST_HIDDEN)


def with_contention(case: Case) -> list[Case]:
    """The case, and with both devices slowing each other down where both are ever at work."""
    if not case.hypotheses:
        return [case]
    return [
        case,
        *(replace(case, target_slowdown=ours, draft_slowdown=its) for ours, its in SLOWDOWNS),
    ]


def is_hidden(of: Compared) -> bool:
    """Whether the draft's time should be hidden: one pass is all it makes, and ends first."""
    case = of.case
    return case.hypotheses > 0 and case.length < case.per_pass and case.draft_is_shorter


def line(alone: Compared, beside: Sequence[Compared]) -> str:
    """A line of the table: without contention, and with it where it is furthest off."""
    case = alone.case
    hits = "" if alone.hit_rate is None else f"{alone.hit_rate:.2f}"
    parts = [f"{case.ratio:g}", str(case), hits, *_figures(alone)]
    if beside:
        worst = max(beside, key=lambda each: abs(each.difference))
        slowdowns = f"{worst.case.target_slowdown:g}, {worst.case.draft_slowdown:g}"
        parts += [slowdowns, *_figures(worst)]
    else:
        parts += [""] * 4
    shares = [each.hidden for each in (alone, *beside) if each.hidden is not None]
    parts.append(f"{min(shares):.2f} to {max(shares):.2f}" if shares else "")
    return f"| {' | '.join(parts)} |"


def _figures(of: Compared) -> list[str]:
    return [f"{of.predicted_ms:.1f}", f"{of.emulated_ms:.1f}", f"{100 * of.difference:+.1f}"]


if __name__ == "__main__":
    sys.exit(main())
