"""How often an exit names the target's next token, and what that adds to a draft's runner-ups."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.model import Model
from export.reference import read_off, states_of_texts
from scripts.draft.agreement import ranks
from scripts.draft.texts import Tokens, Written, by_kind
from scripts.early_exit.rounds import Numbers, Rounds, ranks_without

TOPS = (1, 2, 4, 8, 16)
EACH = (1, 2, 4, 8)  # tokens of the draft's, or of the exit's, at the place where a round ends
TOGETHER = 8  # texts in a pass of the whole model
ROWS = 256  # whose logits are held at a time


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many tokens an exit prefers to each of a text, over either head, and to final tokens."""

    whole: Numbers
    short: Numbers
    final: Numbers


def measure(
    model: Model,
    lenses: Mapping[int, NDArray[Any]],
    layers: Sequence[int],
    texts: Sequence[Written],
    *,
    head: Tokens,
    vocabulary: int,
    rounds: Sequence[Rounds],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Shares for each of `layers`, read off as it is and, where there is one, through its lens.

    head: the tokens of the short list. The model computes in float32, the texts are its own in the
    graph that wrote them.
    """
    readings: dict[tuple[int, bool], list[tuple[str, Ranks]]] = {}
    for start in range(0, len(texts), TOGETHER):
        group = slice(start, start + TOGETHER)
        states = states_of_texts(model, [text.tokens[:-1].tolist() for text in texts[group]])
        for layer, of_texts in enumerate(states):
            if layer not in layers:
                continue
            for is_lens in (False, True)[: 1 + (layer in lenses)]:
                found = readings.setdefault((layer, is_lens), [])
                for text, ended, hidden in zip(texts[group], rounds[group], of_texts, strict=True):
                    rows = hidden[text.start - 1 :]
                    if is_lens:
                        rows = rows @ lenses[layer].astype(np.float32).T
                    wanted = text.tokens[text.start :]
                    read = _ranks(model, rows, wanted, ended, text.start, head, vocabulary)
                    found.append((text.kind, read))
        say(f"exits: {min(start + TOGETHER, len(texts))} of {len(texts)} texts")
    return {
        "head_tokens": len(head),
        "rounds": lengths(texts, rounds),
        "exits": [
            {
                "layer": layer,
                "lens": is_lens,
                "whole_head": _by_kind(found, lambda read: read.whole),
                "short_head": _by_kind(found, lambda read: read.short),
                "hits": _hits(rounds, found),
            }
            for (layer, is_lens), found in readings.items()
        ],
    }


def _ranks(
    model: Model,
    rows: NDArray[np.float32],
    wanted: Tokens,
    ended: Rounds,
    start: int,
    head: Tokens,
    vocabulary: int,
) -> Ranks:
    """Ranks of `wanted` [n] over both heads, and of the final tokens of the rounds.

    rows [n, hidden], the first of which speaks for the token at `start`.
    """
    refused = np.full(len(wanted), -1)
    refused[ended.places - start] = ended.refused
    everything = np.arange(vocabulary)
    parts = []
    for first in range(0, len(wanted), ROWS):
        part = slice(first, first + ROWS)
        logits = read_off(model, rows[part])
        short = logits[:, head]
        parts.append(
            (
                ranks(logits[:, :vocabulary], everything, wanted[part]),
                ranks(short, head, wanted[part]),
                ranks_without(short, head, wanted[part], refused[part]),
            )
        )
    whole, listed, without = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Ranks(whole, listed, without[ended.places - start])


def _by_kind(
    found: Sequence[tuple[str, Ranks]], part: Callable[[Ranks], Numbers]
) -> Mapping[str, dict[str, float]]:
    def tops(of: list[Numbers]) -> dict[str, float]:
        joined = np.concatenate(of)
        return {str(top): float((joined < top).mean()) for top in TOPS}

    return by_kind([(kind, part(read)) for kind, read in found], tops)


def lengths(texts: Sequence[Written], rounds: Sequence[Rounds]) -> Mapping[str, dict[str, Any]]:
    """By kind how many rounds there were, and what share of them accepted 0, 1, … tokens."""

    def pooled(found: list[Numbers]) -> dict[str, Any]:
        joined = np.concatenate(found)
        return {"rounds": len(joined), "accepted": (np.bincount(joined) / len(joined)).tolist()}

    accepted = [(text.kind, ended.accepted) for text, ended in zip(texts, rounds, strict=True)]
    return by_kind(accepted, pooled)


def _hits(
    rounds: Sequence[Rounds], found: Sequence[tuple[str, Ranks]]
) -> Mapping[str, dict[str, float]]:
    """By kind, the share of rounds whose final token one of them names at the round's place."""
    pairs = [
        (kind, np.stack([ended.ranks, read.final]))
        for ended, (kind, read) in zip(rounds, found, strict=True)
    ]
    return by_kind(pairs, lambda each: hit_shares(*np.concatenate(each, axis=1)))


def hit_shares(draft: Numbers, exits: Numbers) -> dict[str, float]:
    """Of ranks [r] by the draft and by the exit: "draft 2", "exit 2", "both 2" (two of each)."""
    shares = {}
    for count in EACH:
        by_draft, by_exit = draft < count, exits < count
        for name, right in (("draft", by_draft), ("exit", by_exit), ("both", by_draft | by_exit)):
            shares[f"{name} {count}"] = float(right.mean())
    shares[f"draft {2 * EACH[-1]}"] = float((draft < 2 * EACH[-1]).mean())
    return shares


def tables(
    found: Mapping[str, Any], kind: str
) -> Iterator[tuple[Sequence[str], Iterable[Sequence[str]]]]:
    """Head and rows of the tables of one kind."""
    yield (
        ("after layers", *(f"among {top}" for top in TOPS)),
        [
            (_name(of), *_cells(of["whole_head"][kind], of["short_head"][kind]))
            for of in found["exits"]
        ],
    )
    names = list(found["exits"][0]["hits"][kind])
    yield (
        ("after layers", *names),
        [
            (_name(of), *(f"{of['hits'][kind][name]:.3f}" for name in names))
            for of in found["exits"]
        ],
    )


def _name(of: Mapping[str, Any]) -> str:
    return f"{of['layer']}{', lens' if of['lens'] else ''}"


def _cells(whole: Mapping[str, float], short: Mapping[str, float]) -> list[str]:
    return [f"{whole[top]:.3f} ({short[top]:.3f})" for top in whole]
