"""The process that tries a graph in a place: its answers there beside those on the CPU."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import providers
from runtime.branches import NO_BRANCHES, Branches
from runtime.child import answer
from runtime.draft_model import head_tokens
from runtime.flavours import open_graph
from runtime.manifest import Graph, Manifest, Role
from runtime.providers import Place
from runtime.session import GraphSession

CONTEXT = 64
_PRIMES = 7919, 104729  # steps through the vocabulary that soon go everywhere


@dataclass(frozen=True, slots=True)
class Call:
    """What is fed: a text [n], and branches behind it. fresh: nothing of it is cached."""

    text: NDArray[np.int64]
    num_logits: int
    branches: Branches = NO_BRANCHES
    fresh: bool = False


def calls(vocabulary: int, masks: Sequence[int], *, few: bool) -> list[Call]:
    """Chains of several widths, grown and cut, and trees with nodes whose position is not theirs.

    masks: ids of a draft's mask tokens. few: two calls, for a device that software plays. Else one
    of them has 40 rows from an empty cache: other kernels compute those of 32 and more.
    """
    places = np.arange(CONTEXT)
    one, other = ((places * prime + 11) % vocabulary for prime in _PRIMES)
    other[:2] = one[:2]
    hanging = tuple(int(token) for token in one[20:24])

    def behind(length: int, parents: tuple[int, ...], count: int) -> Branches:
        """Nodes, and masks one behind another at the text's end."""
        chain = masks[:count]
        first = length + len(parents)
        ends = (length - 1, *range(first, first + len(chain)))[: len(chain)]
        return Branches((*hanging[: len(parents)], *chain), (*parents, *ends))

    found = [
        Call(one[:4], 4, behind(4, (1, 4), 2), fresh=True),
        Call(other[:3], 1),  # two of them are cached
    ]
    if few:
        return found
    return [
        *found,
        Call(other[:11], 8),
        Call(other[:13], 2, behind(13, (12, 13, 6, 0), len(masks))),
        Call(other[:14], 1),
        Call(one[:40], 4, fresh=True),
        Call(one[:41], 1),
    ]


def answers(session: GraphSession[Any], asked: Sequence[Call]) -> NDArray[np.float32]:
    """The logits of all rows [rows, columns]; calls that do not fit the context are left out."""
    rows = []
    for call in asked:
        if len(call.text) + len(call.branches) <= session.context:
            if call.fresh:
                session.crop(0)
            given = session.extend(call.text, num_logits=call.num_logits, branches=call.branches)
            rows.append(given.copy())
    return np.concatenate(rows)


def difference(known: NDArray[np.float32], found: NDArray[np.float32]) -> dict[str, Any]:
    """What a Trial says of two answers, of which `known` is the CPU's, but the time."""
    apart = np.abs(found - known).max()
    return {
        "largest_difference": float(np.nan_to_num(apart, nan=np.inf)),
        "spread": float(np.nan_to_num(known.max() - known.min(), nan=0.0)),
        "rows": len(known),
        "equal": int((found.argmax(axis=1) == known.argmax(axis=1)).sum()),
    }


def _compared(request: dict[str, Any]) -> dict[str, Any]:
    manifest = Manifest.load(Path(request["bundle"]))
    role = manifest.role(request["role"])
    graph = role.graphs[request["graph"]]
    place = Place.from_data(request["place"])
    vocabulary = role.geometry.vocabulary
    masks = range(vocabulary, vocabulary + role.tokens_per_pass - 1)
    asked = calls(vocabulary, masks, few=providers.device_of(place).emulated)
    # One after the other, so that memory must hold one.
    known, found = (
        _answered(manifest.folder, role, graph, each, request["threads"], asked)
        for each in (Place("CPU"), place)
    )
    return difference(known, found)


def _answered(
    folder: Path, role: Role, graph: Graph, place: Place, threads: int, asked: Sequence[Call]
) -> NDArray[np.float32]:
    head = head_tokens(folder, role)
    session = open_graph(
        folder,
        graph,
        role.geometry,
        provider=place,
        columns=None if head is None else len(head),
        threads=threads,
        context=CONTEXT,
    )
    found = answers(session, asked)
    del session
    gc.collect()  # its memory is needed
    return found


if __name__ == "__main__":
    answer(_compared)
