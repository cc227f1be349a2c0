"""The bundle's manifest: what a bundle holds, where it came from, and how well it was measured."""

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from runtime.bundle_files import check_file, check_names, check_sha256
from runtime.errors import BundleError
from runtime.strict_json import read_dataclass, read_object

FORMAT_VERSION = 4
FILE_NAME = "manifest.json"
INTEGER_PROBE_FILE = "integer-probe.onnx"  # beside the graphs that multiply integers
LITTER = (".DS_Store", "Thumbs.db", "desktop.ini")  # what file managers leave where they looked

RoleName = Literal["target", "draft"]
Flavour = Literal["fused", "gpu", "portable", "npu"]
Precision = Literal["fp32", "fp16", "int8", "int4"]
STATIC: tuple[Flavour, ...] = ("portable", "npu")  # a file for each number of rows, and slots

# The most that a manifest may say: several times what any model has, and few enough that no
# product of them leaves 64 bits. Whether it fits this machine is asked before loading.
MOST = {
    "layers": 1 << 10,
    "hidden": 1 << 17,
    "intermediate": 1 << 20,
    "heads": 1 << 11,
    "kv_heads": 1 << 11,
    "head_size": 1 << 12,
    "vocabulary": 1 << 22,
    "context": 1 << 24,
    "rope_base": 1e12,
    "norm_epsilon": 1.0,
}
MOST_WEIGHTS = 1 << 41
MOST_CACHED = 1 << 40  # keys and values of one sequence
MOST_LANES_OR_ROWS = 1 << 12
MOST_TOKENS_PER_PASS = 1 << 10
MOST_FILE_BYTES = 1 << 46


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one model; `context` and `vocabulary` count tokens.

    Raises BundleError for one that is not positive or beyond MOST, for heads that cannot share
    kv_heads, and for more weights or cached numbers than MOST_WEIGHTS and MOST_CACHED.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    rope_base: float
    norm_epsilon: float

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, most = getattr(self, item.name), MOST[item.name]
            if not 0 < value <= most:
                raise BundleError(
                    f"The geometry's {item.name} is {value!r:.80}; it must be positive and at most "
                    f"{most}."
                )
        if self.heads % self.kv_heads:
            raise BundleError(
                f"The geometry's {self.heads} heads cannot share {self.kv_heads} kv_heads evenly."
            )
        if self.head_size % 2:
            raise BundleError(f"The geometry's head_size is {self.head_size}; it must be even.")
        for what, count, most in (
            ("weights", self.weights, MOST_WEIGHTS),
            ("keys and values", self.cached_per_token * self.context, MOST_CACHED),
        ):
            if count > most:
                raise BundleError(f"The geometry makes {count} {what}; the most is {most}.")

    @property
    def weights(self) -> int:
        """How many numbers the matrices hold, one table being both embedding and head."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocabulary * self.hidden

    @property
    def cached_per_token(self) -> int:
        """How many numbers the keys and values of one token are."""
        return 2 * self.layers * self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class Parity:
    """How one graph compares with a float32 numpy forward pass over the same tokens.

    Two more are the graph's own, on the machine that built it, 0 where logits are bit-equal:
    `width_difference`, the largest between calls of different widths, and `tree_difference`, the
    largest between a token that is a node off the trunk of a tree and the same one in a chain.
    """

    largest_logit_difference: float
    equal_greedy_share: float
    tokens_compared: int
    width_difference: float
    tree_difference: float


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """A fused graph cut in two at its role's `early_exit_layer`, and the head that reads between.

    Each is a file relative to the bundle, beside that of the whole graph.
    """

    prefix: str
    suffix: str
    head: str


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of a role; `file` is relative to the bundle, its external data lies beside it.

    `lanes` names further graphs of the same weights that decode several sequences together, keyed
    by how many. A portable or npu graph has static shapes: `rows` names one file for each number of
    rows that a call may have, the narrowest is `file` too, and `context` counts the slots of its
    cache.
    A target's fused graph may be there a second time, with an `early_exit`.
    """

    file: str
    flavour: Flavour
    precision: Precision
    parity: Parity
    lanes: dict[str, str] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    context: int | None = None
    early_exit: EarlyExit | None = None

    @property
    def every_file(self) -> tuple[str, ...]:
        """All files of graphs that it names; the weights lie beside them."""
        parts = dataclasses.astuple(self.early_exit) if self.early_exit else ()
        return (self.file, *self.lanes.values(), *self.rows.values(), *parts)


