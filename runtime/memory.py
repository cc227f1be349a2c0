"""Will it fit? What a session will take, and what this machine has, both in bytes.

The shares below were fitted to the peaks that docs/bundle.md lists; they are a little above them.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from runtime.manifest import FILE_NAME, Geometry, Graph, Manifest, Role
from runtime.providers import PROVIDERS, Place, as_place

SESSION_BYTES = 25_000_000  # a loaded graph and what it works in, its weights apart
LOADED_SHARE = 1.1  # of the weights, while a graph is loaded on the CPU
TOKENIZER_SHARE = 32  # of tokenizer.json, parsed
# Another provider compiles every file of a portable graph, int8 to float32: times the weights.
COMPILED_SHARES = {"fp32": 2.8, "fp16": 5.6, "int8": 14.0, "int4": 28.0}
REAL_BYTES = {"fp16": 2}  # of a cached number; 4 in every other precision
ROWS = 128  # of a prompt in one call


def text_bytes(manifest: Manifest) -> int:
    """What a bundle's tokenizer takes."""
    entry = manifest.files.get("tokenizer.json")
    return TOKENIZER_SHARE * entry.bytes if entry else 0


def session_bytes(
    manifest: Manifest,
    graph: Graph,
    role: Role,
    *,
    context: int,
    provider: str | Place,
    leaves_early: bool = False,
) -> int:
    """What a session on a role's `graph` takes at most, its cache of `context` tokens filled.

    leaves_early: in the two parts of its early exit, which share weights and cache, with the head.
    """
    geometry = role.geometry
    weights, head = _weights_bytes(manifest, graph, role)
    files = max(1, len(graph.rows))
    compiled = PROVIDERS[as_place(provider).provider].compiled is not None
    share = COMPILED_SHARES[graph.precision] if compiled else LOADED_SHARE
    widest = ROWS * (8 * geometry.hidden + 4 * geometry.intermediate) * 4
    exit_ = widest + 2 * SESSION_BYTES + _exit_bytes(manifest, graph) if leaves_early else 0
    return (
        int(files * (share * weights + head + SESSION_BYTES))
        + widest
        + exit_
        + cache_bytes(graph, geometry, context)
    )


def cache_bytes(graph: Graph, geometry: Geometry, context: int) -> int:
    """What the keys and values of `context` tokens take; of every slot in a portable graph."""
    tokens = graph.context or context + 1
    return tokens * geometry.cached_per_token * REAL_BYTES.get(graph.precision, 4)


def shortage(needed: int, available: int | None) -> str | None:
    """What to say when memory is short; None when it is not, or when nobody knows."""
    if available is None or needed <= available:
        return None
    return (
        f"about {_gigabytes(needed)} of memory are needed and {_gigabytes(available)} are available"
    )


def available_bytes(root: Path = Path("/")) -> int | None:
    """How much memory this process may still take; None where the system does not say.

    On Linux the least of what the kernel thinks available and what its control groups, read below
    `root`, leave. On macOS, which does not say what is free, all that the machine has.
    """
    if sys.platform == "win32":
        return _windows_bytes()
    if sys.platform == "darwin":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    known = [free for free in (_free_bytes(root), *_group_bytes(root)) if free is not None]
    return max(0, min(known)) if known else None


def _weights_bytes(manifest: Manifest, graph: Graph, role: Role) -> tuple[int, int]:
    """The weights beside a role's graph and the graph itself; its copy of a head's rows.

    Of a file that two models share, the part of this one: their tables of tokens are one. A head
    about some tokens takes their rows of the table when the graph is loaded.
    """
    rows = manifest.files[role.head_tokens].bytes // 4 if role.head_tokens else 0
    each, copied = role.geometry.weights, rows * role.geometry.hidden
    stored, numbers = _stored(manifest, graph, role)
    return stored * each // numbers, stored * copied // numbers


def _exit_bytes(manifest: Manifest, graph: Graph) -> int:
    """The head of the target's early exit: a copy of the rows it is about, and a tuned lens.

    It is about the tokens that a draft's head is about.
    """
    geometry, draft = manifest.target.geometry, manifest.draft
    tokens = draft.head_tokens if draft else None
    rows = manifest.files[tokens].bytes // 4 if tokens else geometry.vocabulary
    stored, numbers = _stored(manifest, graph, manifest.target)
    lens = geometry.hidden**2 * REAL_BYTES.get(graph.precision, 4)
    return stored * rows * geometry.hidden // numbers + lens


def _stored(manifest: Manifest, graph: Graph, role: Role) -> tuple[int, int]:
    """The weights beside a graph and the graph itself, in bytes and in numbers.

    Of each model whose graphs lie there, `role`'s and others: their table of tokens counts once.
    """
    geometry = role.geometry
    folder = PurePosixPath(graph.file).parent
    stored = sum(
        entry.bytes
        for name, entry in manifest.files.items()
        if name == graph.file
        or (PurePosixPath(name).parent == folder and not name.endswith((".onnx", FILE_NAME)))
    )
    sharing = {geometry} | {
        role.geometry
        for role in (manifest.target, manifest.draft)
        if role is not None
        and any(PurePosixPath(each.file).parent == folder for each in role.graphs.values())
    }
    layers = sum(each.weights - each.vocabulary * each.hidden for each in sharing)
    return stored, geometry.vocabulary * geometry.hidden + layers


def _free_bytes(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return _whole(value.removesuffix("kB"), 1024)
    return None


def _group_bytes(root: Path) -> Iterator[int | None]:
    """What each control group of memory that this process is in, and those above it, leave."""
    for line in _lines(root / "proc/self/cgroup"):
        number, kinds, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not kinds:
            folder, names = (
                root / "sys/fs/cgroup",
                ("memory.max", "memory.current", "inactive_file"),
            )
        elif "memory" in kinds.split(","):
            folder = root / "sys/fs/cgroup/memory"
            names = (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        # Within a container its own group may be the root of what is mounted.
        for each in dict.fromkeys((inner, *inner.parents, PurePosixPath())):
            yield _left(folder / each, *names)


def _left(folder: Path, limit: str, used: str, reclaimable: str) -> int | None:
    """What one control group leaves; files that the kernel merely caches can be given back."""
    most, now = (_whole("".join(_lines(folder / name))) for name in (limit, used))
    if most is None or now is None:
        return None
    for line in _lines(folder / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == reclaimable:
            now -= _whole(value) or 0
    return most - now


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []


def _whole(text: str, unit: int = 1) -> int | None:
    """The number in a system's file, in bytes; "max" and anything else is none."""
    text = text.strip()
    return int(text) * unit if text.isascii() and text.isdecimal() else None


def _windows_bytes() -> int | None:
    """The physical memory that is free, by GlobalMemoryStatusEx."""

    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((f"size_{place}", ctypes.c_ulonglong) for place in range(7)),
        )

    status = Status(length=ctypes.sizeof(Status))
    library = getattr(ctypes, "windll", None)
    if library is None or not library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.size_1)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
