"""Parity figures are those of the texts that were compared."""

import numpy as np
import pytest
from numpy.typing import NDArray

from export import parity
from export.parity import TOKENS_EACH, compare, write_texts
from runtime.manifest import Parity

VOCABULARY = 7


class Counting:
    """Answers with the successor of each token; `wrong` rows find the token itself likeliest."""

    def __init__(self, *, context: int = 100, wrong: int = 0, offset: float = 0.0) -> None:
        self.context = context
        self._wrong, self._offset = wrong, offset

    def crop(self, length: int) -> None:
        assert length == 0

    def extend(self, tokens: NDArray[np.int64], *, num_logits: int = 1) -> NDArray[np.float32]:
        assert len(tokens) <= self.context
        rows = logits(tokens)[-num_logits:]
        rows[: self._wrong, :] = np.eye(VOCABULARY, dtype=np.float32)[
            tokens[-num_logits:][: self._wrong]
        ]
        return rows + np.float32(self._offset)


def logits(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.eye(VOCABULARY, dtype=np.float32)[(tokens + 1) % VOCABULARY]


def test_texts_are_greedy_continuations_cut_to_the_context() -> None:
    texts = write_texts(Counting(), [[3], [0, 5, 4]])
    assert [text[:5] for text in texts] == [[3, 4, 5, 6, 0], [0, 5, 4, 5, 6]]
    assert [len(text) for text in texts] == [1 + TOKENS_EACH, 3 + TOKENS_EACH]
    assert write_texts(Counting(context=6), [[1] * 9]) == [[1, 1, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("session", "wanted"),
    [
        (Counting(), Parity(0.0, 1.0, 80, 0.5)),
        (Counting(offset=0.25), Parity(0.25, 1.0, 80, 0.5)),
        (Counting(wrong=3), Parity(1.0, round(74 / 80, 6), 80, 0.5)),
    ],
)
def test_compare_counts_rows_and_takes_the_largest_difference(
    session: Counting, wanted: Parity
) -> None:
    fed = [text[:-1] for text in write_texts(Counting(), [[3], [0, 5, 4]])]
    rows = [logits(np.array(text)) for text in fed]
    assert compare(session, fed, rows, width_difference=0.5) == wanted


def test_openings_differ() -> None:
    assert len(set(parity.OPENINGS)) == len(parity.OPENINGS) >= 8
