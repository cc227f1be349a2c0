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
    folder: Path,
    graph: Graph,
    geometry: Geometry,
    *,
    provider: str = "CPU",
    columns: int | None = None,
    **settings: Any,
) -> GraphSession[Any]:
    """The session of `graph` in the bundle `folder`; settings as for the flavour's own session.

    columns: how many the logits have, where they are not of the whole vocabulary. Raises
    BundleError when they have others, and with ProviderError as `providers.load`.
    """
    session: GraphSession[Any]
    if graph.flavour == "fused":
        session = FusedSession(folder / graph.file, geometry, **settings)
    else:
        files = {int(rows): folder / file for rows, file in graph.rows.items()}
        slots = graph.context or geometry.context
        session = PortableSession(files, geometry, slots=slots, provider=provider, **settings)
    due = geometry.vocabulary if columns is None else columns
    if session.logits_width != due:
        raise BundleError(
            f"{folder / graph.file} does not fit its manifest: its logits have "
            f"{session.logits_width} columns where {due} are due; build the bundle again."
        )
    return session
