"""Which of a role's graphs a provider takes, and the session that runs it."""

from pathlib import Path
from typing import Any

from runtime.errors import BundleError
from runtime.fused import FusedSession
from runtime.manifest import Geometry, Graph, Manifest, RoleName
from runtime.portable import PortableSession
from runtime.providers import PROVIDERS
from runtime.session import GraphSession


def choose_graph(
    manifest: Manifest, role: RoleName, provider: str, precision: str | None = None
) -> Graph:
    """The graph of `role` that suits `provider` best, of one precision where it is given.

    Raises BundleError, naming the graphs there are, when none does.
    """
    graphs = manifest.role(role).graphs
    takes = PROVIDERS[provider]
    precisions = takes.precisions if precision is None else (precision,)
    for flavour in takes.flavours:
        for each in precisions:
            if each in takes.precisions and f"{flavour}-{each}" in graphs:
                return graphs[f"{flavour}-{each}"]
    known = ", ".join(
        f"{flavour}-{each}" for flavour in takes.flavours for each in takes.precisions
    )
    asked = "" if precision is None else f" in {precision}"
    raise BundleError(
        f"The bundle {manifest.folder} has no {role} graph{asked} for {provider}, which takes "
        f"{known}; it has {', '.join(sorted(graphs)) or 'none'}. Build one: python -m export --help"
    )


def open_graph(
    folder: Path, graph: Graph, geometry: Geometry, *, provider: str = "CPU", **settings: Any
) -> GraphSession[Any]:
    """The session of `graph` in the bundle `folder`; settings as for the flavour's own session.

    Raises BundleError, ProviderError as `providers.load`.
    """
    if graph.flavour == "fused":
        return FusedSession(folder / graph.file, geometry, **settings)
    files = {int(rows): folder / file for rows, file in graph.rows.items()}
    slots = graph.context or geometry.context
    return PortableSession(files, geometry, slots=slots, provider=provider, **settings)
