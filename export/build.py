"""Builds the files of a bundle from a model file, and measures every graph that it writes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenizers import Tokenizer

from export import gguf_file, reference, tokenizer
from export.graph import GRAPH_FILE, build_fused, build_integer_probe, lanes_file
from export.model import Model
from export.parity import OPENINGS, compare, write_texts
from runtime import providers
from runtime.errors import BundleError, UsageError
from runtime.manifest import (
    FileEntry,
    Graph,
    Manifest,
    Parity,
    Precision,
    Role,
    RoleName,
    Source,
    file_sha256,
)
from runtime.probe import INTEGER_PROBE_FILE, compare_widths
from runtime.session import GraphSession

Progress = Callable[[str], None]
LANES = (8, 32)  # how many sequences are decoded together, where speed per sequence is not all
MEASURED_CONTEXT = 256  # tokens; the texts that graphs are measured on are shorter


@dataclass(frozen=True, slots=True)
class Plan:
    """What a bundle is to hold: fused graphs of these precisions, and a draft of the same weights.

    `generation` holds sampling defaults by their usual names; `draft` is a precision or None. A
    licence "unknown" gives way to the one that the model file names.
    """

    name: str
    source: Source
    generation: dict[str, float] = field(default_factory=dict)
    targets: tuple[Precision, ...] = ("fp32", "int8")
    draft: Precision | None = "int4"

    @property
    def graphs(self) -> list[tuple[RoleName, Precision]]:
        """Role and precision of every graph, in the order in which they are built."""
        drafts: list[tuple[RoleName, Precision]] = (
            [] if self.draft is None else [("draft", self.draft)]
        )
        return [*(("target", precision) for precision in self.targets), *drafts]


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
    wanted = {f"{role}/fused-{precision}" for role, precision in plan.graphs}
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
    for role, precision in plan.graphs:
        with _step(f"write the {role}'s fused-{precision} graph", progress) as say:
            place = folder / role / f"fused-{precision}"
            place.mkdir(parents=True)
            build_fused(model, precision, place, lanes=LANES if role == "target" else ())
            if precision == "int8":
                build_integer_probe(place / INTEGER_PROBE_FILE)
            say(_megabytes(sum(path.stat().st_size for path in place.iterdir())))
    parities = _measure(plan, model, folder, progress)
    with _step("hash the files", progress) as say:
        licence = read.licence if plan.source.licence == "unknown" else plan.source.licence
        source = replace(plan.source, licence=licence)
        end_tokens = tokenizer.end_tokens(read.metadata)
        manifest = _manifest(replace(plan, source=source), model, folder, parities, end_tokens)
        manifest.save(folder)
        say(_megabytes(sum(entry.bytes for entry in manifest.files.values())))


def _measure(
    plan: Plan, model: Model, folder: Path, progress: Progress
) -> dict[tuple[RoleName, Precision], Parity]:
    """The parity of every graph, on texts that the last target graph, the quickest, writes."""
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    openings = [tokens.encode(text).ids for text in OPENINGS]

    def load(role: RoleName, precision: Precision) -> GraphSession:
        path = folder / role / f"fused-{precision}" / GRAPH_FILE
        threads = len(providers.usable_cores())
        context = min(MEASURED_CONTEXT, model.geometry.context)
        return GraphSession(path, model.geometry, threads=threads, context=context, share_cpu=True)

    with _step("write a text to measure on", progress) as say:
        texts = write_texts(load("target", plan.targets[-1]), openings)
        say(f"{sum(map(len, texts))} tokens")
    with _step("compute its logits in numpy", progress) as say:
        rows = reference.logits_of_texts(model, [text[:-1] for text in texts])
        say(f"{len(texts)} texts")
    parities = {}
    for role, precision in plan.graphs:
        with _step(f"measure the {role}'s fused-{precision} graph", progress) as say:
            session = load(role, precision)
            widths = compare_widths(session).largest_difference
            parity = compare(session, texts, rows, width_difference=widths)
            say(
                f"{parity.equal_greedy_share:.1%} of greedy tokens equal, "
                f"logits differ by at most {parity.largest_logit_difference:.2g}"
            )
        parities[role, precision] = parity
    return parities


def _manifest(
    plan: Plan,
    model: Model,
    folder: Path,
    parities: dict[tuple[RoleName, Precision], Parity],
    end_tokens: list[int],
) -> Manifest:
    graphs: dict[RoleName, dict[str, Graph]] = {"target": {}, "draft": {}}
    for (role, precision), parity in parities.items():
        key = f"fused-{precision}"
        place = f"{role}/{key}"
        lanes = {str(lanes): f"{place}/{lanes_file(lanes)}" for lanes in LANES if role == "target"}
        graphs[role][key] = Graph(f"{place}/{GRAPH_FILE}", "fused", precision, parity, lanes)
    roles = {
        role: Role(geometry=model.geometry, graphs=found, end_tokens=end_tokens)
        for role, found in graphs.items()
    }
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return Manifest(
        name=plan.name,
        source=plan.source,
        files={
            path.relative_to(folder).as_posix(): FileEntry(file_sha256(path), path.stat().st_size)
            for path in paths
        },
        target=roles["target"],
        draft=roles["draft"] if plan.draft else None,
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
