"""Which graphs a bundle should have for the places that its models run in, and what builds them."""

import shlex
from collections.abc import Mapping
from typing import get_args

from runtime.errors import UsageError
from runtime.graph_names import PRECISIONS, split_key
from runtime.manifest import Manifest, RoleName
from runtime.providers import Place, takes

Wanted = Mapping[RoleName, str]


def for_target(target: Place, draft: Place | None, precision: str | None) -> Wanted:
    """By role the graph that suits each place best; none for the CPU provider, as usual ones do.

    draft: None where another bundle has it. Raises UsageError for a precision that the target's
    provider does not take.
    """
    found: dict[RoleName, str] = {}
    if target.provider != "CPU":
        best = best_graph("target", target, precision)
        if best is None:
            raise UsageError(
                f"The target was asked for in {precision} on {target}, which takes "
                f"{', '.join(best_first('target', target))}: take one of these, or another device."
            )
        found["target"] = best
    if draft is not None and (best := for_draft(draft).get("draft")):
        found["draft"] = best
    return found


def for_draft(place: Place) -> Wanted:
    """The graphs of a bundle that is there to draft.

    A draft of the target's own weights shares the target's files, so both roles have one graph.
    """
    best = None if place.provider == "CPU" else best_graph("draft", place)
    return {} if best is None else dict.fromkeys(get_args(RoleName), best)


def best_graph(role: RoleName, place: str | Place, precision: str | None = None) -> str | None:
    """The best graph there, of one precision where it is given, as in gpu-fp16; None for none."""
    keys = best_first(role, place)
    return next((key for key in keys if precision in (None, split_key(key)[1])), None)


def best_first(role: RoleName, place: str | Place) -> list[str]:
    """The graphs that a place takes and an export can write, as in gpu-fp16.

    A target's text is what the user reads: the better precision wins over the quicker flavour. A
    draft may be as inexact as it likes.
    """
    taken = takes(place)
    pairs = [(flavour, each) for flavour in taken.flavours for each in taken.precisions]
    if role == "target":
        pairs.sort(key=lambda pair: taken.precisions.index(pair[1]))
    keys = [f"{flavour}-{each}" for flavour, each in pairs if each in PRECISIONS[flavour]]
    return [key for key in keys if key not in taken.apart]


def build_command(manifest: Manifest, wanted: Wanted) -> str:
    """What builds a bundle with these graphs, and those that a role without one has here."""
    source = manifest.source
    kind, name = ("gguf", source.file) if source.kind == "gguf" else ("recipe", manifest.name)
    held = {"target": manifest.target.graphs, "draft": manifest.draft and manifest.draft.graphs}
    graphs = [
        f"{each}/{own}"
        for each in get_args(RoleName)
        for own in ([wanted[each]] if each in wanted else held[each] or ())
    ]
    words = ["python", "-m", "export", kind, name, "--graphs", ",".join(graphs)]
    if kind == "gguf" and manifest.draft_source is not None:
        words += ["--draft", manifest.draft_source.file]
    return shlex.join([*words, "--out", "-".join([str(manifest.folder), *wanted.values()])])
