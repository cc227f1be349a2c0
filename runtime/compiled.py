"""Graphs as a provider compiled them for one device, kept from run to run.

Each lies in a folder named by a hash of what it is made of and for. Beside the provider's files
stands `about.json`: its build, and each file's size and sha256. A binary that was cut short may
end the process that loads it, so what does not agree is made anew.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.bundle_files import check_names, file_sha256
from runtime.errors import BundleError
from runtime.heartbeat import heartbeat
from runtime.integrity import sealed_sha256
from runtime.manifest import FileEntry
from runtime.strict_json import read_dataclass, read_object

FORMAT_VERSION = 1
GRAPH_FILE = "graph.onnx"
ABOUT_FILE = "about.json"
WEIGHTS_FILE = "weights.data"  # what graphs of one folder share
HASHED = ".hashed"  # the folder of what was hashed before, by integrity.sealed_sha256
WORK = ".compiling-"
ROOM = 4  # times the weights, which may be in bytes: what must be free on the disk
ABANDONED_S = 24 * 3600.0
ALIVE_S = 10.0

Compile = Callable[[Path, Path], None]


@dataclass(frozen=True, slots=True)
class Target:
    """What a graph is compiled for: where it will run, by what build of which program.

    options: all that the provider is told, such as the chip. hardware: the device, where none of
    the options names it. whole: a GRAPH_FILE is to be made, to load in place of the graph.
    """

    provider: str
    build: str
    options: Mapping[str, str]
    hardware: str = ""
    whole: bool = True


@dataclass(frozen=True, slots=True)
class About:
    """What stands beside a compiled graph; `made_of` is the hash of the graph and its weights.

    graph, hardware: for a reader.
    """

    graph: str
    made_of: str
    provider: str
    build: str
    options: dict[str, str]
    hardware: str
    files: dict[str, FileEntry]
    format_version: int = FORMAT_VERSION


def compiled_graph(
    graph: Path, target: Target, *, folder: Path, compile_graph: Compile, say: Callable[[str], None]
) -> Path:
    """The folder of what was compiled of `graph`, below `folder`; made first where it is not there.

    compile_graph: writes the compiled form of its first argument into the folder that is its
    second. say: told before something is made and while it is, and why it is made again. Raises
    what compile_graph does, BundleError where nothing was made, and OSError for a folder that
    cannot be written or has no room.
    """
    made_of = _made_of(graph, folder / HASHED)
    place = folder / _name(graph, made_of, target)
    if place.exists():
        reason = _unusable(place, made_of, target)
        if reason is None:
            return place
        say(f"The compiled graph in {place} is of no use: {reason}")
    folder.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    _check_room(graph, folder)
    what = f"Compiling {graph.name} for {target.provider}"
    say(f"{what} once; this may take minutes.")
    with tempfile.TemporaryDirectory(prefix=WORK, dir=folder, ignore_cleanup_errors=True) as work:
        start, inner = time.monotonic(), Path(work) / "made"
        inner.mkdir()
        with heartbeat(what, say, every_s=ALIVE_S):
            compile_graph(graph, inner)
        if target.whole and not (inner / GRAPH_FILE).is_file():
            raise BundleError(f"{target.provider} compiled {graph} to nothing.")
        _describe(inner, graph, made_of, target)
        if place.exists() and _unusable(place, made_of, target) is not None:
            place.rename(Path(work) / "old")
        with contextlib.suppress(OSError):  # another process was first, with the same
            inner.rename(place)
    if (reason := _unusable(place, made_of, target)) is not None:
        raise BundleError(f"What was compiled could not be put in {place}: {reason}")
    say(f"Compiled {graph.name} in {time.monotonic() - start:.0f} s.")
    return place


def forget(place: Path) -> None:
    """Remove what `compiled_graph` gave; OSError where that cannot be."""
    with tempfile.TemporaryDirectory(
        prefix=WORK, dir=place.parent, ignore_cleanup_errors=True
    ) as work:
        place.rename(Path(work) / "old")


def _made_of(graph: Path, records: Path) -> str:
    """A hash of the graph and of the weights beside it."""
    digest = hashlib.sha256(sealed_sha256(graph, records=records).encode())
    if (weights := graph.with_name(WEIGHTS_FILE)).is_file():
        digest.update(sealed_sha256(weights, records=records).encode())
    return digest.hexdigest()


def _name(graph: Path, made_of: str, target: Target) -> str:
    """The folder's name: without the build, so that a new one takes the old one's place."""
    parts = [made_of, target.provider, sorted(target.options.items()), target.hardware]
    return f"{graph.stem}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def _check_room(graph: Path, folder: Path) -> None:
    weights = graph.with_name(WEIGHTS_FILE)
    needed = ROOM * (weights.stat().st_size if weights.is_file() else graph.stat().st_size)
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes left that were killed while they compiled."""
    for work in folder.glob(f"{WORK}*"):
        with contextlib.suppress(OSError):
            if work.stat().st_mtime < time.time() - ABANDONED_S:
                shutil.rmtree(work, ignore_errors=True)


def _describe(folder: Path, graph: Path, made_of: str, target: Target) -> None:
    files = {
        path.relative_to(folder).as_posix(): FileEntry(file_sha256(path), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    about = About(
        graph.name,
        made_of,
        target.provider,
        target.build,
        dict(target.options),
        target.hardware,
        files,
    )
    text = json.dumps(dataclasses.asdict(about), indent=2, ensure_ascii=False) + "\n"
    (folder / ABOUT_FILE).write_text(text, encoding="utf-8", newline="\n")


def _unusable(folder: Path, made_of: str, target: Target) -> str | None:
    """Why what lies there cannot be loaded, as a sentence; None when it can."""
    note = folder / ABOUT_FILE
    try:
        about = read_dataclass(About, read_object(note), str(note))
        check_names(about.files, str(note))
    except BundleError as error:
        return str(error)
    if about.format_version != FORMAT_VERSION or about.made_of != made_of:
        return "it was made of another graph, or by another version of this program."
    if about.build != target.build:
        return f"it was made by {target.provider} {about.build}, and this is {target.build}."
    if target.whole and GRAPH_FILE not in about.files:
        return f"it has no {GRAPH_FILE}."
    for name, entry in about.files.items():
        path = folder / name
        try:
            if not path.resolve().is_relative_to(folder.resolve()):
                return f"{path} is a link to a place outside."
            same = path.stat().st_size == entry.bytes
            same = same and sealed_sha256(path, records=folder.parent / HASHED) == entry.sha256
        except (OSError, RuntimeError) as error:
            return f"{path} cannot be read ({getattr(error, 'strerror', None) or error})."
        if not same:
            return f"{path} is damaged."
    return None
