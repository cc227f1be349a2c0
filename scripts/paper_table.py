"""Set the cost model beside the table of the Mirror-SD paper; print it for docs/paper-table.md.

    python scripts/paper_table.py

The paper (arXiv 2510.13161v2, Table 1) gives speed-ups and no acceptance lengths. So the acceptance
is the one that explains its plain speculative decoding, and from it follows what its latency law,
T = T_prefix + max(T_suffix, T_draft), lets expect of a mirror. What is assumed is in ASSUMED.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime.costs import (
    Costs,
    Curve,
    Stage,
    draft_s,
    drafting_s,
    expected_tokens,
    speculative_s,
    together,
    tokens_per_second,
)

GAMMA = 7
TASKS = (
    "translation",
    "summarization",
    "question answering",
    "mathematics",
    "retrieval",
    "conversation",
)
# Speed-ups over autoregressive decoding at temperature 0: Mirror-SD, plain speculative decoding.
PUBLISHED = {
    "Qwen3-14B": ((4.13, 3.07, 3.18, 5.32, 3.49, 3.70), (2.34, 1.76, 1.81, 2.80, 2.02, 2.07)),
    "Qwen3-32B": ((3.72, 3.14, 3.04, 5.84, 3.42, 3.59), (2.74, 2.07, 2.06, 3.33, 2.33, 2.67)),
}
PARAMETERS_B = {"Qwen3-14B": 14, "Qwen3-32B": 32}
DRAFT_B = 0.6
VERIFYING = 1.05  # of γ + 1 rows, in calls of one row
PREFIX_SHARE = 0.5
DEARER = (1, 3)  # the draft's token, in what its weights alone would cost
HIT_RATES = (1.0, 0.8)
ASSUMED = (
    ("γ = 7, exit at half depth, one text at a time, drafts of 0.5 to 0.6 B", "published"),
    ("a rendezvous takes no time (of the order of microseconds)", "published"),
    ("parameters: 14, 32 and 0.6 B, all in one precision", "by the models' names"),
    (
        "a token of the draft costs its share of the parameters: 0.043 and 0.019 of a target's "
        "call, as both are bound by reading weights",
        "derived",
    ),
    ("small models run further from that bound: also three times as much", "guessed"),
    (
        "eight rows cost 1.05 of one, as an accelerator shows for an 8 B target (ANEForge PR 49: "
        "five rows)",
        "derived",
    ),
    ("acceptance is the same at each place, and that of plain speculation", "guessed"),
    (
        "the mirror's draft costs what that of plain speculation does, token by token; or it gives "
        "several tokens a pass, as the paper's may, and all of it is hidden",
        "guessed",
    ),
    ("all of its work waits for the exit, and neither device slows the other down", "guessed"),
    ("hit rates of 1 (the most there can be) and 0.8; a miss drafts anew", "guessed"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the paper's table beside the model's, for one cost of a drafted token.

    acceptance: at each place; None where no acceptance explains the plain speed-up. expected: the
    mirror's speed-up for each of HIT_RATES, and with hits alone and all drafting hidden.
    """

    target: str
    task: str
    draft: float
    plain: float
    mirror: float
    acceptance: float | None
    expected: tuple[float, ...]


def costs_of(target: str, dearer: float) -> Costs:
    """What calls cost, in calls of the target of one row."""
    draft = dearer * DRAFT_B / PARAMETERS_B[target]
    return Costs(
        Curve((1, GAMMA + 1), (1.0, VERIFYING)), Curve((1,), (draft,)), prefix_share=PREFIX_SHARE
    )


def acceptance_for(tokens: float) -> float | None:
    """The acceptance at each of γ places that gives so many tokens a round; None: none does."""
    if not 1 <= tokens <= GAMMA + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens([middle] * GAMMA) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def mirror_speed(costs: Costs, tokens: float, hit_rate: float) -> float:
    """Speed-up of rounds that settle `tokens` each, `hit_rate` of them with a rollout at hand."""
    verifying = costs.target(GAMMA + 1)
    late = draft_s(costs, [1] * GAMMA)
    hit_s = together(costs, verifying, 0.0, late_s=late, has_exit=True).seconds
    hit = Stage(tokens, hit_s, hit_rate)
    miss = Stage(tokens, hit_s + drafting_s(costs, GAMMA), hit_rate)
    return tokens_per_second(hit, miss)


def rows() -> Iterator[Row]:
    """All lines of the table for every cost of a drafted token."""
    for target, (mirrors, plains) in PUBLISHED.items():
        for task, mirror, plain in zip(TASKS, mirrors, plains, strict=True):
            for dearer in DEARER:
                costs = costs_of(target, dearer)
                tokens = plain * speculative_s(costs, GAMMA)
                yield Row(
                    target,
                    task,
                    costs.draft(1),
                    plain,
                    mirror,
                    acceptance_for(tokens),
                    (
                        *(mirror_speed(costs, tokens, rate) for rate in HIT_RATES),
                        tokens / costs.target(GAMMA + 1),
                    ),
                )


def needed(plain: float, mirror: float) -> float:
    """A drafted token's cost with which hits alone make `mirror` of `plain`, in target's calls.

    That is where all drafting is hidden: (verifying + γ · cost) / verifying = mirror / plain.
    """
    return VERIFYING * (mirror / plain - 1) / GAMMA


def table(found: Sequence[Row]) -> str:
    """The lines in Markdown; several costs of a drafted token stand in one cell."""
    heads = ["target", "task", "plain", "acceptance", "mirror, hit rate 1", "0.8"]
    heads += ["all hidden", "paper", "token needed"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for start in range(0, len(found), len(DEARER)):
        group = found[start : start + len(DEARER)]
        first = group[0]
        cells = [
            first.target,
            first.task,
            f"{first.plain:.2f}",
            ", ".join("–" if row.acceptance is None else f"{row.acceptance:.2f}" for row in group),
            *(
                ", ".join(f"{row.expected[place]:.2f}" for row in group)
                for place in range(len(first.expected))
            ),
            f"{first.mirror:.2f}",
            f"{needed(first.plain, first.mirror):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def deviations(found: Sequence[Row]) -> str:
    """How far figures of the model with hits alone lie from the paper's."""
    lines = ["| a token of the draft | | mean of model / paper | range |", "|---|---|---|---|"]
    for place, dearer in enumerate(DEARER):
        for what, at in (("token by token", 0), ("all hidden", -1)):
            ratios = [row.expected[at] / row.mirror for row in found[place :: len(DEARER)]]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            lines.append(f"| {dearer} × its weights | {what} | {mean:.2f} | {spread} |")
    return "\n".join(lines)


def report() -> str:
    """The assumptions and the table."""
    found = list(rows())
    assumed = ["| assumed | |", "|---|---|", *(f"| {what} | {how} |" for what, how in ASSUMED)]
    costs = " and ".join(map(str, DEARER))
    return "\n\n".join(
        [
            "\n".join(assumed),
            f"Of the figures in a cell, a token of the draft costs {costs} times its weights.",
            table(found),
            "With hits alone:",
            deviations(found),
        ]
    )


if __name__ == "__main__":
    print(report())
