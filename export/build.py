"""Builds the files of a bundle from a model file, and measures every graph that it writes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from export import gguf_file, reference, tokenizer
from export.graph import LANES, PORTABLE_ROWS, build_graphs, graph_file, portable_context
from export.model import Model
from export.parity import OPENINGS, compare, write_texts
from runtime import providers
from runtime.errors import BundleError, UsageError
from runtime.flavours import open_graph
from runtime.manifest import (
    FileEntry,
    Flavour,
    Graph,
    Manifest,
    Parity,
    Precision,
    Role,
    RoleName,
    Source,
    file_sha256,
)
from runtime.probe import compare_widths
from runtime.session import GraphSession

Progress = Callable[[str], None]
QUICKEST_FIRST = ("fused-int8", "fused-fp32")
MEASURED_CONTEXT = 256  # tokens; the texts that graphs are measured on are shorter


@dataclass(frozen=True, slots=True)
class Plan:
    """What a bundle is to hold: the target's graphs, and those of a draft of the same weights.

    `targets` and `drafts` name graphs by flavour and precision, as in "fused-int8"; without
    `drafts` there is no draft. `generation` holds sampling defaults by their usual names. A licence
    "unknown" gives way to the one that the model file names.
    """

    name: str
    source: Source
    generation: dict[str, float] = field(default_factory=dict)
    targets: tuple[str, ...] = ("fused-fp32", "fused-int8", "portable-fp32", "portable-int8")
    drafts: tuple[str, ...] = ("fused-int4", "portable-fp32")

    @property
    def graphs(self) -> list[tuple[RoleName, str]]:
        """Role and key of every graph of the manifest."""
        targets: list[tuple[RoleName, str]] = [("target", key) for key in self.targets]
        return [*targets, *(("draft", key) for key in self.drafts)]

    def place(self, role: RoleName, key: str) -> str:
        """The folder of a graph; a draft uses the weights that the target has in its precision.

        Not in int4, where a draft is another graph than a target: faster, and not exact.
        """
        precision = key.partition("-")[2]
        shared = precision != "int4" and any(own.endswith(precision) for own in self.targets)
        return f"{'target' if shared else role}/{precision}"

    def folders(self) -> dict[str, list[str]]:
        """The folders to build, each with the keys of its graphs."""
        found: dict[str, list[str]] = {}
        for role, key in self.graphs:
            keys = found.setdefault(self.place(role, key), [])
            if key not in keys:
                keys.append(key)
        return found


def plan_for(model_file: Path) -> Plan:
    """The usual plan for a GGUF file, under the file's name; OSError if it is unreadable."""
    source = Source("gguf", model_file.name, file_sha256(model_file), "unknown")
    return Plan(model_file.stem, source)


