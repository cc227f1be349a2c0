"""What a bundle is to hold: which graphs of which role, by names as in target/fused-int8."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast, get_args

from export.linear import INT4_BLOCK
from export.trained import Trained
from runtime.bundle_files import file_sha256
from runtime.errors import UsageError
from runtime.graph_names import DEFAULT_GRAPHS, PRECISIONS, USUAL, split_key
from runtime.manifest import Flavour, Geometry, RoleName, Source

KNOWN_GRAPHS = [
    f"{role}/{flavour}-{precision}"
    for role in get_args(RoleName)
    for flavour, precisions in PRECISIONS.items()
    for precision in precisions
]
# A pass of several rows is quickest in int8, which shares its tables with the target's.
DRAFT_FILE_GRAPHS = ("draft/fused-int8", "draft/portable-fp32")


@dataclass(frozen=True, slots=True)
class Plan:
    """The target's graphs, and those of its draft, by name.

    `generation` holds sampling defaults by their usual names. A licence "unknown" gives way to the
    one that the model file names. Without a file in `draft` the draft is a stand-in with the
    target's weights; one that is `optional` is left out where int4 cannot have the model's sizes.
    Where there is an `early_exit_layer` the target's fused graphs are there in two parts, too.
    """

    name: str
    source: Source
    generation: dict[str, float] = field(default_factory=dict)
    graphs: tuple[str, ...] = DEFAULT_GRAPHS
    optional: bool = True
    draft: Trained | None = None
    lenses: Trained | None = None
    early_exit_layer: int | None = None

    def keys(self, role: RoleName) -> tuple[str, ...]:
        """The role's graphs as its part of the manifest names them: fused-int8."""
        return tuple(
            key
            for owner, _, key in (graph.partition("/") for graph in self.graphs)
            if owner == role
        )

    def check_files(self) -> None:
        """Raise BuildError for a file of what was trained that is missing or another one."""
        for file in (self.draft, self.lenses):
            if file is not None:
                file.check()

    def without_draft(self) -> "Plan":
        """The plan of the target alone."""
        targets = tuple(graph for graph in self.graphs if graph.startswith("target/"))
        return replace(self, graphs=targets, draft=None)

    def with_draft(self, draft: Trained) -> "Plan":
        """The plan with a draft from a file, in other graphs where none were chosen."""
        if not self.optional:
            return replace(self, draft=draft)
        graphs = (*self.without_draft().graphs, *DRAFT_FILE_GRAPHS)
        return replace(self, graphs=graphs, draft=draft)

    def fitted(self, geometry: Geometry) -> "Plan":
        """The plan for a model of these sizes: without an optional stand-in that they rule out."""
        widths = (geometry.hidden, geometry.intermediate, geometry.heads * geometry.head_size)
        needs_int4 = "draft/fused-int4" in self.graphs and self.draft is None
        if self.optional and needs_int4 and any(width % INT4_BLOCK for width in widths):
            return self.without_draft()
        return self

    def place(self, role: RoleName, key: str) -> str:
        """The folder of a graph; a draft uses the weights that the target has in its precision.

        A stand-in does not in int4, where it is another graph than a target of the same weights:
        faster, and not exact.
        """
        _, precision = split_key(key)
        own = {split_key(each)[1] for each in self.keys("target")}
        shared = precision in own and (precision != "int4" or self.draft is not None)
        return f"{'target' if shared else role}/{precision}"

    @property
    def folders(self) -> dict[str, dict[RoleName, list[Flavour]]]:
        """The folders to build, each with the flavours of the graphs of each model in it.

        A stand-in that lies in the target's folder is the target's own graphs.
        """
        found: dict[str, dict[RoleName, list[Flavour]]] = {}
        for role in get_args(RoleName):
            for key in self.keys(role):
                place = self.place(role, key)
                owner = role if self.draft else cast(RoleName, place.partition("/")[0])
                flavours = found.setdefault(place, {}).setdefault(owner, [])
                flavour, _ = split_key(key)
                if flavour not in flavours:
                    flavours.append(flavour)
        return found


def choose_exit(plan: Plan, layer: int | None) -> Plan:
    """The plan with the early exit that a user named; else with its own, where its graphs can.

    Raises UsageError as `check_exit`.
    """
    if layer is not None:
        check_exit(layer, plan.graphs)
        return replace(plan, early_exit_layer=layer)
    has_fused = any(graph.startswith("target/fused-") for graph in plan.graphs)
    return plan if has_fused else replace(plan, early_exit_layer=None)


def check_exit(layer: int | None, graphs: Iterable[str]) -> None:
    """Raise UsageError for a layer that leaves nothing before it, and where nothing can be cut."""
    if layer is None:
        return
    if layer < 1:
        raise UsageError(f"The early exit is after layer {layer}; it must be 1 or later.")
    if not any(graph.startswith("target/fused-") for graph in graphs):
        raise UsageError(
            "An early exit needs a fused graph of the target, as in target/fused-int8."
        )


def plan_for(model_file: Path) -> Plan:
    """The usual plan for a GGUF file, under the file's name; OSError if it is unreadable."""
    name = printable(model_file.name)
    source = Source("gguf", name, file_sha256(model_file), "unknown")
    return Plan(Path(name).stem, source)


def choose_graphs(plan: Plan, graphs: Sequence[str], *, draft: bool | Path) -> Plan:
    """The plan with the graphs that a user named, if any, and the draft that they chose.

    draft: whether there is to be one, or the file of one. target/usual and draft/usual stand for
    the graphs that the role would have otherwise. Raises UsageError as `check_graphs`.
    """
    if isinstance(draft, Path):
        plan = plan.with_draft(_read_trained(draft))
    elif not draft:
        if any(graph.startswith("draft/") for graph in graphs):
            raise UsageError(
                "A graph of the draft was named, but there is to be no draft: drop one."
            )
        plan = plan.without_draft()
    if graphs:
        usual = {
            f"{role}/{USUAL}": [f"{role}/{key}" for key in plan.keys(role)]
            for role in get_args(RoleName)
        }
        found = check_graphs(each for graph in graphs for each in usual.get(graph, [graph]))
        optional = plan.optional and f"draft/{USUAL}" in graphs
        plan = replace(plan, graphs=found, optional=optional)
    if plan.keys("draft"):
        return plan
    if isinstance(draft, Path):
        raise UsageError(f"The draft {draft} needs a graph: name one, as in draft/fused-int8.")
    return plan.without_draft()


def _read_trained(path: Path) -> Trained:
    found = Trained.read(path)
    file, licence = printable(found.source.file), printable(found.source.licence)
    return replace(found, source=replace(found.source, file=file, licence=licence))


def check_graphs(graphs: Iterable[str]) -> tuple[str, ...]:
    """The graphs, each once; UsageError for one that is unknown and where the target has none."""
    found = tuple(dict.fromkeys(graphs))
    unknown = [graph for graph in found if graph not in KNOWN_GRAPHS]
    if unknown:
        raise UsageError(f"There is no graph {unknown[0]!r}; there is {', '.join(KNOWN_GRAPHS)}.")
    if not any(graph.startswith("target/") for graph in found):
        raise UsageError("The target needs a graph, as in target/fused-int8.")
    return found


def printable(text: str) -> str:
    """`text` as a manifest may hold it: without control characters and halves of characters."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in whole)
