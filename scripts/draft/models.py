"""A bundle's draft and target as these measurements open them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.draft_model import draft_role, load_head_tokens
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


def open_draft(
    manifest: Manifest, *, provider: str = "CPU", **settings: Any
) -> tuple[GraphSession[Any], NDArray[np.int64]]:
    """The draft in the graph that the runtime takes for `provider`, and its head's tokens [n]."""
    name = draft_role(manifest)
    role = manifest.role(name)
    head = np.arange(role.geometry.vocabulary)
    if role.head_tokens is not None:
        head = load_head_tokens(manifest.folder / role.head_tokens, role.geometry.vocabulary)
    session = open_graph(
        manifest.folder,
        choose_graph(manifest, name, provider),
        role.geometry,
        provider=provider,
        columns=len(head),
        context=context_of(manifest),
        **settings,
    )
    return session, head


def tokens_of_a_pass(manifest: Manifest) -> int:
    """How many tokens the draft was trained to give in a pass."""
    return manifest.role(draft_role(manifest)).tokens_per_pass
