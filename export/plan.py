"""What a bundle is to hold: which graphs of which role, by names as in target/fused-int8."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast, get_args

from export.linear import INT4_BLOCK
from runtime.bundle_files import file_sha256
from runtime.errors import UsageError
from runtime.manifest import Flavour, Geometry, Precision, RoleName, Source

PRECISIONS: dict[Flavour, tuple[Precision, ...]] = {
    "fused": ("fp32", "fp16", "int8", "int4"),
    "portable": ("fp32", "fp16", "int8"),
}
KNOWN_GRAPHS = [
    f"{role}/{flavour}-{precision}"
    for role in get_args(RoleName)
    for flavour, precisions in PRECISIONS.items()
    for precision in precisions
]
DEFAULT_GRAPHS = (
    "target/fused-fp32",
    "target/fused-int8",
    "target/portable-fp32",
    "target/portable-int8",
    "draft/fused-int4",
    "draft/portable-fp32",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The target's graphs, and those of a draft of the same weights, by name.

    `generation` holds sampling defaults by their usual names. A licence "unknown" gives way to the
    one that the model file names. A draft that is `optional` is left out for a model whose sizes
    int4 cannot have.
    """

    name: str
    source: Source
    generation: dict[str, float] = field(default_factory=dict)
    graphs: tuple[str, ...] = DEFAULT_GRAPHS
    optional: bool = True

    def keys(self, role: RoleName) -> tuple[str, ...]:
        """The role's graphs as its part of the manifest names them: fused-int8."""
        return tuple(
            key
            for owner, _, key in (graph.partition("/") for graph in self.graphs)
            if owner == role
        )

    def without_draft(self) -> "Plan":
        """The plan of the target alone."""
        targets = tuple(graph for graph in self.graphs if graph.startswith("target/"))
        return replace(self, graphs=targets)

    def fitted(self, geometry: Geometry) -> "Plan":
        """The plan for a model of these sizes: without an optional draft that they rule out."""
        widths = (geometry.hidden, geometry.intermediate, geometry.heads * geometry.head_size)
        needs_int4 = "draft/fused-int4" in self.graphs
        if self.optional and needs_int4 and any(width % INT4_BLOCK for width in widths):
            return self.without_draft()
        return self

    def place(self, role: RoleName, key: str) -> str:
        """The folder of a graph; a draft uses the weights that the target has in its precision.

        Not in int4, where a draft is another graph than a target: faster, and not exact.
        """
        _, precision = split_key(key)
        own = {split_key(each)[1] for each in self.keys("target")}
        return f"{'target' if precision != 'int4' and precision in own else role}/{precision}"

    @property
    def folders(self) -> dict[str, list[Flavour]]:
        """The folders to build, each with the flavours of its graphs."""
        found: dict[str, list[Flavour]] = {}
        for role in get_args(RoleName):
            for key in self.keys(role):
                flavours = found.setdefault(self.place(role, key), [])
                flavour, _ = split_key(key)
                if flavour not in flavours:
                    flavours.append(flavour)
        return found


def plan_for(model_file: Path) -> Plan:
    """The usual plan for a GGUF file, under the file's name; OSError if it is unreadable."""
    name = printable(model_file.name)
    source = Source("gguf", name, file_sha256(model_file), "unknown")
    return Plan(Path(name).stem, source)


def choose_graphs(plan: Plan, graphs: Sequence[str], *, draft: bool) -> Plan:
    """The plan with the graphs that a user named, if any, and without a draft if not `draft`.

    Raises UsageError as `check_graphs`.
    """
    if graphs:
        plan = replace(plan, graphs=check_graphs(graphs), optional=False)
    if draft:
        return plan
    if any(graph.startswith("draft/") for graph in graphs):
        raise UsageError("A graph of the draft was named, but there is to be no draft: drop one.")
    return plan.without_draft()


def check_graphs(graphs: Iterable[str]) -> tuple[str, ...]:
    """The graphs, each once; UsageError for one that is unknown and where the target has none."""
    found = tuple(dict.fromkeys(graphs))
    unknown = [graph for graph in found if graph not in KNOWN_GRAPHS]
    if unknown:
        raise UsageError(f"There is no graph {unknown[0]!r}; there is {', '.join(KNOWN_GRAPHS)}.")
    if not any(graph.startswith("target/") for graph in found):
        raise UsageError("The target needs a graph, as in target/fused-int8.")
    return found


def split_key(key: str) -> tuple[Flavour, Precision]:
    """Flavour and precision of a graph: "fused-int8" is fused and int8."""
    flavour, _, precision = key.partition("-")
    return cast(Flavour, flavour), cast(Precision, precision)


def printable(text: str) -> str:
    """`text` as a manifest may hold it: without control characters and halves of characters."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in whole)