@dataclass(frozen=True, slots=True)
class Role:
    """The target or the draft; `graphs` is keyed by flavour and precision, as in "fused-int8".

    A draft's `tokens_per_pass` k above 1 says that it knows k - 1 mask tokens, with the ids that
    follow the vocabulary; `head_tokens` is the file of the tokens that its logits are about, int32
    [n] ascending, where these are not all. A target's `lenses` are tuned lenses for leaving early,
    keyed by the layer after which they apply, each a file of float16 [hidden, hidden]: y = x @
    lens.T, then the model's norm and head.
    """

    geometry: Geometry
    graphs: dict[str, Graph]
    end_tokens: list[int]
    tokens_per_pass: int = 1
    early_exit_layer: int | None = None
    head_tokens: str | None = None
    lenses: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """A file that a bundle was built from; `licence` is an SPDX name or "unknown"."""

    kind: Literal["python-wheel", "gguf", "safetensors"]
    file: str
    sha256: str
    licence: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the bundle as it was written."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A bundle's table of contents; `files` is keyed by path relative to `folder`, with slashes.

    `source` is the file of the target, and of a draft that has none of its own; `draft_source` and
    `lenses_source` are those of what was trained for the target.
    """

    name: str
    source: Source
    files: dict[str, FileEntry]
    target: Role
    draft: Role | None = None
    draft_source: Source | None = None
    lenses_source: Source | None = None
    format_version: int = FORMAT_VERSION
    folder: Path = field(default=Path(), compare=False)

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read and check a bundle's manifest; sizes are compared, hashes are not (see `verify`).

        Raises BundleError for unknown, missing or repeated keys, another format version, values of
        the wrong type or beyond the bounds above, names that leave the folder, and files that are
        missing, of another size, or Git LFS pointers.
        """
        data = read_object(folder / FILE_NAME)
        version = data.get("format_version")
        if type(version) is not int or version != FORMAT_VERSION:
            raise BundleError(
                f"{folder / FILE_NAME} has format version {version!r:.80}; this program reads "
                f"version {FORMAT_VERSION}: build the bundle again."
            )
        manifest = read_dataclass(cls, data, str(folder / FILE_NAME))
        manifest = dataclasses.replace(manifest, folder=folder)
        manifest._check()
        return manifest

    def save(self, folder: Path) -> None:
        """Write manifest.json into `folder`."""
        data = dataclasses.asdict(dataclasses.replace(self, folder=Path()))
        del data["folder"]
        ordered = {"format_version": data.pop("format_version"), **data}
        text = json.dumps(ordered, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        (folder / FILE_NAME).write_text(text, encoding="utf-8", newline="\n")

    def role(self, name: RoleName) -> Role:
        """The target or the draft; BundleError when the bundle has no draft."""
        role = self.target if name == "target" else self.draft
        if role is None:
            raise BundleError(f"The bundle {self.folder} has no draft model.")
        return role

    def graph_path(self, role: RoleName, precision: str, *, flavour: Flavour = "fused") -> Path:
        """The path of a role's graph; BundleError when it is absent."""
        return self.folder / self.graph(role, precision, flavour=flavour).file

    def graph(self, role: RoleName, precision: str, *, flavour: Flavour = "fused") -> Graph:
        """A role's graph; BundleError, naming those there are, when it is absent."""
        graphs = self.role(role).graphs
        key = f"{flavour}-{precision}"
        if key not in graphs:
            raise BundleError(
                f"The bundle {self.folder} has no {key} graph for the {role}; "
                f"it has {', '.join(sorted(graphs)) or 'none'}."
            )
        return graphs[key]

    def verify(self, progress: Callable[[str], None] | None = None) -> None:
        """Compare every file's sha256 with the manifest; BundleError names the first to differ."""
        for name, entry in self.files.items():
            check_sha256(self.folder, name, entry.sha256, progress)

    def _check(self) -> None:
        where = str(self.folder / FILE_NAME)
        check_names(self.files, where)
        for name, entry in self.files.items():
            if not 0 <= entry.bytes <= MOST_FILE_BYTES:
                raise BundleError(f"{where}: {entry.bytes} is no size for {name}.")
            check_file(self.folder, name, entry.bytes)
        sources = [self.source, self.draft_source, self.lenses_source]
        hashes = [source.sha256 for source in sources if source is not None]
        for sha256 in (*hashes, *(entry.sha256 for entry in self.files.values())):
            if not re.fullmatch("[0-9a-f]{64}", sha256):
                raise BundleError(f"{where}: {sha256!r:.80} is no sha256.")
        self._check_role("target", self.target)
        if self.draft is not None:
            self._check_role("draft", self.draft)
        self._check_complete()

    def _check_complete(self) -> None:
        """What is read beside the graphs must be listed too: nobody would see it change."""
        roles = [role for role in (self.target, self.draft) if role is not None]
        graphs = [graph for role in roles for graph in role.graphs.values()]
        folders = {PurePosixPath(file).parent for graph in graphs for file in graph.every_file}
        needed = {"tokenizer.json", "tokenizer_config.json"} if graphs else set()
        needed |= {
            str(PurePosixPath(graph.file).with_name(INTEGER_PROBE_FILE))
            for graph in graphs
            if graph.precision == "int8"
        }
        if missing := sorted(needed - self.files.keys()):
            raise BundleError(
                f"{self.folder / FILE_NAME} does not list {missing[0]}; build the bundle again."
            )
        for path in (path for folder in folders for path in (self.folder / folder).rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            plain = path.is_dir() and not path.is_symlink()
            plain = plain or path.name in LITTER or path.name.startswith("._")
            if not plain and name not in self.files and name != FILE_NAME:
                raise BundleError(
                    f"{path} is not among the files of the bundle's manifest: remove it."
                )

    def _check_role(self, name: RoleName, role: Role) -> None:
        where = f"{self.folder / FILE_NAME}: {name}"
        if name == "draft" and not role.graphs:
            raise BundleError(f"{where} has no graphs.")
        for key, graph in role.graphs.items():
            self._check_graph(f"{where}: the graph {key!r}", key, graph)
        wrong = [token for token in role.end_tokens if not 0 <= token < role.geometry.vocabulary]
        if wrong:
            raise BundleError(f"{where}: the end token {wrong[0]} is outside the vocabulary.")
        if not 1 <= role.tokens_per_pass <= MOST_TOKENS_PER_PASS:
            raise BundleError(
                f"{where}: tokens_per_pass is {role.tokens_per_pass}, not 1 to "
                f"{MOST_TOKENS_PER_PASS}."
            )
        layer = role.early_exit_layer
        if layer is not None and not 0 < layer < role.geometry.layers:
            raise BundleError(f"{where}: early_exit_layer {layer} is not between two layers.")
        for key, graph in role.graphs.items():
            may_exit = name == "target" and layer is not None and graph.flavour == "fused"
            if graph.early_exit and not may_exit:
                raise BundleError(
                    f"{where}: the graph {key!r} has an early exit, which only a target's fused "
                    "graphs may have, and only with an early_exit_layer."
                )
        self._check_beside(where, name, role)

    def _check_beside(self, where: str, name: RoleName, role: Role) -> None:
        """The files of numbers that a role may have beside its graphs."""
        for what, files, owner in (
            ("head_tokens", [] if role.head_tokens is None else [role.head_tokens], "draft"),
            ("lenses", role.lenses.values(), "target"),
        ):
            if files and name != owner:
                raise BundleError(f"{where} has {what}, which only the {owner} may have.")
            for file in files:
                if file not in self.files:
                    raise BundleError(
                        f"{where}: {what} names {file!r:.80}, which is not among the bundle's "
                        "files."
                    )
        for layer in role.lenses:
            known = re.fullmatch("[1-9][0-9]{0,5}", layer)
            if not known or int(layer) >= role.geometry.layers:
                raise BundleError(f"{where}: the lens {layer!r:.80} is not between two layers.")

    def _check_graph(self, where: str, key: str, graph: Graph) -> None:
        if key != f"{graph.flavour}-{graph.precision}":
            raise BundleError(f"{where} is {graph.flavour}-{graph.precision}.")
        for file in graph.every_file:
            if file not in self.files:
                raise BundleError(
                    f"{where} names {file!r:.80}, which is not among the bundle's files."
                )
        for what, numbers, least in (("lanes", graph.lanes, 2), ("rows", graph.rows, 1)):
            for number in numbers:
                known = re.fullmatch("[1-9][0-9]{0,5}", number)
                if not known or not least <= int(number) <= MOST_LANES_OR_ROWS:
                    raise BundleError(
                        f"{where}: {number!r:.80} is no number of {what} from {least} to "
                        f"{MOST_LANES_OR_ROWS}."
                    )
        static = graph.flavour in STATIC
        if (bool(graph.rows), graph.context is not None) != (static, static):
            raise BundleError(
                f"{where} must have rows and context if, and only if, its shapes are static."
            )
        if graph.context is not None and not 0 < graph.context <= MOST["context"]:
            raise BundleError(f"{where}: {graph.context} is no number of slots.")
        if static and graph.file != graph.rows[min(graph.rows, key=int)]:
            raise BundleError(f"{where}: its file is not the one of the fewest rows.")
        parity = graph.parity
        if not (
            parity.largest_logit_difference >= 0
            and parity.width_difference >= 0
            and parity.tree_difference >= 0
            and 0 <= parity.equal_greedy_share <= 1
            and 0 <= parity.tokens_compared <= MOST_CACHED
        ):
            raise BundleError(f"{where} has a parity that nothing can have measured: {parity}.")
