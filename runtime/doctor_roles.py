"""Whether target and draft can run where they were asked to, and what each of their graphs does."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import PurePosixPath
from typing import Any

from runtime import memory
from runtime.doctor_tries import Found, Tries
from runtime.draft_model import draft_role
from runtime.errors import BundleError, LateError, ProviderError
from runtime.flavours import choose_graph, suited
from runtime.manifest import Graph, Manifest, RoleName
from runtime.places import usual_precision
from runtime.providers import PROVIDERS, Place
from runtime.trial import judge


@dataclass(slots=True)
class GraphCheck:
    """One graph in one place. bytes: of its files and the weights beside them.

    nodes: by provider and operator. trial, greedy: how far its answers are from the CPU's on the
    same graph. parity: how far the graph is from float32, as its bundle says. reason: why it cannot
    run; None where it can. late: only as it was not done in time, so that nobody knows.
    """

    name: str
    flavour: str
    precision: str
    bytes: int
    needed_bytes: int
    parity: dict[str, Any]
    nodes: Found | None = None
    trial: Found | None = None
    greedy: Found | None = None
    reason: str | None = None
    late: bool = False


@dataclass(slots=True)
class RoleCheck:
    """One model. named: its device or provider was. place: None where it was not found.

    graphs: the one that would run; for a report every one that the place takes. reason: why it
    cannot run as asked.
    """

    role: RoleName
    named: bool
    place: Place | None = None
    emulated: bool = False
    smoke: Found | None = None
    model: str | None = None
    graphs: list[GraphCheck] = field(default_factory=list)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """The bundles of target and draft and what is asked of them; `draft` None for none."""

    target: Manifest
    draft: Manifest | None
    precision: str | None
    context_length: int | None

    def of(self, role: RoleName) -> tuple[Manifest, RoleName] | None:
        """The bundle of a model, and which of its roles that is; None where there is none."""
        if role == "target":
            return self.target, "target"
        return None if self.draft is None else (self.draft, draft_role(self.draft))


def find_place(
    role: RoleName,
    asked: Mapping[str, Mapping[str, Any]],
    tries: Tries,
    report: Callable[[str], None] | None,
) -> RoleCheck:
    """The role in the place that was asked for, or why not; UsageError for what cannot be meant.

    asked: by role.
    """
    named = any(value is not None for value in asked[role].values())
    if not named:
        return RoleCheck(role, named, Place("CPU", report=report))
    try:
        place, emulated = tries.place(role, asked, report=report)
    except ProviderError as error:
        return RoleCheck(role, named, reason=str(error))
    return RoleCheck(role, named, place, emulated)


def check_smoke(check: RoleCheck, providers: Mapping[str, Found], tries: Tries) -> None:
    """Add what a small graph does in the place; with options of the user's it is tried anew."""
    place = check.place
    if place is None:
        return
    for device in providers[place.provider]["devices"]:
        if (device["kind"], device["number"]) == (place.kind, place.number) and not place.options:
            check.smoke = device["smoke"]
    if check.smoke is None:
        check.smoke = tries.smoke(place)
    if check.smoke["verdict"] == "failed":
        check.reason = check.smoke["reason"]
    elif check.smoke["verdict"] == "wrong":
        check.reason = f"{place} computes wrongly: a small graph is {apart(check.smoke)}."


def check_graphs(check: RoleCheck, pair: Pair, tries: Tries, *, tokens: int | None) -> None:
    """Add what the role's graph does in its place; with `tokens` every graph there, compared so."""
    found, place = pair.of(check.role), check.place
    if found is None or place is None or check.reason is not None:
        return
    manifest, role = found
    check.model = manifest.name
    precision = pair.precision if check.role == "target" or tokens else None
    if tokens is None and check.role == "target":
        precision = usual_precision(precision, place)
    try:
        graphs = [choose_graph(manifest, role, place, precision)]
    except BundleError as error:
        check.reason = str(error)
        return
    if tokens is not None:
        graphs = list(suited(manifest, role, place, precision))
    for graph in graphs:
        checked = _described(manifest, role, graph, place, pair.context_length)
        check.graphs.append(checked)
        try:
            _try(checked, manifest, role, graph, place, tries, tokens)
        except (ProviderError, BundleError) as error:
            checked.reason = str(error)
            checked.late = isinstance(error, LateError)
    check.reason = check.graphs[0].reason


def check_memory(checks: list[RoleCheck], pair: Pair) -> tuple[int, str | None]:
    """The bytes that both models need together, and what to say where they are not there."""
    needed = memory.text_bytes(pair.target)
    needed += sum(check.graphs[0].needed_bytes for check in checks if check.graphs)
    short = memory.shortage(needed, memory.available_bytes())
    return needed, None if short is None else f"The models do not fit: {short}."


def _described(
    manifest: Manifest, role: RoleName, graph: Graph, place: Place, context: int | None
) -> GraphCheck:
    own, folder = manifest.role(role), PurePosixPath(graph.file).parent
    return GraphCheck(
        f"{graph.flavour}-{graph.precision}",
        graph.flavour,
        graph.precision,
        sum(
            entry.bytes
            for file, entry in manifest.files.items()
            if file in graph.every_file
            or (PurePosixPath(file).parent == folder and not file.endswith(".onnx"))
        ),
        memory.session_bytes(
            manifest,
            graph,
            own,
            context=context or graph.context or own.geometry.context,
            provider=place,
        ),
        dataclasses.asdict(graph.parity),
    )


def _try(
    checked: GraphCheck,
    manifest: Manifest,
    role: RoleName,
    graph: Graph,
    place: Place,
    tries: Tries,
    tokens: int | None,
) -> None:
    """Fill in what the graph does; errors pass through."""
    nodes = tries.nodes(manifest, role, graph, place)
    if place.provider == "CPU":
        return  # it has them all, and is what others are compared with
    checked.nodes = nodes
    own = PROVIDERS[place.provider].ep_name
    elsewhere = {name: kinds for name, kinds in nodes.items() if name != own}
    if elsewhere and place.report is None:
        raise ProviderError(
            f"{graph.file} would not run whole on {place}: {listed(elsewhere)}. "
            "--allow-cpu-fallback lets these run there."
        )
    trial = tries.trial(manifest, role, graph, place)
    checked.trial = dataclasses.asdict(trial)
    judge(trial, place, f"The graph {checked.name}")
    if tokens is not None:
        try:
            checked.greedy = tries.greedy(manifest, role, graph, place, tokens)
        except ProviderError as error:  # what was tried before stands
            tries.tell(str(error))


def apart(found: Mapping[str, Any]) -> str:
    """How far an answer is from the right one, in words."""
    if found["largest_difference"] is None or not isfinite(found["largest_difference"]):
        return "no numbers"
    return f"off by {found['largest_difference']:.2g} of {found['spread']:.2g}"


def listed(nodes: Mapping[str, Mapping[str, int]]) -> str:
    """Operators by the provider that runs them, in words."""
    return "; ".join(
        f"{name} has {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}"
        for name, kinds in sorted(nodes.items())
    )
