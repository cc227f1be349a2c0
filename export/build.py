"""Builds the files of a bundle from a model file, and measures every graph that it writes."""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import onnx
import onnxruntime
import tokenizers
from numpy.typing import NDArray
from tokenizers import Tokenizer

import export
import runtime
from export import gguf_file, reference, tokenizer
from export.gguf_file import GgufFile
from export.graph import LANES, PORTABLE_ROWS, build_graphs, graph_file, portable_context
from export.heartbeat import heartbeat
from export.parity import OPENINGS, compare, write_texts
from export.plan import Plan, printable, split_key
from export.workshop import Part, Workshop
from runtime import providers
from runtime.bundle_files import file_sha256
from runtime.errors import BundleError, UsageError
from runtime.flavours import open_graph
from runtime.manifest import FileEntry, Graph, Manifest, Parity, Precision, Role, RoleName
from runtime.probe import compare_widths
from runtime.session import GraphSession

Progress = Callable[[str], None]
Say = Callable[[str], None]
QUICKEST_FIRST = ("fused-int8", "fused-fp32")
MEASURED_CONTEXT = 256  # tokens; the texts that graphs are measured on are shorter


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
    plan = plan.fitted(found.target.geometry)
    roles = {"target": found.target, "draft": found.draft}
    held = {f"{name}/{key}" for name, role in roles.items() if role for key in role.graphs}
    if (found.name, found.source.sha256, held) != (
        plan.name,
        plan.source.sha256,
        set(plan.graphs),
    ):
        raise UsageError(
            f"{out} holds another bundle, {found.name}, built from {found.source.file}: "
            f"{', '.join(sorted(held))}. Remove it or name another folder."
        )
    return True


def build(plan: Plan, model_file: Path, work: Workshop, progress: Progress) -> None:
    """Make the plan's bundle of a GGUF file in `work.bundle`, manifest last.

    Parts that an earlier build of the same file by the same program finished are taken as they
    are. Raises BuildError for a file that cannot be built (see gguf_file.read, tokenizer.build).
    """
    with _step(f"read {model_file.name}", progress) as say:
        read = gguf_file.read(model_file)
        weights = sum(weight.size for weight in read.model.weights.values())
        say(f"{read.model.geometry.layers} layers, {weights / 1e6:.1f} M weights")
    fitted = plan.fitted(read.model.geometry)
    if fitted != plan:
        progress("no draft: int4 cannot have a model of these sizes")
    licence = read.licence if plan.source.licence == "unknown" else plan.source.licence
    source = replace(plan.source, licence=printable(licence))
    _Build(replace(fitted, source=source), read, work, progress).run()


