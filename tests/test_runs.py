"""A call takes the fewest runs: against every way there is, and for every pass of a draft."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from export.graph import DRAFT_ROWS, PORTABLE_ROWS
from runtime.ahead import Branch
from runtime.branches import NO_BRANCHES, Branches
from runtime.drafter import Guess, ModelDrafter, Start
from runtime.hypotheses import SOURCES, USUAL_SOURCES, Fan, Source
from runtime.runs import Runs
from runtime.sampling import Sampling
from runtime.ways import HYPOTHESES

WIDTH = 50  # of logits


@pytest.mark.parametrize("graphs", [PORTABLE_ROWS, {2: 2, 5: 5, 6: 2}, {3: 1}])
def test_no_other_way_has_fewer_runs_or_as_few_of_fewer_rows(graphs: dict[int, int]) -> None:
    runs = Runs(graphs)
    for count in range(1, 13):
        for plain in range(count):
            found = runs.of(count, plain)
            start = 0
            for rows, done in found:
                assert 0 < done <= min(rows, max(0, plain - start) + graphs[rows])
                start += done
            assert start == count
            own = len(found), sum(rows for rows, _ in found)
            for length in range(1, len(found) + 1):
                for way in itertools.product(graphs, repeat=length):
                    if _does(way, graphs, count, plain):
                        assert own <= (length, sum(way)), (count, plain, way)


def _does(way: tuple[int, ...], graphs: dict[int, int], count: int, plain: int) -> bool:
    for rows in way:
        done = min(count, rows, plain + graphs[rows])
        count, plain = count - done, max(0, plain - done)
    return count == 0


class Passes:
    """A draft's session that notes how many rows each pass feeds, and which need logits."""

    vocabulary, context, logits_width, chunk = WIDTH - 5, 999, WIDTH, 64

    def __init__(self, length: int) -> None:
        self.length = length
        self.seen: list[tuple[int, int]] = []

    def extend(
        self, tokens: NDArray[np.int64], *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        self.length = min(self.length, len(tokens) - num_logits)
        rows = len(tokens) - self.length + len(branches)
        self.seen.append((rows, rows - num_logits - len(branches)))
        self.length = len(tokens)
        return np.zeros((num_logits + len(branches), WIDTH), np.float32)


def passes(
    per_pass: int, length: int, count: int, sources: tuple[Source, ...], fresh: int
) -> list[tuple[int, int]]:
    """Those of one look-ahead: `count` outcomes of a chain of `length`, `fresh` tokens not read."""
    session = Passes(100 - fresh)
    drafter = ModelDrafter(session, vocabulary=WIDTH, tokens_per_pass=per_pass)  # type: ignore[arg-type]
    chain = list(range(length))
    text = np.array([*[0] * 100, *chain])
    known = [*chain, 7] if per_pass > length else chain
    guesses = [Guess(token, tuple(range(10, 18))) for token in known]
    left = [
        Branch(
            Start(100 + each.accepted, each.tokens),
            least := length + (each.final_token is None),
            least + 1,
        )
        for each in Fan().hypotheses(guesses, length, count, sources=sources)
    ]
    while left:
        found = drafter.draft(
            text, [it.frontier for it in left], max(it.room for it in left), Sampling()
        )
        for branch, rollout in zip(left, found, strict=True):
            branch.grow(rollout)
        left = [branch for branch in left if branch.look() and branch.unfinished]
    return session.seen


def test_every_pass_of_a_draft_that_fits_in_a_graph_is_one_run() -> None:
    """All look-aheads of `mirror` and `auto`: lengths, outcomes, sources, tokens a pass."""
    runs, widest, most = Runs(DRAFT_ROWS), max(DRAFT_ROWS), 0
    lengths, fresh = range(1, 9), (0, 3)
    settings = itertools.product(
        (1, 2, 5), lengths, HYPOTHESES, (USUAL_SOURCES, SOURCES[:3]), fresh
    )
    for per_pass, length, count, sources, unread in settings:
        for rows, plain in passes(per_pass, length, count, sources, unread):
            most = max(most, rows)
            found = runs.of(rows, plain)
            assert len(found) == -(-rows // widest), (per_pass, length, count, rows)
            if rows <= widest:
                assert found[0][0] == min(each for each in DRAFT_ROWS if each >= rows)
    assert most > 2 * widest, "several runs are met too"


def test_the_usual_look_ahead_and_a_proposal_are_one_run_each() -> None:
    """Five tokens a pass, four drafted, eight outcomes: and what is proposed after a miss."""
    runs = Runs(DRAFT_ROWS)
    assert passes(5, 4, 8, USUAL_SOURCES, 1) == [(45, 4)]
    assert runs.of(45, 4) == ((48, 45),)
    session = Passes(95)
    drafter = ModelDrafter(session, vocabulary=WIDTH, tokens_per_pass=5)  # type: ignore[arg-type]
    drafter.draft(np.zeros(100, np.int64), [Start(100)], 5, Sampling())
    assert session.seen == [(9, 4)]
    assert runs.of(9, 4) == ((16, 9),)


def test_a_prompt_is_read_in_chunks_of_the_widest_graph() -> None:
    assert Runs(DRAFT_ROWS).of(64, 63) == ((64, 64),)
    assert Runs(PORTABLE_ROWS).of(64, 63) == ((64, 64),)
    assert Runs(PORTABLE_ROWS).of(5, 0) == ((8, 5),), "what four guesses need is one run"
