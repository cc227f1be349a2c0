"""Measures a graph against the numpy forward pass on text that the model itself writes."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.manifest import Parity

# Plain openings of several kinds of text; each is continued greedily, then compared.
OPENINGS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time there was a little girl who",
    "def fibonacci(n):\n    ",
    "To bake bread you need flour,",
    "The three laws of motion say that",
    "Dear Sir or Madam,\n\nI am writing",
    "1, 2, 3, 4, 5,",
)
TOKENS_EACH = 40
DEPTH = 4  # of the trees that are measured


class Session(Protocol):
    """What is needed of a graph's session (see runtime.session)."""

    @property
    def context(self) -> int:
        """How many tokens fit."""

    def crop(self, length: int) -> None:
        """Forget what is cached past `length`."""

    def extend(
        self, tokens: NDArray[np.int64], *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        """Feed a whole text; the logits of its last `num_logits` tokens, then of the branches."""


def write_texts(session: Session, openings: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each opening, cut to fit, and the TOKENS_EACH tokens that the graph finds likeliest after it.

    A text goes on after an end token: what follows one is measured too.
    """
    count = min(TOKENS_EACH, session.context // 2)
    texts = []
    for opening in (opening[: session.context - count] for opening in openings):
        text = np.array([*opening, *[0] * count], np.int64)
        for length in range(len(opening), len(text)):
            text[length] = session.extend(text[:length])[0].argmax()
        texts.append(text.tolist())
    return texts


def compare(
    session: Session,
    fed: Sequence[Sequence[int]],
    rows: Sequence[NDArray[np.float32]],
    *,
    width_difference: float,
) -> Parity:
    """Feed every text to the graph and compare its logits with `rows`.

    rows: for each text the reference's logits [len(text), ..]; those of the last TOKENS_EACH are
    compared, or all where there are fewer. width_difference is noted as it is; the graph's logits
    for nodes of trees are compared with its own for the text.
    """
    largest, in_trees, equal, count = 0.0, 0.0, 0, 0
    for text, all_rows in zip(fed, rows, strict=True):
        wanted = all_rows[-TOKENS_EACH:]
        session.crop(0)
        found = session.extend(np.array(text), num_logits=len(wanted)).copy()
        largest = max(largest, float(np.abs(found - wanted).max()))
        equal += int((found.argmax(axis=1) == wanted.argmax(axis=1)).sum())
        count += len(wanted)
        in_trees = max(in_trees, _tree_difference(session, np.array(text), found))
    return Parity(round(largest, 6), round(equal / count, 6), count, width_difference, in_trees)


def _tree_difference(session: Session, text: NDArray[np.int64], rows: NDArray[np.float32]) -> float:
    """The largest difference of rows that speak for nodes from `rows`, those of the text's end.

    A trunk goes wrong after the text up to some place; the text's own next tokens are nodes off
    it, and before each stands a wrong one. That is half of the tokens, the last ones among them.
    """
    largest, wrong = 0.0, text[:DEPTH]
    first = max(1, len(text) - len(rows))
    for start in range(len(text) - DEPTH, first - 1, -2 * DEPTH):
        own = text[start : start + DEPTH]
        trunk = np.concatenate([text[:start], wrong])
        if len(trunk) + 2 * DEPTH > session.context:
            continue
        parents = [start - 1, *(len(trunk) + 2 * node + 1 for node in range(DEPTH - 1))]
        branches = Branches(
            tuple(np.stack([own[::-1], own], axis=1).ravel().tolist()),
            tuple(np.repeat(parents, 2).tolist()),
        )
        found = session.extend(trunk, branches=branches)[2::2]
        place = start - (len(text) - len(rows))
        largest = max(largest, float(np.abs(found - rows[place : place + DEPTH]).max()))
    return largest
