"""A bundle's graphs compiled for the NPU of a chip that is not here."""

import argparse
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from export.chip_flags import ROLES
from export.inspect import named_folder
from runtime.errors import BuildError, ProviderError, UsageError
from runtime.flavours import choose_graph, graph_files
from runtime.locate import default_cache_dir
from runtime.manifest import Graph, Manifest, RoleName
from runtime.providers import PROVIDERS, Compiled, Place, keep, resolve
from runtime.wanted import best_first

MACHINES = ("x86_64", "amd64")


def run(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Compile what the command line asks for.

    Raises UsageError for a chip or a graph that is not known, BundleError for what is no bundle,
    ProviderError for a provider that is not installed, BuildError where it takes no such graph and
    on a machine that cannot compile for another.
    """
    if platform.machine().lower() not in MACHINES:
        raise BuildError(
            f"This machine ({platform.machine()}) cannot compile for another: do it on x86-64. On "
            "the device itself the first start compiles."
        )
    cache = default_cache_dir(os.environ, sys.platform)
    key, own = _for_chips()
    chips = dict.fromkeys(_number(own, chip) for chip in options.chips)
    manifest = Manifest.load(named_folder(options.bundle, cache))
    folder = options.out or cache / "compiled"
    roles = options.roles or [role for role in ROLES if role == "target" or manifest.draft]
    for chip in chips:
        place = resolve(
            "draft",
            device=own.kinds[0],
            provider=key,
            options={**(options.options or {}), str(own.chip): chip},
        )
        for role in roles:
            graph = _graph(manifest, role, options.graph, place)
            say(f"{role}, {graph.flavour}-{graph.precision}, for {_named(own, chip)}")
            _compile(manifest.folder, graph, place.keeping(folder, say), _named(own, chip))
    words = " or ".join(f"{own.chip}={chip}" for chip in chips)
    say(
        f"{folder} is complete. On the device it is the folder compiled in the cache folder, and "
        f"{words} a provider option."
    )


def _for_chips() -> tuple[str, Compiled]:
    """The provider that compiles for a chip it is told of."""
    for key, provider in PROVIDERS.items():
        if provider.compiled is not None and provider.compiled.chip is not None:
            return key, provider.compiled
    raise AssertionError("no provider of the table compiles for chips")


def _number(own: Compiled, chip: str) -> str:
    """A chip's number as the provider has it; UsageError for a name that is not known."""
    found = own.chips.get(chip.strip().upper(), chip.strip())
    if not (found.isascii() and found.isdecimal() and int(found)):
        known = ", ".join(f"{name} ({number})" for name, number in own.chips.items())
        raise UsageError(f"There is no chip {chip!r}. Known are {known}, and others by number.")
    return str(int(found))


def _named(own: Compiled, chip: str) -> str:
    """A chip by its number and its name, where that is known."""
    names = [name for name, number in own.chips.items() if number == chip]
    return f"chip {chip}{f' ({names[0]})' if names else ''}"


def _graph(manifest: Manifest, role: RoleName, name: str | None, place: Place) -> Graph:
    """The graph that is meant; UsageError for one that is not there or not for the place."""
    if name is None:
        return choose_graph(manifest, role, place)
    graphs = manifest.role(role).graphs
    fit = [key for key in best_first(role, place) if key in graphs]
    if name not in fit:
        raise UsageError(
            f"The {role} of {manifest.folder} has no graph {name} for {place}; it has "
            f"{', '.join(fit) or 'none'}."
        )
    return graphs[name]


def _compile(folder: Path, graph: Graph, place: Place, chip: str) -> None:
    for path in graph_files(folder, graph):
        try:
            kept = keep(path, place)
        except ProviderError as error:
            raise BuildError(
                f"{path} cannot be compiled for {chip}: {error} Look whether there is such a chip, "
                "and take another graph by --graph."
            ) from error
        if kept is None:
            raise BuildError(f"{path}, compiled, could not be put in {place.compiled}.")
