"""Parity figures are those of the texts that were compared."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from export import parity
from export.parity import TOKENS_EACH, compare, write_texts
from runtime.branches import NO_BRANCHES, Branches
from runtime.manifest import Parity
from tests.table import paths

VOCABULARY = 7
Tokens = NDArray[np.int64]


class Counting:
    """Answers with the successor of each token; `wrong` rows find the token itself likeliest."""

    def __init__(
        self,
        *,
        context: int = 100,
        wrong: int = 0,
        offset: float = 0.0,
        at_node: Callable[[Tokens], float] = lambda _path: 0.0,
    ) -> None:
        self.context = context
        self._wrong, self._offset, self._at_node = wrong, offset, at_node

    def crop(self, length: int) -> None:
        assert length == 0

    def extend(
        self, tokens: Tokens, *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        assert len(tokens) + len(branches) <= self.context
        rows = logits(tokens)[-num_logits:]
        rows[: self._wrong, :] = np.eye(VOCABULARY, dtype=np.float32)[
            tokens[-num_logits:][: self._wrong]
        ]
        nodes = [logits(path)[-1:] + self._at_node(path) for path in paths(tokens, branches)]
        return np.concatenate([rows, *nodes]).astype(np.float32) + np.float32(self._offset)


def logits(tokens: Tokens) -> NDArray[np.float32]:
    return np.eye(VOCABULARY, dtype=np.float32)[(tokens + 1) % VOCABULARY]


def test_texts_are_greedy_continuations_cut_to_the_context() -> None:
    texts = write_texts(Counting(), [[3], [0, 5, 4]])
    assert [text[:5] for text in texts] == [[3, 4, 5, 6, 0], [0, 5, 4, 5, 6]]
    assert [len(text) for text in texts] == [1 + TOKENS_EACH, 3 + TOKENS_EACH]
    assert write_texts(Counting(context=6), [[1] * 9]) == [[1, 1, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("session", "wanted"),
    [
        (Counting(), Parity(0.0, 1.0, 80, 0.5, 0.0)),
        (Counting(offset=0.25), Parity(0.25, 1.0, 80, 0.5, 0.0)),
        (Counting(wrong=3), Parity(1.0, round(74 / 80, 6), 80, 0.5, 0.0)),
    ],
)
def test_compare_counts_rows_and_takes_the_largest_difference(
    session: Counting, wanted: Parity
) -> None:
    fed = [text[:-1] for text in write_texts(Counting(), [[3], [0, 5, 4]])]
    rows = [logits(np.array(text)) for text in fed]
    assert compare(session, fed, rows, width_difference=0.5) == wanted


@pytest.mark.parametrize("end", range(1, 43))
def test_tokens_of_a_text_are_fed_as_nodes_its_end_among_them(end: int) -> None:
    """A graph that is off for one path only, in a tree only."""
    texts = [text[:-1] for text in write_texts(Counting(), [[3], [0, 5, 4]])]
    rows = [logits(np.array(text)) for text in texts]
    for text in texts:
        off = np.array(text[:end])

        def at_node(path: Tokens, off: Tokens = off) -> float:
            return 0.25 * np.array_equal(path, off)

        session = Counting(at_node=at_node)
        found = compare(session, texts, rows, width_difference=0.0)
        behind = len(text) - min(end, len(text))
        measured = behind % 8 < 4 and behind < TOKENS_EACH
        assert found.tree_difference == (0.25 if measured else 0.0)
        assert found.largest_logit_difference == 0


def test_no_tree_is_fed_that_does_not_fit() -> None:
    text = list(range(5)) * 2
    for context in range(10, 24):
        session = Counting(context=context, at_node=lambda _path: 0.5)
        found = compare(session, [text], [logits(np.array(text))], width_difference=0.0)
        assert found.tree_difference == (0.5 if context >= 10 + 8 else 0.0)


def test_openings_differ() -> None:
    assert len(set(parity.OPENINGS)) == len(parity.OPENINGS) >= 8
