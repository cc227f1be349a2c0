"""Tests of runtime/trees.py: which nodes a tree has, and in which order."""

import itertools

import pytest

from runtime.drafter import Guess
from runtime.trees import joined, with_siblings
from runtime.verify import Proposal

GUESSES = [Guess(5, (6, 7)), Guess(1), Guess(2, (3, 4, 9))]


@pytest.mark.parametrize(
    ("count", "tokens", "parents"),
    [
        (0, (), ()),
        (1, (6,), (-1,)),
        (2, (6, 3), (-1, 1)),
        (3, (6, 3, 7), (-1, 1, -1)),
        (4, (6, 3, 7, 4), (-1, 1, -1, 1)),
        (5, (6, 3, 7, 4, 9), (-1, 1, -1, 1, 1)),
        (50, (6, 3, 7, 4, 9), (-1, 1, -1, 1, 1)),
    ],
)
def test_runner_ups_hang_beside_the_trunk_the_best_and_earliest_first(
    count: int, tokens: tuple[int, ...], parents: tuple[int, ...]
) -> None:
    tree = with_siblings(GUESSES, count)
    assert tree == Proposal((5, 1, 2, *tokens), (-1, 0, 1, *parents))
    assert tree.trunk == 3
    for node in range(3, len(tree)):
        beside = tree.child(tree.parents[node], GUESSES[tree.parents[node] + 1].token)
        assert beside == tree.parents[node] + 1
        assert tree.tokens[node] in GUESSES[beside].runner_ups


def test_of_nothing_there_is_an_empty_tree() -> None:
    assert with_siblings([], 4) == joined(Proposal.chain(()), ()) == Proposal.chain(())


def paths(tree: Proposal) -> set[tuple[int, ...]]:
    """The tokens on the way to every node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert len(set(found)) == len(found), "a path is there twice"
    return set(found)


def test_two_chains_make_a_tree_of_both_with_the_first_as_trunk() -> None:
    chains = [chain for length in range(4) for chain in itertools.product(range(3), repeat=length)]
    for first, second in itertools.product(chains, repeat=2):
        tree = joined(Proposal.chain(first), second)
        ways = [chain[:end] for chain in (first, second) for end in range(1, len(chain) + 1)]
        assert paths(tree) == set(ways)
        assert tree.cut(len(first)) == Proposal.chain(first)
        longer = second if second[: len(first)] == first else first
        assert tree.trunk == len(longer)


def test_a_chain_joins_a_tree_where_they_part() -> None:
    tree = Proposal((5, 6, 7), (-1, 0, -1))
    assert joined(tree, ()) == joined(tree, (5, 6)) == joined(tree, (7,)) == tree
    assert joined(tree, (5, 8, 9)) == Proposal((5, 6, 7, 8, 9), (-1, 0, -1, 0, 3))
    assert joined(tree, (7, 6)) == Proposal((5, 6, 7, 6), (-1, 0, -1, 2))
    assert joined(tree, (1,)) == Proposal((5, 6, 7, 1), (-1, 0, -1, -1))
    assert joined(tree, (5, 6, 1)) == Proposal((5, 6, 7, 1), (-1, 0, -1, 1))
