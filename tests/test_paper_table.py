"""The paper's table by the cost model: its parts by hand, and the page that shows it."""

from pathlib import Path

import pytest

from runtime.costs import Costs, Curve
from scripts.paper_table import (
    DEARER,
    GAMMA,
    PUBLISHED,
    VERIFYING,
    acceptance_for,
    costs_of,
    mirror_speed,
    needed,
    report,
    rows,
)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 0.95, 1.0])
def test_the_acceptance_that_explains_so_many_tokens(acceptance: float) -> None:
    tokens = sum(acceptance**place for place in range(GAMMA + 1))
    found = acceptance_for(tokens)
    assert found is not None
    assert found == pytest.approx(acceptance, abs=1e-6)
    assert acceptance_for(GAMMA + 1.1) is None


def test_the_law_of_latency() -> None:
    def speed(draft: float, hit_rate: float) -> float:
        costs = Costs(Curve((1, 8), (1.0, 1.2)), Curve((1,), (draft,)), prefix_share=0.5)
        return mirror_speed(costs, 3.0, hit_rate)

    # Seven tokens in 0.35 fit beside the suffix of 0.6; in 1.4 they end 0.8 after it.
    assert speed(0.05, 1.0) == pytest.approx(3 / 1.2)
    assert speed(0.2, 1.0) == pytest.approx(3 / 2.0)
    # One round in two drafts first.
    assert speed(0.05, 0.5) == pytest.approx(3 / (1.2 + 0.5 * 0.35))


def test_every_line_explains_the_papers_plain_speculation() -> None:
    found = list(rows())
    assert len(found) == len(PUBLISHED) * 6 * len(DEARER)
    for row in found:
        assert row.acceptance is not None
        tokens = sum(row.acceptance**place for place in range(GAMMA + 1))
        assert tokens / (VERIFYING + GAMMA * row.draft) == pytest.approx(row.plain, rel=1e-3)
        most, least, hidden = row.expected
        assert row.plain <= least <= most <= hidden + 1e-9


def test_what_a_token_must_cost_is_what_hiding_it_gains() -> None:
    cost = needed(2.0, 3.0)
    assert (VERIFYING + GAMMA * cost) / VERIFYING == pytest.approx(1.5)
    assert costs_of("Qwen3-14B", 1).draft(1) == pytest.approx(0.6 / 14)


def test_the_page_shows_what_the_script_prints() -> None:
    page = Path(__file__).parents[1] / "docs" / "paper-table.md"
    assert report() in page.read_text(encoding="utf-8")
