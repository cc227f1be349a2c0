"""Locating bundles whose build a fake stands for."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime.bundle_files import file_sha256
from runtime.locate import USUAL_GRAPHS, locate_bundle
from runtime.manifest import FileEntry, Geometry, Manifest, Role, RoleName, Source

RECIPE = "tiny-1m"


def write_bundle(folder: Path) -> None:
    """A bundle that Manifest.load accepts, renamed into place like the export's."""
    work = folder.parent / f"{folder.name}.{os.getpid()}"
    work.mkdir(parents=True)
    (work / "tokenizer.json").write_bytes(b"{}")
    geometry = Geometry(
        layers=1,
        hidden=2,
        intermediate=2,
        heads=1,
        kv_heads=1,
        head_size=2,
        vocabulary=4,
        context=8,
        rope_base=1e4,
        norm_epsilon=1e-5,
    )
    Manifest(
        name="tiny",
        source=Source(kind="gguf", file="tiny.gguf", sha256="0" * 64, licence="unknown"),
        files={"tokenizer.json": FileEntry(file_sha256(work / "tokenizer.json"), 2)},
        target=Role(geometry=geometry, graphs={}, end_tokens=[0]),
    ).save(work)
    try:
        work.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


class Builder:
    """Stands for the export's child process: records its arguments, then builds or fails."""

    def __init__(self, *, code: int = 0, builds: bool = True) -> None:
        self.code = code
        self.builds = builds
        self.calls: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> int:
        self.calls.append(list(arguments))
        if self.builds:
            write_bundle(Path(arguments[arguments.index("--out") + 1]))
        return self.code


def locate(
    model: str | Path,
    cache: Path,
    build: Builder,
    *,
    offline: bool = False,
    graphs: Mapping[RoleName, str] = USUAL_GRAPHS,
) -> tuple[Path, list[str]]:
    said: list[str] = []
    folder = locate_bundle(
        model,
        cache_dir=cache,
        offline=offline,
        progress=said.append,
        recipes=write_recipe(cache.parent / "recipes"),
        build=build,
        graphs=graphs,
    )
    return folder, said


def write_recipe(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    graphs = ["target/fused-int8", "target/portable-fp32", "draft/portable-fp32"]
    (folder / f"{RECIPE}.json").write_text(json.dumps({"source": {}, "graphs": graphs}))
    return folder


def write_gguf(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF\x03\0\0\0")
    return path