def is_built(plan: Plan, out: Path) -> bool:
    """Whether `out` already holds this plan's bundle, complete and undamaged.

    Raises UsageError when it holds anything else; an empty or absent folder is free to use.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        found = Manifest.load(out)
        found.verify()
    except (BundleError, OSError) as error:
        raise UsageError(
            f"{out} is in the way: it is neither empty nor a complete bundle ({error}) "
            "Remove it or name another folder."
        ) from error
    wanted = {f"{role}/{key}" for role, key in plan.graphs}
    roles = {"target": found.target, "draft": found.draft}
    held = {f"{name}/{key}" for name, role in roles.items() if role for key in role.graphs}
    if (found.name, found.source.sha256, held) != (plan.name, plan.source.sha256, wanted):
        raise UsageError(
            f"{out} holds another bundle, {found.name}, built from {found.source.file}; "
            "remove it or name another folder."
        )
    return True


def build(plan: Plan, model_file: Path, folder: Path, progress: Progress) -> None:
    """Make the plan's bundle of a GGUF file in the empty `folder`, manifest last.

    Raises BuildError for a file that cannot be built (see gguf_file.read and tokenizer.build).
    """
    with _step(f"read {model_file.name}", progress) as say:
        read = gguf_file.read(model_file)
        model = read.model
        weights = sum(weight.size for weight in model.weights.values())
        say(f"{model.geometry.layers} layers, {weights / 1e6:.1f} M weights")
    with _step("rebuild the tokenizer", progress) as say:
        tokenizer.write(read.metadata, folder, generation=plan.generation)
        say(f"{model.geometry.vocabulary} tokens")
    for place, keys in plan.folders().items():
        with _step(f"write {place}", progress) as say:
            (folder / place).mkdir(parents=True)
            role, _, precision = place.partition("/")
            build_graphs(
                model,
                cast(Precision, precision),
                folder / place,
                flavours=[cast(Flavour, key.partition("-")[0]) for key in keys],
                many=role == "target",
                inexact=role == "draft",
            )
            say(_megabytes(sum(path.stat().st_size for path in (folder / place).iterdir())))
    graphs = _measure(plan, model, folder, progress)
    with _step("hash the files", progress) as say:
        licence = read.licence if plan.source.licence == "unknown" else plan.source.licence
        source = replace(plan.source, licence=licence)
        end_tokens = tokenizer.end_tokens(read.metadata)
        manifest = _manifest(replace(plan, source=source), model, folder, graphs, end_tokens)
        manifest.save(folder)
        say(_megabytes(sum(entry.bytes for entry in manifest.files.values())))


def _measure(
    plan: Plan, model: Model, folder: Path, progress: Progress
) -> dict[tuple[RoleName, str], Graph]:
    """Every graph as the manifest names it, measured on texts that the quickest target writes."""
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    openings = [tokens.encode(text).ids for text in OPENINGS]
    unmeasured = Parity(0.0, 0.0, 0, 0.0)
    graphs = {each: _graph(plan, model, *each, unmeasured) for each in plan.graphs}

    def load(graph: Graph) -> GraphSession[Any]:
        threads = len(providers.usable_cores())
        context = min(MEASURED_CONTEXT, model.geometry.context)
        return open_graph(
            folder, graph, model.geometry, threads=threads, context=context, share_cpu=True
        )

    with _step("write a text to measure on", progress) as say:
        writer = next((key for key in QUICKEST_FIRST if key in plan.targets), plan.targets[0])
        texts = write_texts(load(graphs["target", writer]), openings)
        say(f"{sum(map(len, texts))} tokens")
    with _step("compute its logits in numpy", progress) as say:
        rows = reference.logits_of_texts(model, [text[:-1] for text in texts])
        say(f"{len(texts)} texts")
    parities: dict[str, Parity] = {}
    for (role, key), graph in graphs.items():
        if graph.file not in parities:
            with _step(f"measure the {role}'s {key} graph", progress) as say:
                session = load(graph)
                widths = compare_widths(session).largest_difference
                parity = compare(session, texts, rows, width_difference=widths)
                parities[graph.file] = parity
                say(
                    f"{parity.equal_greedy_share:.1%} of greedy tokens equal, "
                    f"logits differ by at most {parity.largest_logit_difference:.2g}"
                )
        graphs[role, key] = replace(graph, parity=parities[graph.file])
    return graphs


def _graph(plan: Plan, model: Model, role: RoleName, key: str, parity: Parity) -> Graph:
    """The manifest's entry for one graph."""
    place = plan.place(role, key)
    flavour, precision = cast(tuple[Flavour, Precision], key.split("-"))
    many = role == "target" and flavour == "fused"
    portable = flavour == "portable"
    return Graph(
        f"{place}/{graph_file(flavour)}",
        flavour,
        precision,
        parity,
        lanes={str(n): f"{place}/{graph_file(flavour, lanes=n)}" for n in LANES if many},
        rows={str(n): f"{place}/{graph_file(flavour, rows=n)}" for n in PORTABLE_ROWS if portable},
        context=portable_context(model) if portable else None,
    )


def _manifest(
    plan: Plan,
    model: Model,
    folder: Path,
    graphs: dict[tuple[RoleName, str], Graph],
    end_tokens: list[int],
) -> Manifest:
    def role(name: RoleName) -> Role:
        own = {key: graph for (owner, key), graph in graphs.items() if owner == name}
        return Role(geometry=model.geometry, graphs=own, end_tokens=end_tokens)

    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return Manifest(
        name=plan.name,
        source=plan.source,
        files={
            path.relative_to(folder).as_posix(): FileEntry(file_sha256(path), path.stat().st_size)
            for path in paths
        },
        target=role("target"),
        draft=role("draft") if plan.drafts else None,
    )


@contextlib.contextmanager
def _step(what: str, progress: Progress) -> Iterator[Callable[[str], None]]:
    """Report a step once it is done: what it did, what the block said of it, how long it took."""
    start = time.perf_counter()
    said: list[str] = []
    yield said.append
    progress(f"{what}: {', '.join(said)} ({time.perf_counter() - start:.1f} s)")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
