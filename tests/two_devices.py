"""Watching where graphs are loaded, and judging a text that another device's logits chose."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import providers
from runtime.flavours import open_graph
from runtime.manifest import Graph, Manifest
from runtime.providers import PROVIDERS, Place, as_place
from runtime.sampling import Sampling, choose, margin
from runtime.text import Text
from tests.installed import needs, needs_software_gpu

needs_both = [needs("QNN"), needs_software_gpu]
NAMES = {key: PROVIDERS[key].ep_name for key in ("QNN", "WebGPU")}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A graph that was loaded, and by which providers so many of its nodes run."""

    file: str
    place: Place
    nodes: dict[str, int]


@contextmanager
def loads() -> Iterator[list[Loaded]]:
    """The graphs that are loaded in this process meanwhile."""
    found: list[Loaded] = []
    load = providers.load

    def watched(path: Path, **settings: Any) -> Any:
        session = load(path, **settings)
        place = as_place(settings.get("name", "CPU"))
        parts = () if place.provider == "CPU" else session.get_provider_graph_assignment_info()
        nodes: dict[str, int] = {}
        for part in parts:
            nodes[part.ep_name] = nodes.get(part.ep_name, 0) + len(part.get_nodes())
        found.append(Loaded(path.name, place, nodes))
        return session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "load", watched)
        yield found


def check_whole(found: Sequence[Loaded], keys: set[str]) -> None:
    """Graphs were loaded by each of these providers, every node of each where it was asked to.

    What was compiled for QNN is one node.
    """
    assert {each.place.provider for each in found} == keys
    for each in found:
        assert set(each.nodes) == {NAMES[each.place.provider]}, each
        assert each.nodes[NAMES[each.place.provider]] > (20 if each.place.kind == "GPU" else 0)


def partings(
    folder: Path, graph: Graph, prompt: str, tokens: Sequence[int], sampling: Sampling
) -> list[tuple[int, float]]:
    """Where the target's `graph` on the CPU chooses another token: its place, and by what lead.

    Each token is judged after those before it, so that one parting is not taken for many.
    """
    manifest = Manifest.load(folder)
    session = open_graph(folder, graph, manifest.target.geometry, threads=2, context=128)
    text = [*Text.load(folder).encode(prompt), *tokens]
    before = len(text) - len(tokens)
    rows = session.extend(np.array(text[:-1]), num_logits=len(tokens))
    found = []
    for place, (token, row) in enumerate(zip(tokens, rows, strict=True)):
        context = text[: before + place]
        if choose(row, context, sampling) != token:
            found.append((place, margin(row, context, sampling)))
    return found
