"""Which of a role's graphs a provider takes, and the session that runs it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.errors import BundleError, ProviderError
from runtime.exit_head import ExitHead
from runtime.fused import FusedSession
from runtime.manifest import STATIC, EarlyExit, Geometry, Graph, Manifest, RoleName
from runtime.portable import PortableSession
from runtime.providers import Place, as_place
from runtime.session import GraphSession
from runtime.split_session import SplitSession
from runtime.wanted import best_first, best_graph, build_command


def choose_graph(
    manifest: Manifest, role: RoleName, provider: str | Place, precision: str | None = None
) -> Graph:
    """The graph of `role` that suits `provider` best, of one precision where it is given.

    Raises BundleError, naming the graphs there are and what builds one, when none does.
    """
    for graph in suited(manifest, role, provider, precision):
        return graph
    taken, graphs = best_first(role, provider), manifest.role(role).graphs
    asked = "" if precision is None else f" in {precision}"
    best = best_graph(role, provider, precision)
    raise BundleError(
        f"The bundle {manifest.folder} has no {role} graph{asked} for {provider}, which takes "
        f"{', '.join(taken)}; it has {', '.join(sorted(graphs)) or 'none'}."
        + (f" Build one: {build_command(manifest, {role: best})}" if best else "")
    )


def graph_files(folder: Path, graph: Graph) -> list[Path]:
    """The files that `open_graph` loads of a graph without an early exit."""
    if graph.flavour in STATIC:
        return [folder / graph.rows[rows] for rows in sorted(graph.rows, key=int)]
    return [folder / graph.file]


def suited(
    manifest: Manifest, role: RoleName, provider: str | Place, precision: str | None = None
) -> Iterator[Graph]:
    """The graphs of `role` for `provider`, best first, of one precision where it is given."""
    graphs = manifest.role(role).graphs
    for key in best_first(role, provider):
        if key in graphs and precision in (None, graphs[key].precision):
            yield graphs[key]


def open_graph(
    folder: Path,
    graph: Graph,
    geometry: Geometry,
    *,
    provider: str | Place = "CPU",
    columns: int | None = None,
    exit_layer: int | None = None,
    **settings: Any,
) -> GraphSession[Any]:
    """The session of `graph` in the bundle `folder`; settings as for the flavour's own session.

    columns: how many the logits have, where they are not of the whole vocabulary. exit_layer: the
    role's early_exit_layer, for a SplitSession. Raises BundleError when the logits have others and
    when the graph has no early exit, and with ProviderError as `providers.load`.
    """
    session: GraphSession[Any]
    if graph.flavour == "fused" and as_place(provider).provider != "CPU":
        raise ProviderError(f"A fused graph runs on CPU only, and not on {provider}.")
    if exit_layer is not None:
        parts = exit_of(graph)
        prefix, suffix = folder / parts.prefix, folder / parts.suffix
        session = SplitSession(prefix, suffix, geometry, layer=exit_layer, **settings)
    elif graph.flavour not in STATIC:
        session = FusedSession(folder / graph.file, geometry, provider=provider, **settings)
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


def open_exit_head(folder: Path, graph: Graph, **settings: Any) -> ExitHead:
    """The head of the graph's early exit; settings as for ExitHead. Raises as `open_graph`."""
    return ExitHead(folder / exit_of(graph).head, **settings)


def exit_of(graph: Graph) -> EarlyExit:
    """The graph's early exit; BundleError where it has none."""
    if graph.early_exit is None:
        raise BundleError(
            f"The graph {graph.file} has no early exit: build the bundle with --early-exit-layer N."
        )
    return graph.early_exit
