"""A bundle's graphs compiled for the NPU of a chip that is not here."""

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from export.chip_flags import ROLES
from export.inspect import named_folder
from runtime.errors import BuildError, BundleError, ProviderError, UsageError
from runtime.flavours import graph_files, suited
from runtime.locate import cached_bundles, default_cache_dir
from runtime.manifest import Graph, Manifest, RoleName
from runtime.providers import FALLBACK, PROVIDERS, Compiled, Option, Place, keep, resolve
from runtime.wanted import Wanted, best_first, best_graph, build_command

MACHINES = ("x86_64", "amd64")


def run(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Compile what the command line asks for.

    Raises UsageError for a chip that is not known and a graph that does not run there, BundleError
    for what is no bundle or lacks the graph, ProviderError for a provider that is not installed,
    BuildError where it refuses the graph and on a machine that cannot compile for another.
    """
    if platform.machine().lower() not in MACHINES:
        raise BuildError(
            f"This machine ({platform.machine()}) cannot compile for another: do it on x86-64. On "
            "the device itself the first start compiles."
        )
    cache = default_cache_dir(os.environ, sys.platform)
    key, own, chip_option = _for_chips()
    chips = dict.fromkeys(_number(chip_option, chip) for chip in options.chips)
    if chip_option.key in (options.options or {}):
        raise UsageError(f"{chip_option.key} is what --chip says: leave it out of the options.")
    folder = _writable(options.out or cache / "compiled")
    places = {
        chip: resolve(
            "draft",
            device=own.kinds[0],
            provider=key,
            options={**(options.options or {}), chip_option.key: chip},
        )
        for chip in chips
    }
    manifest, graphs = _chosen(options, next(iter(places.values())), cache)
    say(f"The bundle {manifest.folder}")
    for chip, place in places.items():
        named = _named(chip_option, chip)
        for role, graph in graphs.items():
            say(f"{role}, {graph.flavour}-{graph.precision}, for {named}")
            _compile(manifest.folder, graph, place.keeping(folder, say), named)
    words = " or ".join(f"{chip_option.key}={chip}" for chip in chips)
    say(
        f"{folder} is complete. On the device it is the folder compiled in the cache folder, and "
        f"{words} a provider option."
    )


def _for_chips() -> tuple[str, Compiled, Option]:
    """The provider that compiles for a chip it is told of, and the option that tells it."""
    for key, provider in PROVIDERS.items():
        for option in provider.options:
            if provider.compiled is not None and provider.compiled.chip == option.key:
                return key, provider.compiled, option
    raise AssertionError("no provider of the table compiles for chips")


def _number(option: Option, chip: str) -> str:
    """A chip's number as the provider has it; UsageError for a name that is not known."""
    found = option.read(chip)
    if found in (None, "0"):
        raise UsageError(f"There is no chip {chip!r}. Known are {_known(option)}.")
    return str(found)


def _known(option: Option) -> str:
    known = ", ".join(f"{name} ({number})" for name, number in option.names.items())
    return f"{known}, and others by number"


def _named(option: Option, chip: str) -> str:
    """A chip by its number and its name, where that is known."""
    names = [name for name, number in option.names.items() if number == chip]
    return f"chip {chip} ({names[0]})" if names else f"chip {chip}, which has no known name"


def _writable(folder: Path) -> Path:
    """The folder, made where it is not there; BuildError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror
        raise BuildError(
            f"Nothing can be put in {folder} ({reason}): name another folder with --out."
        ) from error
    return folder


def _chosen(
    options: argparse.Namespace, place: Place, cache: Path
) -> tuple[Manifest, dict[RoleName, Graph]]:
    """The bundle and its graphs by role that a session there would take, or those that are named.

    Raises UsageError for a graph that does not run there, BundleError where the bundle lacks one.
    """
    taken = best_first("draft", place)
    if options.graph not in (None, *taken):
        raise UsageError(
            f"The graph {options.graph} is not for {place}, which takes {', '.join(taken)}."
        )
    roles: Sequence[RoleName] = options.roles or ROLES
    best = {role: options.graph or str(best_graph(role, place)) for role in roles}
    in_cache = None
    if not Path(options.bundle).is_dir():
        in_cache = cached_bundles(options.bundle, best, cache_dir=cache)
    if in_cache is None:
        manifest = Manifest.load(named_folder(options.bundle, cache))
        if options.roles is None and manifest.draft is None:
            best.pop("draft")
        graphs = _graphs(manifest, best, options.graph, place)
        if missing := {role: key for role, key in best.items() if role not in graphs}:
            raise BundleError(_lacking(manifest, missing, place))
        return manifest, graphs
    folders, arguments = in_cache
    for folder in folders:
        try:
            manifest = Manifest.load(folder)
        except BundleError:  # not built yet, or by another version
            continue
        graphs = _graphs(manifest, best, options.graph, place)
        if len(graphs) == len(best):
            return manifest, graphs
    alone = "" if options.roles else ", or name one model by --role"
    raise BundleError(
        f"The cache has no bundle of {options.bundle} with {_listed(best)} for {place}{alone}. "
        f"Build one: {shlex.join(['python', '-m', 'export', *arguments])}"
    )


def _graphs(
    manifest: Manifest, best: Wanted, name: str | None, place: Place
) -> dict[RoleName, Graph]:
    """By role the graph so named, or the best for the place; none for a role without one."""
    found = {}
    for role in best:
        if role == "draft" and manifest.draft is None:
            continue
        for graph in suited(manifest, role, place):
            if name in (None, f"{graph.flavour}-{graph.precision}"):
                found[role] = graph
                break
    return found


def _lacking(manifest: Manifest, missing: Wanted, place: Place) -> str:
    held = [f"target/{key}" for key in sorted(manifest.target.graphs)]
    held += [f"draft/{key}" for key in sorted(manifest.draft.graphs if manifest.draft else ())]
    return (
        f"The bundle {manifest.folder} has no {_listed(missing)} for {place}; it has "
        f"{', '.join(held)}. Build one: {build_command(manifest, missing)}"
    )


def _listed(graphs: Wanted) -> str:
    return " and ".join(f"{role}/{key}" for role, key in graphs.items())


def _compile(folder: Path, graph: Graph, place: Place, chip: str) -> None:
    for path in graph_files(folder, graph):
        try:
            kept = keep(path, place)
        except ProviderError as error:
            raise BuildError(
                f"{path} cannot be compiled for {chip}. Look whether there is such a chip and "
                f"whether its NPU computes in float16, or take another graph by --graph. "
                f"What was said: {str(error).removesuffix(FALLBACK)}"
            ) from error
        if kept is None:
            raise BuildError(f"{path}, compiled, could not be put in {place.compiled}.")
