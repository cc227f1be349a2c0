"""Tests of the engine's rounds over trees: no tree changes the text, however inexact its rows."""

import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive
from runtime.verify import Outcome, Proposal
from tests.small_trees import Given, every_tree
from tests.table import TableTarget, Written, speaking, write

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]


class Inexact(TableTarget):
    """A table whose rows of branches are wrong by up to `most` in each entry."""

    def __init__(self, most: float, *, table: Floats) -> None:
        super().__init__(table=table)
        self._most = most
        self._draw = np.random.default_rng(9)

    def extend(
        self, tokens: Tokens, *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> Floats:
        rows = super().extend(tokens, num_logits=num_logits, branches=branches)
        wrong = self._draw.choice([-self._most, self._most], rows[num_logits:].shape)
        rows[num_logits:] += wrong.astype(np.float32)
        return rows


def random_trees(seed: int, vocabulary: int, *, most: int) -> Callable[[int], Proposal]:
    """Trees of up to `most` nodes and as deep as there is room."""
    draw = random.Random(seed)

    def tree(room: int) -> Proposal:
        depths, parents = [0], []
        for _ in range(draw.randrange(most + 1)):
            parent = draw.choice(
                [node for node, depth in enumerate(depths) if depth < room] or [-1]
            )
            if parent == -1:
                break
            parents.append(parent - 1)
            depths.append(depths[parent] + 1)
        return Proposal(tuple(draw.choices(range(vocabulary), k=len(parents))), tuple(parents))

    return tree


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_small_tree_gives_the_text_of_plain_decoding(temperature: float) -> None:
    target = TableTarget(vocabulary=3)
    trees: Iterator[Proposal] = itertools.cycle(every_tree(4, 3))
    left = sum(1 for _ in every_tree(4, 3))
    deepest, off_trunk = 0, 0
    for seed in itertools.count():
        if left <= 0:
            break
        sampling = Sampling(temperature, repetition_penalty=1.2, seed=seed)
        plain = write(target, Autoregressive(), (seed % 3, 1), sampling, max_new_tokens=50)
        # Near the end of the budget the room is less than 4, so those trees come again.
        strategy = Given(lambda room: next(trees) if room >= 4 else Proposal.chain(()))
        written = write(target, strategy, (seed % 3, 1), sampling, max_new_tokens=50)
        assert written.tokens == plain.tokens, seed
        left -= sum(len(tree) > 0 for tree in strategy.verified)
        for tree, (outcome, block) in zip(strategy.verified, strategy.outcomes, strict=True):
            deepest = max(deepest, len(block) - 1)
            off_trunk += outcome.node >= tree.trunk
        assert written.metrics.guard_stops == 0
    assert deepest >= 3
    assert off_trunk > 100


def written_pair(
    most: float, bound: float, temperature: float, seed: int
) -> tuple[Written, Written]:
    """The text of plain decoding, and the same over random trees whose rows are inexact."""
    sampling = Sampling(temperature, top_k=4, top_p=0.95, repetition_penalty=1.1, seed=seed)
    table = np.random.default_rng(seed).normal(size=(2, 5, 5)).astype(np.float32)
    target = Inexact(most, table=table)
    plain = write(target, Autoregressive(), (seed % 5,), sampling, max_new_tokens=40)
    strategy = Given(random_trees(seed, 5, most=12))
    found = write(target, strategy, (seed % 5,), sampling, max_new_tokens=40, tree_bound=bound)
    return plain, found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_guard_keeps_the_text_where_rows_of_branches_are_inexact(temperature: float) -> None:
    parted, stops, accepted = 0, 0, 0
    for seed in range(25):
        plain, found = written_pair(0.1, 0.2, temperature, seed)
        assert found.tokens == plain.tokens, seed
        stops += found.metrics.guard_stops
        accepted += found.metrics.draft_tokens_accepted
        plain, trusting = written_pair(0.1, 0.0, temperature, seed)
        parted += trusting.tokens != plain.tokens
    assert parted > 0, "without the guard no text differs: the test shows nothing"
    assert stops > 0
    assert accepted > stops


def test_a_guarded_node_is_the_final_token_and_counts_once() -> None:
    target = speaking([1, 2, 3], vocabulary=4)
    # Beside a wrong trunk hangs what will be said, from which rows the winner leads by 18.
    tree = Proposal((0, 2, 3, 1), (-1, -1, 1, 2))
    cases: list[tuple[float, list[tuple[int, ...]], Outcome]] = [
        (17.0, [(1,), (2, 3, 1, 2)], Outcome(3, 2)),
        (19.0, [(1,), (2,)], Outcome(-1, 2)),
    ]
    for bound, blocks, outcome in cases:
        strategy = Given(lambda _: tree)
        written = write(target, strategy, max_new_tokens=sum(map(len, blocks)), tree_bound=bound)
        assert written.blocks == blocks
        assert [each for each, _ in strategy.outcomes] == [outcome]
        assert written.metrics.guard_stops == (bound > 18)


def test_the_trunk_is_fed_as_text_and_the_rest_as_branches() -> None:
    calls = []

    class Noting(TableTarget):
        def extend(
            self, tokens: Tokens, *, num_logits: int = 1, branches: Branches = NO_BRANCHES
        ) -> Floats:
            calls.append((tokens.tolist(), num_logits, branches))
            return super().extend(tokens, num_logits=num_logits, branches=branches)

    target = Noting(table=speaking([1, 2, 3], vocabulary=4).table)
    tree = Proposal((3, 3, 0, 1, 0), (-1, 0, -1, 2, 0))
    write(target, Given(lambda room: tree.cut(5 if room else 0)), (0,), max_new_tokens=2)
    assert calls[1] == ([0, 1], 1, NO_BRANCHES)
    calls.clear()
    write(target, Given(lambda _: tree), (0,), max_new_tokens=4)
    assert calls[1] == ([0, 1, 3, 3], 3, Branches((0, 1, 0), (1, 4, 2)))


def test_a_proposal_is_cut_to_what_fits_in_the_context() -> None:
    table = TableTarget().table
    for context, prompt in itertools.product(range(3, 14), (1, 2, 3)):
        target = TableTarget(context=context, table=table)
        plain = write(target, Autoregressive(), [1] * prompt, max_new_tokens=40)
        for seed in range(4):
            strategy = Given(random_trees(seed, 4, most=20))
            written = write(target, strategy, [1] * prompt, max_new_tokens=40)
            assert written.tokens == plain.tokens
            assert written.metrics.finish_reason == "context_full"
            assert target.longest <= context


def test_a_place_is_evaluated_once_however_many_nodes_stand_there() -> None:
    target = speaking([1, 2, 3], vocabulary=4)
    # After 1 come 2, 3, 1: the first place has three nodes, the second two, the third one.
    tree = Proposal((0, 3, 2, 3, 0, 1), (-1, -1, -1, 2, 2, 3))
    written = write(target, Given(lambda _: tree), max_new_tokens=5)
    found = written.metrics.to_dict()
    assert written.blocks == [(1,), (2, 3, 1, 2)]
    assert found["draft_tokens_proposed"] == 6
    assert found["draft_tokens_evaluated"] == found["draft_tokens_accepted"] == 3
    assert found["per_place_acceptance"] == [1.0, 1.0, 1.0]
    assert found["bonus_tokens"] == 1
