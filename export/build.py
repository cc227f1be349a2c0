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
from export import draft_file, gguf_file, lens_file, reference, tokenizer
from export.assemble import assemble
from export.calibrate import Bounds, bounds_of
from export.exit_head import Exit
from export.gguf_file import GgufFile
from export.graph import (
    LANES,
    NO_BOUNDS,
    build_graphs,
    exit_files,
    graph_file,
    portable_context,
    portable_rows,
)
from export.model import Model
from export.parity import OPENINGS, compare, write_texts
from export.plan import Plan, printable
from export.trained import Trained
from export.workshop import Part, Workshop
from runtime import providers
from runtime.errors import BuildError
from runtime.flavours import open_graph
from runtime.graph_names import split_key
from runtime.heartbeat import heartbeat
from runtime.manifest import STATIC, Graph, Parity, Precision, Role, RoleName
from runtime.probe import compare_widths
from runtime.prompts import load_prompts, prompt_folder, select_prompts
from runtime.session import GraphSession

Progress = Callable[[str], None]
Say = Callable[[str], None]
QUICKEST_FIRST = ("fused-int8", "fused-fp32")
MEASURED_CONTEXT = 256  # tokens; the texts that graphs are measured on are shorter
CALIBRATED_PROMPTS, CALIBRATED_TOKENS = 24, 64  # of each so many


def build(plan: Plan, model_file: Path, work: Workshop, progress: Progress) -> None:
    """Make the plan's bundle of a GGUF file in `work.bundle`, manifest last.

    Parts that an earlier build of the same files by the same program finished are taken as they
    are. Raises BuildError for a file that cannot be built (see gguf_file.read, tokenizer.build,
    draft_file.load, lens_file.load).
    """
    with _step(f"read {model_file.name}", progress) as say:
        read = gguf_file.read(model_file)
        weights = sum(weight.size for weight in read.model.weights.values())
        say(f"{read.model.geometry.layers} layers, {weights / 1e6:.1f} M weights")
    fitted = plan.fitted(read.model.geometry)
    if fitted != plan:
        progress("no draft: int4 cannot have a model of these sizes")
    layer, layers = plan.early_exit_layer, read.model.geometry.layers
    if layer is not None and layer >= layers:
        raise BuildError(f"The early exit is after layer {layer}; the model has {layers} layers.")
    licence = read.licence if plan.source.licence == "unknown" else plan.source.licence
    source = replace(plan.source, licence=printable(licence))
    _Build(replace(fitted, source=source), read, work, progress).run()


