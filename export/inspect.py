"""What a bundle holds, as data and as lines of at most 80 columns."""

import dataclasses
import os
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.bundle_files import check_sha256
from runtime.errors import BundleError
from runtime.locate import cached_bundle, known_recipes, recipe_folder
from runtime.manifest import Graph, Manifest, Role

COLUMNS = 80
LABEL = 12


def named_folder(name: str, cache_dir: Path) -> Path:
    """The bundle's folder that is meant: one so called, or what the cache holds of a model.

    `name` is a path, or a recipe's name. Raises BundleError where that leads to no folder.
    """
    path = Path(name)
    if name and path.is_dir():
        return path
    cached = cached_bundle(name, cache_dir=cache_dir)
    if cached is not None and cached.is_dir():
        return cached
    if name in (recipes := known_recipes(recipe_folder())):
        raise BundleError(
            f"{name} is a recipe, and its bundle is not built yet (it would be in {cached}). "
            f"Build it: python -m export recipe {name} --out BUNDLE"
        )
    if cached is not None:
        raise BundleError(
            f"{name} is a GGUF file, not a bundle. "
            f"Build one: python -m export gguf {shlex.quote(name)} --out BUNDLE"
        )
    if path.is_file():
        raise BundleError(f"{name} is a file; a bundle is a folder.")
    if os.path.lexists(path):
        raise BundleError(f"{name} cannot be read.")
    known = ", ".join(recipes) or "none"
    raise BundleError(f"There is no folder {name}, and no recipe of that name. Recipes: {known}.")


def describe(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """The bundle's manifest with sums and, when `verify`, whether each file has its sha256.

    `sha256_matches` of a file is None when it was not asked. Raises BundleError for a folder that
    is no bundle, and for one with files that are missing or of another size.
    """
    manifest = Manifest.load(folder)
    roles = {"target": manifest.target, "draft": manifest.draft}
    sources = {
        "source": manifest.source,
        "draft_source": manifest.draft_source,
        "lenses_source": manifest.lenses_source,
    }
    return {
        "folder": str(folder),
        "name": manifest.name,
        "format_version": manifest.format_version,
        **{name: source and dataclasses.asdict(source) for name, source in sources.items()},
        "bytes": sum(entry.bytes for entry in manifest.files.values()),
        "roles": {name: _role(role) for name, role in roles.items() if role is not None},
        "files": {
            name: {
                "bytes": entry.bytes,
                "sha256": entry.sha256,
                "sha256_matches": _matches(folder, name, entry.sha256) if verify else None,
            }
            for name, entry in manifest.files.items()
        },
    }


def damaged(found: dict[str, Any]) -> list[str]:
    """The files of a description that do not have their sha256."""
    return [name for name, file in found["files"].items() if file["sha256_matches"] is False]


def lines(found: dict[str, Any]) -> Iterator[str]:
    """A description as text."""
    yield from _entry("bundle", found["name"])
    yield from _entry("folder", found["folder"])
    yield from _entry("source", f"{found['source']['file']} ({found['source']['kind']})")
    yield from _entry("licence", found["source"]["licence"])
    for name in ("draft", "lenses"):
        if (source := found[f"{name}_source"]) is not None:
            yield from _entry(name, f"{source['file']}, licence {source['licence']}")
    yield from _entry("size", f"{_size(found['bytes'])} in {len(found['files'])} files")
    yield from _entry("format", f"version {found['format_version']}")
    for name, role in found["roles"].items():
        yield ""
        yield from _role_lines(name, role)
    yield ""
    yield "files"
    for name, file in found["files"].items():
        states = {None: "", True: "  right", False: "  DAMAGED"}
        yield f"  {_size(file['bytes']):>11}  {name}{states[file['sha256_matches']]}"


def _role(role: Role) -> dict[str, Any]:
    return {
        "geometry": dataclasses.asdict(role.geometry),
        "weights": role.geometry.weights,
        "end_tokens": role.end_tokens,
        "tokens_per_pass": role.tokens_per_pass,
        "head_tokens": role.head_tokens,
        "early_exit_layer": role.early_exit_layer,
        "lenses": role.lenses,
        "graphs": {key: _graph(graph) for key, graph in role.graphs.items()},
    }


def _graph(graph: Graph) -> dict[str, Any]:
    return {
        "flavour": graph.flavour,
        "precision": graph.precision,
        "file": graph.file,
        "lanes": [int(lanes) for lanes in graph.lanes],
        "rows": [int(rows) for rows in graph.rows],
        "context": graph.context,
        "parity": dataclasses.asdict(graph.parity),
    }


def _role_lines(name: str, role: dict[str, Any]) -> Iterator[str]:
    sizes = role["geometry"]
    yield name
    yield from _entry(
        "  model",
        f"{sizes['layers']} layers, hidden {sizes['hidden']}, intermediate "
        f"{sizes['intermediate']}, {sizes['heads']} heads on {sizes['kv_heads']} of "
        f"{sizes['head_size']}",
    )
    yield from _entry("  text", f"{sizes['vocabulary']} tokens, context {sizes['context']}")
    yield from _entry("  weights", f"{role['weights'] / 1e6:.1f} M, a head apart not counted")
    yield from _entry("  ends", " ".join(map(str, role["end_tokens"])))
    if role["tokens_per_pass"] > 1:
        yield from _entry("  a pass", f"up to {role['tokens_per_pass']} tokens")
    if role["head_tokens"] is not None:
        yield from _entry("  head", f"the tokens of {role['head_tokens']}")
    if role["early_exit_layer"] is not None:
        yield from _entry("  exit", f"after layer {role['early_exit_layer']}")
    if role["lenses"]:
        yield from _entry("  lenses", f"after {' or '.join(role['lenses'])} layers")
    for key, graph in role["graphs"].items():
        yield f"  {key}"
        yield from _entry("    file", graph["file"])
        yield from _entry("    shapes", _shapes(graph))
        parity = graph["parity"]
        yield from _entry(
            "    exactness",
            f"{parity['equal_greedy_share']:.2%} of {parity['tokens_compared']} greedy tokens as "
            f"in float32, logits differ by up to {parity['largest_logit_difference']:.3g}",
        )
        for label, difference in (
            ("    widths", parity["width_difference"]),
            ("    trees", parity["tree_difference"]),
        ):
            said = f"logits differ by up to {difference:.3g}" if difference else "bit-equal"
            yield from _entry(label, said)


def _shapes(graph: dict[str, Any]) -> str:
    if graph["rows"]:
        rows = " or ".join(map(str, graph["rows"]))
        return f"calls of {rows} rows, {graph['context']} slots"
    lanes = "".join(f", or {lanes} texts at once" for lanes in graph["lanes"])
    return f"any number of rows{lanes}"


def _entry(label: str, value: str) -> list[str]:
    """A labelled value, cut into lines."""
    start = f"{label:<{LABEL + 2}}"
    return textwrap.wrap(
        value,
        COLUMNS,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
    ) or [start.rstrip()]


def _matches(folder: Path, name: str, sha256: str) -> bool:
    try:
        check_sha256(folder, name, sha256)
    except BundleError:
        return False
    return True


def _size(size: int) -> str:
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
