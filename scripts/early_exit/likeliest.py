"""How often a round's outcome is among the few that its draft, its exit, or both expect."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.draft_model import open_draft, tokens_per_pass
from runtime.flavours import open_exit_head
from runtime.manifest import Manifest
from runtime.split_session import SplitSession
from scripts.draft.models import PRECISION, context_of, open_target
from scripts.draft.texts import Tokens, Written, by_kind
from scripts.early_exit.rounds import Numbers, Rounds, head_of

MOST = (1, 2, 4, 8, 16)  # hypotheses
TOP = 16  # tokens of either source at each place
NAMES = ("draft", "exit", "mean of both")
NOTHING = 1e-9  # the share of a token that a source does not name

Shares = Sequence[Mapping[int, float]]  # of tokens, at each place of a proposal and after it


@dataclass(frozen=True, slots=True)
class Expected:
    """What was proposed, and what both sources gave for its places and the one after."""

    drafted: Sequence[int]
    draft: Shares
    exit: Shares


def measure(
    manifest: Manifest,
    texts: Sequence[Written],
    rounds: Sequence[Rounds],
    *,
    vocabulary: int,
    threads: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """By kind and source, the share of rounds whose outcome is among its likeliest hypotheses."""
    expect = _expecting(manifest, vocabulary, threads)
    found: list[tuple[str, Numbers]] = []
    for number, (text, ended) in enumerate(zip(texts, rounds, strict=True), 1):
        places = []
        for accepted, place in zip(ended.accepted.tolist(), ended.places.tolist(), strict=True):
            expected = expect(text.tokens[: place - accepted])
            outcome = (accepted, int(text.tokens[place]))
            places.append([_place(source, expected.drafted, outcome) for source in ways(expected)])
        found.append((text.kind, np.array(places, np.int64).reshape(-1, len(NAMES))))
        if number % 10 == 0 or number == len(texts):
            say(f"hypotheses: {number} of {len(texts)} texts")
    return {
        name: by_kind(
            [(kind, ranks[:, column]) for kind, ranks in found],
            lambda each: {str(most): float((np.concatenate(each) < most).mean()) for most in MOST},
        )
        for column, name in enumerate(NAMES)
    }


def ways(expected: Expected) -> tuple[Shares, Shares, Shares]:
    """The shares by each of NAMES."""
    mean = [
        {token: (one.get(token, 0.0) + other.get(token, 0.0)) / 2 for token in {**one, **other}}
        for one, other in zip(expected.draft, expected.exit, strict=True)
    ]
    return expected.draft, expected.exit, mean


def hypotheses(source: Shares, drafted: Sequence[int]) -> list[tuple[int, int]]:
    """All outcomes (accepted, final token) that a source names, likeliest first.

    That a whole path stands up to a place is as likely as its tokens are, one by one.
    """
    found = []
    reached = 1.0
    for place, shares in enumerate(source):
        refused = drafted[place] if place < len(drafted) else -1
        found += [(reached * share, place, tok) for tok, share in shares.items() if tok != refused]
        reached *= shares.get(refused, NOTHING)
    return [(place, token) for _, place, token in sorted(found, key=lambda each: -each[0])]


def _place(source: Shares, drafted: Sequence[int], outcome: tuple[int, int]) -> int:
    """Where the outcome stands among a source's hypotheses; MOST[-1] where it is none of them."""
    known = hypotheses(source, drafted)[: MOST[-1]]
    return known.index(outcome) if outcome in known else MOST[-1]


def _expecting(manifest: Manifest, vocabulary: int, threads: int) -> Callable[[Tokens], Expected]:
    """What gives the expectations for the round after a text whose last token is pending."""
    draft, short = open_draft(manifest, threads=threads, context=context_of(manifest))
    head = head_of(short, columns=draft.logits_width, vocabulary=vocabulary)
    masks = draft.vocabulary + np.arange(tokens_per_pass(manifest) - 1)
    role = manifest.target
    target = open_target(manifest, threads=threads, exit_layer=role.early_exit_layer)
    assert isinstance(target, SplitSession)
    exit_head = open_exit_head(manifest.folder, role.graphs[f"fused-{PRECISION}"], threads=threads)
    told: list[NDArray[np.float32]] = []
    target.on_exit = told.append

    def expect(text: Tokens) -> Expected:
        rows = draft.extend(np.append(text, masks), num_logits=len(masks) + 1)[:, : len(head)]
        drafted = head[rows[:-1].argmax(axis=1)]
        told.clear()
        target.extend(np.append(text, drafted), num_logits=len(rows))
        tokens, logs = exit_head.guesses(told[0], top=TOP)
        exits = zip(tokens.tolist(), np.exp(logs).tolist(), strict=True)
        return Expected(
            drafted.tolist(),
            list(_best(rows, head)),
            [dict(zip(*each, strict=True)) for each in exits],
        )

    return expect


def _best(rows: NDArray[np.float32], head: Tokens) -> Iterator[dict[int, float]]:
    """The TOP tokens of each row and their shares of all of it."""
    for row in rows:
        shares = np.exp(row - row.max())
        best = np.argsort(-row, kind="stable")[:TOP]
        yield dict(zip(head[best].tolist(), (shares[best] / shares.sum()).tolist(), strict=True))


def table(found: Mapping[str, Any], kind: str) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Head and rows of the table of one kind."""
    return (
        ("likeliest by", *map(str, MOST)),
        [(name, *(f"{share:.3f}" for share in of[kind].values())) for name, of in found.items()],
    )
