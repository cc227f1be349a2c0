"""Rounds of one-pass proposals on texts that were written before, and how each of them ended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.draft_model import open_draft, tokens_per_pass
from runtime.manifest import Manifest
from scripts.draft.agreement import ranks
from scripts.draft.models import context_of
from scripts.draft.texts import Tokens, Written

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rounds:
    """How the rounds of one text ended, [r] each.

    accepted: drafted tokens that stood. places: where in the text each final token stands, and
    refused: the drafted token that it replaced, -1 where all stood. ranks: how many tokens the
    draft's own row prefers to the final token, the refused one not counted.
    """

    accepted: Numbers
    places: Numbers
    refused: Numbers
    ranks: Numbers


def head_of(short: Tokens | None, *, columns: int, vocabulary: int) -> Tokens:
    """The real tokens [n] int64 that logits are about; a short list may end in padding."""
    head = np.arange(columns) if short is None else short
    return head[head < vocabulary]


def measure(
    manifest: Manifest,
    texts: Sequence[Written],
    *,
    vocabulary: int,
    threads: int,
    say: Callable[[str], None],
) -> tuple[Tokens, list[Rounds]]:
    """The tokens that the draft can name, and the rounds of each text.

    A pass gives what is proposed, and one guess more for what follows when all of it stands; each
    proposal is drafted anew from the text, as a hit's and a redraft's are.
    """
    session, short = open_draft(manifest, threads=threads, context=context_of(manifest))
    head = head_of(short, columns=session.logits_width, vocabulary=vocabulary)
    masks = session.vocabulary + np.arange(tokens_per_pass(manifest) - 1)

    def guess(text: Tokens) -> NDArray[np.float32]:
        logits = session.extend(np.append(text, masks), num_logits=len(masks) + 1)
        return logits[:, : len(head)]

    found = []
    for number, text in enumerate(texts, 1):
        found.append(rounds_of(text, head, guess))
        if number % 10 == 0 or number == len(texts):
            say(f"proposals: {number} of {len(texts)} texts")
    return head, found


def rounds_of(
    text: Written, head: Tokens, guess: Callable[[Tokens], NDArray[np.float32]]
) -> Rounds:
    """The rounds of a text; `guess` gives rows of logits about `head` for the next places."""
    ends = []
    length = text.start + 1  # the first token is the prompt's
    while length < len(text.tokens):
        rows = guess(text.tokens[:length])
        drafted = head[rows[:-1].argmax(axis=1)]
        wanted = text.tokens[length : length + len(drafted)]
        right = drafted[: len(wanted)] == wanted
        accepted = len(right) if right.all() else int(right.argmin())
        place = length + accepted
        if place == len(text.tokens):
            break
        refused = int(drafted[accepted]) if accepted < len(drafted) else -1
        row, final = rows[accepted : accepted + 1], text.tokens[place : place + 1]
        ends.append((accepted, place, refused, int(ranks_without(row, head, final, [refused])[0])))
        length = place + 1
    return Rounds(*np.array(ends, np.int64).reshape(-1, 4).T)


def ranks_without(
    logits: NDArray[np.float32], head: Tokens, wanted: Tokens, refused: Sequence[int] | Numbers
) -> Numbers:
    """How many tokens each row [n, width] prefers to the `wanted`, but for the `refused` [n].

    A refused one of -1 is none; `width` and more where the wanted one is not in `head`.
    """
    refused = np.asarray(refused)
    found = ranks(logits, head, wanted)
    others = ranks(logits, head, np.maximum(refused, 0))
    return found - ((refused >= 0) & (others < np.minimum(found, len(head))))
