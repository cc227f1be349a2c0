"""How often a draft names the tokens that its target wrote: at the next place, and further on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.draft_model import open_draft, tokens_per_pass
from runtime.drafter import ModelDrafter, Start
from runtime.manifest import Manifest
from runtime.sampling import Sampling
from runtime.text import Text
from scripts.draft.models import context_of
from scripts.draft.texts import Tokens, Written, by_kind

PLACES = 5  # guessed after a text: four tokens, and the one after them
STEP = 4  # from a text that is guessed after to the next
AMONG = (5, 8)

Right = NDArray[np.bool_]


def measure(
    manifest: Manifest, texts: Sequence[Written], *, threads: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Agreement on greedy `texts` by kind: over all places, and by one pass against several."""
    session, short = open_draft(manifest, threads=threads, context=context_of(manifest))
    head = np.arange(session.logits_width) if short is None else short
    vocabulary = Text.load(manifest.folder).vocabulary
    ways = {
        per_pass: ModelDrafter(
            session, vocabulary=vocabulary, tokens_per_pass=per_pass, head_tokens=head
        )
        for per_pass in sorted({1, min(PLACES, tokens_per_pass(manifest))}, reverse=True)
    }
    known = head[head < vocabulary]
    placed: list[tuple[str, NDArray[np.int64]]] = []
    guessed: dict[int, list[tuple[str, Right]]] = {per_pass: [] for per_pass in ways}
    for number, text in enumerate(texts, 1):
        wanted = text.tokens[text.start :]
        if not wanted.size:
            continue
        logits = session.extend(text.tokens[:-1], num_logits=len(wanted))
        placed.append((text.kind, ranks(logits[:, : len(known)], known, wanted)))
        for per_pass, drafter in ways.items():
            guessed[per_pass].append((text.kind, guesses_right(drafter, text)))
        if number % 20 == 0 or number == len(texts):
            say(f"agreement: {number} of {len(texts)} texts")
    return {
        "head_tokens": len(known),
        "next": by_kind(placed, lambda found: next_shares(np.concatenate(found), len(known))),
        "places": {
            str(per_pass): by_kind(found, lambda right: place_shares(np.concatenate(right)))
            for per_pass, found in guessed.items()
        },
    }


def ranks(
    logits: NDArray[np.float32], head: NDArray[np.int64], wanted: Tokens
) -> NDArray[np.int64]:
    """How many tokens each row [n, width] prefers to the one wanted [n]: of equals the lower ids.

    head [width], ascending: what the columns are about; `width` where the wanted one is not there.
    """
    columns = np.minimum(np.searchsorted(head, wanted), len(head) - 1)
    own = np.take_along_axis(logits, columns[:, None], axis=1)
    before = np.arange(len(head)) < columns[:, None]
    better = ((logits > own) | ((logits == own) & before)).sum(axis=1)
    return np.where(head[columns] == wanted, better, len(head))


def guesses_right(drafter: ModelDrafter, text: Written) -> Right:
    """Whether the guesses after every STEP-th token of the answer are right, [n, PLACES].

    A guess counts by itself: those before it may be wrong. Only where PLACES tokens follow.
    """
    # From the end, so that each pass finds all but its last token in the cache.
    starts = reversed(range(text.start, len(text.tokens) - PLACES + 1, STEP))
    return np.array(
        [
            _guessed(drafter, text.tokens[:start]) == text.tokens[start : start + PLACES]
            for start in starts
        ],
        bool,
    ).reshape(-1, PLACES)


def _guessed(drafter: ModelDrafter, context: Tokens) -> Tokens:
    found: list[int] = []
    while len(found) < PLACES:
        start = Start(len(context), tuple(found))
        [rollout] = drafter.draft(context, [start], PLACES - len(found), Sampling())
        found += [guess.token for guess in rollout()]
    return np.array(found, np.int64)


def next_shares(found: NDArray[np.int64], width: int) -> dict[str, Any]:
    """Of ranks as `ranks` gives them for a head of `width`: the shares that a table names."""
    return {
        "tokens": len(found),
        "first": float((found < 1).mean()),
        **{f"among_{count}": float((found < count).mean()) for count in AMONG},
        "covered": float((found < width).mean()),
    }


def place_shares(right: Right) -> dict[str, Any]:
    """Of guesses [n, PLACES] the share that is right at each place, and in all places up to it.

    Both are None of none.
    """
    if not len(right):
        return {"texts": 0, "each": None, "all_up_to": None}
    together = np.logical_and.accumulate(right, axis=1)
    return {
        "texts": len(right),
        "each": right.mean(axis=0).tolist(),
        "all_up_to": together.mean(axis=0).tolist(),
    }


def tables(found: Mapping[str, Any]) -> Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Head and rows of both tables."""
    yield (
        ("kind", "tokens", "first choice", *(f"among {count}" for count in AMONG), "in the head"),
        [
            (
                kind,
                str(of["tokens"]),
                *(f"{share:.3f}" for name, share in of.items() if name != "tokens"),
            )
            for kind, of in found["next"].items()
        ],
    )
    places = (f"place {place}" for place in range(1, PLACES + 1))
    yield (
        ("kind", "tokens a pass", "texts", *(f"{place} (all up to it)" for place in places)),
        [
            (kind, per_pass, str(of["texts"]), *_place_cells(of))
            for kind in found["next"]
            for per_pass, by_name in found["places"].items()
            for of in (by_name[kind],)
        ],
    )


def _place_cells(of: Mapping[str, Any]) -> list[str]:
    if not of["texts"]:
        return ["–"] * PLACES
    pairs = zip(of["each"], of["all_up_to"], strict=True)
    return [f"{each:.3f} ({together:.3f})" for each, together in pairs]
