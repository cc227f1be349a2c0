"""The bundle's manifest: what a bundle holds, where it came from, and how well it was measured."""

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal, TypeVar

from runtime.errors import BundleError

FORMAT_VERSION = 2
FILE_NAME = "manifest.json"

RoleName = Literal["target", "draft"]
Flavour = Literal["fused", "portable"]
Precision = Literal["fp32", "fp16", "int8", "int4"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one model; `context` and `vocabulary` count tokens. Raises BundleError."""

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
            value = getattr(self, item.name)
            if not (value > 0 and math.isfinite(value)):
                raise BundleError(f"The geometry's {item.name} is {value}; it must be positive.")
        if self.heads % self.kv_heads:
            raise BundleError(
                f"The geometry's {self.heads} heads cannot share {self.kv_heads} kv_heads evenly."
            )
        if self.head_size % 2:
            raise BundleError(f"The geometry's head_size is {self.head_size}; it must be even.")


@dataclass(frozen=True, slots=True)
class Parity:
    """How one graph compares with a float32 numpy forward pass over the same tokens.

    `width_difference` is the largest between its own logits for calls of different widths, on the
    machine that built it; 0 where they are bit-equal.
    """

    largest_logit_difference: float
    equal_greedy_share: float
    tokens_compared: int
    width_difference: float


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of a role; `file` is relative to the bundle, its external data lies beside it.

    `lanes` names further graphs of the same weights that decode several sequences together, keyed
    by how many. A portable graph has static shapes: `rows` names one file for each number of rows
    that a call may have, the narrowest is `file` too, and `context` counts the slots of its cache.
    """

    file: str
    flavour: Flavour
    precision: Precision
    parity: Parity
    lanes: dict[str, str] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """The target or the draft; `graphs` is keyed by flavour and precision, as in "fused-int8"."""

    geometry: Geometry
    graphs: dict[str, Graph]
    end_tokens: list[int]
    tokens_per_pass: int = 1
    early_exit_layer: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The file a bundle was built from; `licence` is an SPDX name or "unknown"."""

    kind: Literal["python-wheel", "gguf"]
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
    """A bundle's table of contents; `files` is keyed by path relative to `folder`, with slashes."""

    name: str
    source: Source
    files: dict[str, FileEntry]
    target: Role
    draft: Role | None = None
    format_version: int = FORMAT_VERSION
    folder: Path = field(default=Path(), compare=False)

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read and check a bundle's manifest; sizes are compared, hashes are not (see `verify`).

        Raises BundleError for unknown or missing keys, another format version, values of the
        wrong type, paths that leave the folder, and files that are missing or of another size.
        """
        data = _read_json(folder / FILE_NAME)
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise BundleError(
                f"{folder / FILE_NAME} has format version {version!r}; this program reads version "
                f"{FORMAT_VERSION}: build the bundle again."
            )
        manifest = dataclasses.replace(_read_dataclass(cls, data, FILE_NAME), folder=folder)
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

    def verify(self) -> None:
        """Compare every file's sha256 with the manifest; BundleError names the first to differ."""
        for name, entry in self.files.items():
            if file_sha256(self.folder / name) != entry.sha256:
                raise BundleError(
                    f"{self.folder / name} is damaged: its sha256 is not the one in the manifest; "
                    "build the bundle again."
                )

    def _check(self) -> None:
        for name, entry in self.files.items():
            path = _inside(self.folder, name)
            if not path.is_file():
                raise BundleError(f"{path} is missing; build the bundle again.")
            if path.stat().st_size != entry.bytes:
                raise BundleError(
                    f"{path} has {path.stat().st_size} bytes where the manifest says "
                    f"{entry.bytes}; build the bundle again."
                )
        self._check_role("target", self.target)
        if self.draft is not None:
            self._check_role("draft", self.draft)

    def _check_role(self, name: RoleName, role: Role) -> None:
        where = f"{self.folder / FILE_NAME}: {name}"
        if name == "draft" and not role.graphs:
            raise BundleError(f"{where} has no graphs.")
        for key, graph in role.graphs.items():
            self._check_graph(f"{where}: the graph {key!r}", key, graph)
        wrong = [token for token in role.end_tokens if not 0 <= token < role.geometry.vocabulary]
        if wrong:
            raise BundleError(f"{where}: the end token {wrong[0]} is outside the vocabulary.")
        if role.tokens_per_pass < 1:
            raise BundleError(f"{where}: tokens_per_pass is {role.tokens_per_pass}, not 1 or more.")
        layer = role.early_exit_layer
        if layer is not None and not 0 < layer < role.geometry.layers:
            raise BundleError(f"{where}: early_exit_layer {layer} is not between two layers.")

    def _check_graph(self, where: str, key: str, graph: Graph) -> None:
        if key != f"{graph.flavour}-{graph.precision}":
            raise BundleError(f"{where} is {graph.flavour}-{graph.precision}.")
        for file in (graph.file, *graph.lanes.values(), *graph.rows.values()):
            if file not in self.files:
                raise BundleError(f"{where} names {file!r}, which is not among the bundle's files.")
        for what, numbers, least in (("lanes", graph.lanes, 2), ("rows", graph.rows, 1)):
            for number in numbers:
                if not re.fullmatch(r"[1-9]\d{0,5}", number, re.ASCII) or int(number) < least:
                    raise BundleError(f"{where}: {number!r} is no number of {what}, {least} or up.")
        portable = graph.flavour == "portable"
        if (bool(graph.rows), graph.context is not None) != (portable, portable):
            raise BundleError(
                f"{where} must have rows and context if, and only if, it is portable."
            )
        if graph.context is not None and not 0 < graph.context <= 1 << 24:
            raise BundleError(f"{where}: {graph.context} is no number of slots.")


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in lower-case hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _inside(folder: Path, name: str) -> Path:
    """The path of a file named in the manifest; BundleError when it leaves the folder."""
    posix = PurePosixPath(name)
    plain = "\\" not in name and not posix.is_absolute() and not PureWindowsPath(name).drive
    path = folder / name
    if not (plain and ".." not in posix.parts and path.resolve().is_relative_to(folder.resolve())):
        raise BundleError(f"{folder / FILE_NAME} names {name!r}, which lies outside the bundle.")
    return path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise BundleError(f"{path.parent} is not a bundle: it has no {path.name}.") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(data, dict):
        raise BundleError(f"{path} does not hold an object.")
    return data


def _refuse_constant(text: str) -> float:
    raise ValueError(f"the number {text} is not allowed")


def _read(kind: Any, value: Any, where: str) -> Any:
    """Turn parsed JSON into `kind`, a dataclass or one of the types its fields use."""
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(typing.cast(type[Any], kind), value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal and value in arguments:
        return value
    if origin is types.UnionType:
        present = next(argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else _read(present, value, where)
    if origin is list and isinstance(value, list):
        return [_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _read(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    raise BundleError(f"{where} is {value!r} where the manifest needs {name}.")


def _read_dataclass(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, dict):
        raise BundleError(f"{where} is {value!r} where the manifest needs an object.")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(value) - set(hints))
    if unknown:
        raise BundleError(f"{where} has the unknown key {unknown[0]!r}.")
    required = {
        item.name
        for item in dataclasses.fields(typing.cast(Any, kind))
        if item.default is item.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - set(value))
    if missing:
        raise BundleError(f"{where} lacks the key {missing[0]!r}.")
    return kind(**{key: _read(hints[key], item, f"{where}.{key}") for key, item in value.items()})
