"""Tests of runtime/timeline.py: shares and gaps of hand-made runs."""

import random
from dataclasses import replace

import pytest

from runtime.timeline import Round, Run, Timeline, busy, gaps, overlap

SECONDS = 40


def drawn(draw: random.Random) -> list[Run]:
    """Runs in order and apart, on whole seconds."""
    edges = sorted(draw.sample(range(SECONDS), 2 * draw.randrange(8)))
    return [Run(*times) for times in zip(edges[::2], edges[1::2], strict=True)]


def seconds(runs: list[Run]) -> set[int]:
    return {second for run in runs for second in range(int(run.start), int(run.end))}


def test_overlap_and_gaps_are_what_counting_seconds_gives() -> None:
    draw = random.Random(5)
    for _ in range(500):
        some, others = drawn(draw), drawn(draw)
        assert busy(some) == len(seconds(some))
        assert overlap(some, others) == len(seconds(some) & seconds(others))
        start, end = sorted(draw.sample(range(SECONDS), 2))
        left = gaps(start, end, some)
        assert seconds(left) == set(range(start, end)) - seconds(some)
        assert all(run.start < run.end for run in left)


NOTHING = Timeline(1.0, (), (), (), (), ())


@pytest.mark.parametrize(
    ("timeline", "end"),
    [
        (NOTHING, 1.0),
        (replace(NOTHING, draft=[Run(2, 9)], target=[Run(2, 3)]), 9.0),
        (replace(NOTHING, rounds=[Round(2, 3, 1, 1, 5)], waits=[Run(2, 2.5)]), 3.0),
    ],
)
def test_a_timeline_ends_with_the_last_of_its_runs(timeline: Timeline, end: float) -> None:
    assert timeline.end == end