class _Build:
    """One build: what is made of what, each part under a key that says so."""

    def __init__(self, plan: Plan, read: GgufFile, work: Workshop, progress: Progress) -> None:
        """Read what was trained for the model, too."""
        self._plan, self._read, self._work, self._progress = plan, read, work, progress
        self._models: dict[RoleName, Model] = {"target": read.model, "draft": read.model}
        self._lenses: dict[int, NDArray[Any]] = {}
        self._references: dict[RoleName, list[NDArray[np.float32]]] = {}
        self._parities: dict[str, Parity] = {}
        if plan.draft is not None:
            self._models["draft"] = self._read_draft(plan.draft)
        if plan.lenses is not None:
            self._lenses = self._read_lenses(plan.lenses)

    def _read_draft(self, file: Trained) -> Model:
        with _step(f"read {file.path.name}", self._progress) as say:
            sha256 = self._plan.source.sha256
            draft = draft_file.load(file.path, self._models["target"], target_sha256=sha256)
            say(
                f"{draft.geometry.layers} layers, {draft.tokens_per_pass} tokens in a pass, "
                f"{draft.logits} in its head"
            )
            return draft

    def _read_lenses(self, file: Trained) -> dict[int, NDArray[Any]]:
        with _step(f"read {file.path.name}", self._progress) as say:
            geometry, sha256 = self._models["target"].geometry, self._plan.source.sha256
            lenses = lens_file.load(file.path, geometry, target_sha256=sha256)
            say(f"after {', '.join(map(str, lenses))} layers")
            return lenses

    def run(self) -> None:
        """Everything, the manifest last."""
        with _step("rebuild the tokenizer", self._progress) as say:
            settings = self._plan.generation
            tokenizer.write(self._read.metadata, self._work.bundle, generation=settings)
            say(f"{self._read.model.geometry.vocabulary} tokens")
        folders = self._folders
        roles: dict[RoleName, Role] = {}
        for name in get_args(RoleName):
            graphs = {key: self._measured(name, key) for key in self._plan.keys(name)}
            roles[name] = self._role(name, graphs)
        with _step("put the bundle together", self._progress) as say:
            size = assemble(self._plan, roles, folders, self._arrays(roles), self._work.bundle)
            say(_megabytes(size))

    def _role(self, name: RoleName, graphs: dict[str, Graph]) -> Role:
        model = self._models[name]
        lenses = self._lenses if name == "target" else {}
        return Role(
            model.geometry,
            graphs,
            tokenizer.end_tokens(self._read.metadata),
            tokens_per_pass=model.tokens_per_pass,
            early_exit_layer=self._plan.early_exit_layer if name == "target" else None,
            head_tokens=f"{name}/head-tokens.npy" if model.distilled else None,
            lenses={str(layer): f"{name}/lens-{layer}.npy" for layer in lenses},
        )

    def _arrays(self, roles: Mapping[RoleName, Role]) -> dict[str, NDArray[Any]]:
        """What the roles' files beside their graphs hold."""
        files = roles["target"].lenses
        found = {files[str(layer)]: lens for layer, lens in self._lenses.items()}
        tokens, file = self._models["draft"].head_tokens, roles["draft"].head_tokens
        if tokens is not None and file is not None:
            found[file] = tokens.astype(np.int32)
        return found

    @property
    def _exit(self) -> Exit | None:
        """Where the target is left early: through its lens if there is one, to the draft's head."""
        layer = self._plan.early_exit_layer
        if layer is None:
            return None
        return Exit(layer, self._lenses.get(layer), self._models["draft"].head_tokens)

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

    def _fed(self, role: RoleName) -> list[list[int]]:
        """What a role's graphs are measured on: of each text all but its end, and mask tokens."""
        model = self._models[role]
        return [[*text[: -model.tokens_per_pass], *model.mask_tokens] for text in self._texts]

    def _reference(self, role: RoleName) -> list[NDArray[np.float32]]:
        """The logits by numpy of what is fed, computed once for each model."""
        role = role if self._plan.draft else "target"
        if role not in self._references:
            whose = "its" if role == "target" else "the draft's"
            with _step(f"compute {whose} logits in numpy", self._progress) as say:
                say(f"{len(self._texts)} texts")
                model = self._models[role]
                self._references[role] = reference.logits_of_texts(model, self._fed(role))
        return self._references[role]

    def _write_graphs(self, place: str, folder: Path, say: Say) -> None:
        """Fill a part's folder with the graphs of one place."""
        role, _, precision = place.partition("/")
        inner = folder / place
        inner.mkdir(parents=True)
        flavours = self._plan.folders[place]
        build_graphs(
            self._models[cast(RoleName, role)],
            cast(Precision, precision),
            inner,
            flavours=flavours[cast(RoleName, role)],
            many=role == "target",
            inexact=role == "draft",
            left=self._exit if role == "target" else None,
            draft=self._models["draft"] if role == "target" else None,
            draft_flavours=flavours.get("draft", ()),
            bounds=self._bounds(cast(RoleName, role), place),
            draft_bounds=self._bounds("draft", place) if self._plan.draft else NO_BOUNDS,
        )
        say(_megabytes(sum(path.stat().st_size for path in inner.iterdir())))

    def _bounds(self, role: RoleName, place: str) -> Mapping[str, Bounds]:
        """Of what the model's products see on real text, where graphs of `place` need to know."""
        if "npu" not in self._plan.folders[place].get(role, ()) or not place.endswith("/int8"):
            return NO_BOUNDS
        model = self._models[role]
        tokens = Tokenizer.from_str(
            (self._work.bundle / "tokenizer.json").read_text(encoding="utf-8")
        )
        prompts = load_prompts(*sorted(prompt_folder().glob("*.jsonl")))
        texts = [
            [*tokens.encode(prompt.turns[0]).ids[:CALIBRATED_TOKENS], *model.mask_tokens]
            for prompt in select_prompts(prompts, limit=CALIBRATED_PROMPTS)
        ]
        most = model.geometry.context
        return bounds_of(model, [text[-most:] for text in texts])

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
            self._reference(role)  # its own step is told first

        def measure(_folder: Path, say: Say) -> dict[str, Any]:
            session = self._open(role, graph)
            widths = compare_widths(session).largest_difference
            parity = compare(
                session, self._fed(role), self._reference(role), width_difference=widths
            )
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
        model, place = self._models[role], self._plan.place(role, key)
        file = partial(graph_file, flavour, distilled=model.distilled)
        many, portable = role == "target" and flavour == "fused", flavour in STATIC
        layer = self._plan.early_exit_layer if many else None
        rows = list(portable_rows(model)) if portable else []
        return Graph(
            f"{place}/{file(rows=min(rows)) if portable else file()}",
            flavour,
            precision,
            Parity(0.0, 0.0, 0, 0.0, 0.0),
            lanes={str(n): f"{place}/{file(lanes=n)}" for n in LANES if many},
            rows={str(n): f"{place}/{file(rows=n)}" for n in rows},
            context=portable_context(model) if portable else None,
            early_exit=None if layer is None else exit_files(layer, place),
        )

    def _open(self, role: RoleName, graph: Graph) -> GraphSession[Any]:
        place = self._plan.place(role, f"{graph.flavour}-{graph.precision}")
        model = self._models[role]
        return open_graph(
            self._folders[place].folder,
            graph,
            model.geometry,
            columns=model.logits,
            threads=len(providers.usable_cores()),
            context=min(MEASURED_CONTEXT, model.geometry.context),
            sharing="at once",
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
        flavours = self._plan.folders[place]
        plan = self._plan
        is_target = place.startswith("target/")
        left = (
            plan.early_exit_layer if is_target and "fused" in flavours.get("target", ()) else None
        )
        draft = plan.draft if "draft" in flavours or left is not None else None
        lenses = plan.lenses if left is not None else None
        trained = [file and file.source.sha256 for file in (draft, lenses)]
        return self._key("graphs", place, flavours, left, trained)

    def _key(self, *what: object) -> str:
        """A name for what these things and the model file decide, under this very program."""
        parts = [_program(), self._plan.source.sha256, *what]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@cache
def _program() -> str:
    """A hash of what decides how a model file becomes a bundle: this program and its packages."""
    digest = hashlib.sha256()
    for package in (export, runtime):
        for source in sorted(Path(*package.__path__).glob("*.py")):
            digest.update(source.read_bytes())
    for prompts in sorted(prompt_folder().glob("*.jsonl")):  # what levels are measured on
        digest.update(prompts.read_bytes())
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
