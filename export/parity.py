"""Measures a graph against the numpy forward pass on text that the model itself writes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export import reference
from export.model import Model
from runtime.manifest import Parity
from runtime.session import GraphSession

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


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Texts of known logits: the n rows of `rows[i]` speak for the last n tokens of `texts[i]`."""

    texts: list[list[int]]
    rows: list[NDArray[np.float32]]

    @classmethod
    def measure(
        cls, model: Model, openings: Sequence[Sequence[int]], writer: GraphSession
    ) -> "Yardstick":
        """Let a graph of the model continue each opening, and compute the reference's logits.

        The texts end after TOKENS_EACH tokens, not at end tokens: what follows one counts too.
        """
        texts, rows = [], []
        count = min(TOKENS_EACH, writer.context // 2)
        for opening in (opening[: writer.context - count] for opening in openings):
            text = continue_greedily(writer, opening, count=count)
            texts.append(text)
            rows.append(reference.logits(model, text[:-1])[len(opening) - 1 :])
        return cls(texts, rows)


def continue_greedily(session: GraphSession, opening: Sequence[int], *, count: int) -> list[int]:
    """The opening and the `count` likeliest tokens after it, one by one."""
    text = np.empty(len(opening) + count, np.int64)
    text[: len(opening)] = opening
    for length in range(len(opening), len(text)):
        text[length] = session.extend(text[:length])[0].argmax()
    return text.tolist()


def compare(session: GraphSession, yardstick: Yardstick) -> Parity:
    """Feed every text to the graph and compare its logits, row by row, with the reference's."""
    largest, equal, count = 0.0, 0, 0
    for text, wanted in zip(yardstick.texts, yardstick.rows, strict=True):
        session.crop(0)
        found = session.extend(np.array(text[:-1]), num_logits=len(wanted))
        largest = max(largest, float(np.abs(found - wanted).max()))
        equal += int((found.argmax(axis=1) == wanted.argmax(axis=1)).sum())
        count += len(wanted)
    return Parity(round(largest, 6), round(equal / count, 6), count)
