"""A bundle's target as these measurements open it."""

from typing import Any

from runtime.flavours import choose_graph, open_graph
from runtime.manifest import Manifest
from runtime.session import GraphSession

CONTEXT = 2048  # tokens; every prompt and its answer fit
PRECISION = "int8"  # of the target


def context_of(manifest: Manifest) -> int:
    """How many tokens a session holds here."""
    return min(CONTEXT, manifest.target.geometry.context)


def open_target(manifest: Manifest, **settings: Any) -> GraphSession[Any]:
    """The target on the CPU; settings as for `open_graph`."""
    return open_graph(
        manifest.folder,
        choose_graph(manifest, "target", "CPU", PRECISION),
        manifest.target.geometry,
        context=context_of(manifest),
        **settings,
    )