class _Build:
    """One build: what is made of what, each part under a key that says so."""

    def __init__(self, plan: Plan, read: GgufFile, work: Workshop, progress: Progress) -> None:
        self._plan, self._read, self._work, self._progress = plan, read, work, progress
        self._model = read.model
        self._parities: dict[str, Parity] = {}

    def run(self) -> None:
        """Everything, the manifest last."""
        with _step("rebuild the tokenizer", self._progress) as say:
            settings = self._plan.generation
            tokenizer.write(self._read.metadata, self._work.bundle, generation=settings)
            say(f"{self._model.geometry.vocabulary} tokens")
        folders = self._folders
        roles: dict[RoleName, Role] = {}
        for name in get_args(RoleName):
            graphs = {key: self._measured(name, key) for key in self._plan.keys(name)}
            ends = tokenizer.end_tokens(self._read.metadata)
            roles[name] = Role(self._model.geometry, graphs, ends)
        with _step("put the bundle together", self._progress) as say:
            size = _assemble(self._plan, roles, folders, self._work.bundle)
            say(_megabytes(size))

    @cached_property
    def _folders(self) -> dict[str, Part]:
        """The folders of graphs by their places in the bundle."""
        return {
            place: self._part(
                f"write {place}", self._graphs_key(place), partial(self._write_graphs, place)
            )
            for place in self._plan.folders
        }

    @cached_property
    def _texts(self) -> list[list[int]]:
        """Texts to measure on, which the quickest of the target's graphs writes."""
        keys = self._plan.keys("target")
        writer = next((key for key in QUICKEST_FIRST if key in keys), keys[0])

        def write(_folder: Path, say: Say) -> list[list[int]]:
            tokens = Tokenizer.from_str(
                (self._work.bundle / "tokenizer.json").read_text(encoding="utf-8")
            )
            openings = [tokens.encode(text).ids for text in OPENINGS]
            texts = write_texts(self._open("target", self._graph("target", writer)), openings)
            say(f"{sum(map(len, texts))} tokens")
            return texts

        key = self._key("texts", self._graphs_key(self._plan.place("target", writer)), writer)
        return cast(list[list[int]], self._part("write a text to measure on", key, write).result)

    @cached_property
    def _reference(self) -> list[NDArray[np.float32]]:
        """The texts' logits by numpy, each [len(text) - 1, vocabulary]."""
        with _step("compute its logits in numpy", self._progress) as say:
            say(f"{len(self._texts)} texts")
            return reference.logits_of_texts(self._model, [text[:-1] for text in self._texts])

    def _write_graphs(self, place: str, folder: Path, say: Say) -> None:
        """Fill a part's folder with the graphs of one place."""
        role, _, precision = place.partition("/")
        inner = folder / place
        inner.mkdir(parents=True)
        build_graphs(
            self._model,
            cast(Precision, precision),
            inner,
            flavours=self._plan.folders[place],
            many=role == "target",
            inexact=role == "draft",
        )
        say(_megabytes(sum(path.stat().st_size for path in inner.iterdir())))

    def _measured(self, role: RoleName, key: str) -> Graph:
        """The manifest's entry for one graph; what both roles have is measured once."""
        graph = self._graph(role, key)
        if graph.file not in self._parities:
            self._parities[graph.file] = self._measure(role, key, graph)
        return replace(graph, parity=self._parities[graph.file])

    def _measure(self, role: RoleName, key: str, graph: Graph) -> Parity:
        place = self._plan.place(role, key)
        part_key = self._key("parity", self._texts, self._graphs_key(place), graph.file)
        if self._work.find(part_key) is None:
            self._reference  # noqa: B018  (its own step is told first)

        def measure(_folder: Path, say: Say) -> dict[str, Any]:
            session = self._open(role, graph)
            widths = compare_widths(session).largest_difference
            parity = compare(session, self._texts, self._reference, width_difference=widths)
            say(
                f"{parity.equal_greedy_share:.1%} of greedy tokens equal, "
                f"logits differ by at most {parity.largest_logit_difference:.2g}"
            )
            return asdict(parity)

        part = self._part(f"measure the {role}'s {key} graph", part_key, measure)
        return Parity(**part.result)

    def _graph(self, role: RoleName, key: str) -> Graph:
        """A graph that was not measured yet."""
        flavour, precision = split_key(key)
        file = partial(graph_file, flavour)
        place = self._plan.place(role, key)
        many, portable = role == "target" and flavour == "fused", flavour == "portable"
        return Graph(
            f"{place}/{file()}",
            flavour,
            precision,
            Parity(0.0, 0.0, 0, 0.0),
            lanes={str(n): f"{place}/{file(lanes=n)}" for n in LANES if many},
            rows={str(n): f"{place}/{file(rows=n)}" for n in PORTABLE_ROWS if portable},
            context=portable_context(self._model) if portable else None,
        )

    def _open(self, role: RoleName, graph: Graph) -> GraphSession[Any]:
        place = self._plan.place(role, f"{graph.flavour}-{graph.precision}")
        return open_graph(
            self._folders[place].folder,
            graph,
            self._model.geometry,
            threads=len(providers.usable_cores()),
            context=min(MEASURED_CONTEXT, self._model.geometry.context),
            share_cpu=True,
        )

    def _part(self, what: str, key: str, fill: Callable[[Path, Say], Any]) -> Part:
        """The part of this key: kept, or made by `fill`; told as a step."""
        with _step(what, self._progress) as say:
            part = self._work.find(key)
            if part is None:
                return self._work.make(key, lambda folder: fill(folder, say))
            say("kept from an earlier start")
            return part

    def _graphs_key(self, place: str) -> str:
        return self._key("graphs", place, self._plan.folders[place])

    def _key(self, *what: object) -> str:
        """A name for what these things and the model file decide, under this very program."""
        parts = [_program(), self._plan.source.sha256, *what]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _assemble(
    plan: Plan, roles: Mapping[RoleName, Role], folders: Mapping[str, Part], bundle: Path
) -> int:
    """Move the graphs into the bundle and write its manifest; returns the bytes of all files."""
    hashes = {path.name: file_sha256(path) for path in bundle.iterdir()}
    for place, part in folders.items():
        (bundle / place).parent.mkdir(exist_ok=True)
        (part.folder / place).rename(bundle / place)
        hashes |= part.sha256
    files = {
        name: FileEntry(sha256, (bundle / name).stat().st_size)
        for name, sha256 in sorted(hashes.items())
    }
    draft = roles["draft"] if roles["draft"].graphs else None
    Manifest(plan.name, plan.source, files, roles["target"], draft).save(bundle)
    return sum(entry.bytes for entry in files.values())


@cache
def _program() -> str:
    """A hash of what decides how a model file becomes a bundle: this program and its packages."""
    digest = hashlib.sha256()
    for package in (export, runtime):
        for source in sorted(Path(*package.__path__).glob("*.py")):
            digest.update(source.read_bytes())
    for module in (np, onnx, onnxruntime, tokenizers):
        digest.update(module.__version__.encode())
    return digest.hexdigest()


@contextlib.contextmanager
def _step(what: str, progress: Progress) -> Iterator[Say]:
    """Report a step once it is done: what it did, what the block said of it, how long it took.

    One that takes long is told meanwhile too.
    """
    start = time.perf_counter()
    said: list[str] = []
    with heartbeat(what, progress):
        yield said.append
    progress(f"{what}: {', '.join(said)} ({time.perf_counter() - start:.1f} s)")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
