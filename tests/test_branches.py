"""What nodes see and where they stand, by walking every small tree; a chain goes before."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from runtime.branches import HIDDEN, NO_BRANCHES, Branches


def path_to(place: int, length: int, parents: Sequence[int]) -> list[int]:
    """The places from the text's first token to `place`, itself included."""
    if place < length:
        return list(range(place + 1))
    return [*path_to(parents[place - length], length, parents), place]


def all_parents(length: int, most: int) -> list[tuple[int, ...]]:
    """The parents of every forest of up to `most` nodes behind `length` tokens."""
    return [
        parents
        for count in range(most + 1)
        for parents in itertools.product(*(range(length + node) for node in range(count)))
    ]


@pytest.mark.parametrize("length", [1, 2, 4])
def test_every_node_sees_its_path_and_stands_behind_its_parent(length: int) -> None:
    for parents in all_parents(length, 4):
        tokens = tuple(range(50, 50 + len(parents)))
        rows = Branches(tokens, parents).behind(length)
        assert rows.tokens.tolist() == list(tokens)
        assert rows.sees.shape == (len(parents), length + len(parents))
        for node, position in enumerate(rows.positions):
            path = path_to(length + node, length, parents)
            assert np.flatnonzero(rows.sees[node]).tolist() == path
            assert position == len(path) - 1


@pytest.mark.parametrize("length", [1, 3])
def test_a_parent_must_stand_before_its_node(length: int) -> None:
    for parents in ((-1,), (length,), (length - 1, length + 1), (0, -1), (0, 0, length + 2)):
        with pytest.raises(ValueError, match=f"behind {length} tokens has the parent"):
            Branches((5,) * len(parents), parents).behind(length)
    with pytest.raises(ValueError, match="2 nodes have 1 parents"):
        Branches((5, 6), (0,)).behind(length)


def test_no_branches_are_no_rows() -> None:
    assert not NO_BRANCHES
    assert len(Branches((1, 2), (0, 0))) == 2
    rows = NO_BRANCHES.behind(7)
    assert (len(rows), rows.sees.shape, rows.positions.shape) == (0, (0, 7), (0,))


@pytest.mark.parametrize("cached", [0, 1, 3])
@pytest.mark.parametrize("fed", [1, 2, 4])
def test_a_chain_goes_before_the_nodes(cached: int, fed: int) -> None:
    length = cached + fed
    for parents in all_parents(length, 2):
        nodes = Branches((8, 9)[: len(parents)], parents).behind(length)
        rows = nodes.after(np.arange(20, 20 + fed), cached)
        assert rows.tokens.tolist() == [*range(20, 20 + fed), *nodes.tokens]
        assert len(rows) == fed + len(parents)
        for row, position in enumerate(rows.positions):
            path = path_to(cached + row, length, parents)
            assert np.flatnonzero(rows.sees[row]).tolist() == path
            assert position == len(path) - 1


def test_what_is_hidden_weighs_nothing_in_any_precision() -> None:
    for real in (np.float16, np.float32):
        hidden = real(HIDDEN)
        assert np.isfinite(hidden)
        assert np.exp(hidden + real(1000)) == 0


@pytest.mark.parametrize("length", [1, 3])
def test_rows_part_into_whole_trees(length: int) -> None:
    for parents in all_parents(length, 4):
        rows = Branches(tuple(range(10, 10 + len(parents))), parents).behind(length)
        trees = rows.trees()
        assert sorted(number for tree in trees for number in tree) == list(range(len(rows)))
        for tree in trees:
            own = rows.some(tree)
            # Its nodes alone, renamed: their parents are in the text or in the tree.
            names = {length + old: length + new for new, old in enumerate(tree)}
            kept = tuple(names.get(parents[node], parents[node]) for node in tree)
            assert sum(parent < length for parent in kept) == 1
            alone = Branches(tuple(rows.tokens[tree].tolist()), kept).behind(length)
            assert own.tokens.tolist() == alone.tokens.tolist()
            assert own.positions.tolist() == alone.positions.tolist()
            assert (own.sees == alone.sees).all()
