"""Having a provider compile a graph once, and what is loaded in the graph's place from then on.

Compiling happens in a process of its own: it may end that, or take longer than anyone waits.
"""

import hashlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from runtime import compiled
from runtime.child import run_child
from runtime.errors import BundleError
from runtime.locate import module_command
from runtime.providers.devices import Device
from runtime.providers.identities import said_of
from runtime.providers.libraries import build_of
from runtime.providers.native import native
from runtime.providers.place import Place
from runtime.providers.provider import Compiled
from runtime.providers.table import PROVIDERS

TIME_LIMIT_S = 3600.0  # for one graph
LIBRARY = "library_path"  # of what onnxruntime lists, these two say nothing of the device
VERSION = "version"


@dataclass(frozen=True, slots=True)
class Form:
    """How a graph is loaded: from which file, and what the provider is told.

    entries: what the session is told, where all nodes must be the provider's. kept: the folder that
    compiled_graph gave, where it comes from there.
    """

    file: Path
    options: dict[str, str]
    entries: dict[str, str] = field(default_factory=dict)
    kept: Path | None = None


def kept_form(
    graph: Path, place: Place, device: Device, told: dict[str, str], *, plain: dict[str, str]
) -> Form:
    """The graph as its provider compiled it, where the place has a folder for that; now at last.

    told: what the provider is told; plain: the same for one thread, as which it compiles: the
    outcome does not depend on how many threads will run it. Raises ProviderError where compiling
    fails, or ends the process that does it. Where nothing can be kept the place is told why, and
    it is the graph.
    """
    own = PROVIDERS[place.provider].compiled
    # What may leave operators to the CPU is not one thing that a provider compiled.
    if own is None or place.compiled is None or place.report is not None:
        return Form(graph, told)
    say = place.say or (lambda _line: None)
    if place.kind not in own.kinds or (own.folder and own.folder(place.compiled).keys() & told):
        return Form(graph, told)
    try:
        kept = compiled.compiled_graph(
            graph,
            target_of(own, place, device, plain),
            folder=place.compiled,
            compile_graph=partial(_in_a_child, place=place),
            say=say,
        )
    except OSError as error:
        say(
            f"What {place.provider} compiles cannot be kept in {place.compiled} "
            f"({error.strerror or error}), so it is compiled at every start."
        )
        return Form(graph, told)
    except BundleError as error:
        say(f"{error} It is compiled at every start.")
        return Form(graph, told)
    if own.folder is not None:
        return Form(graph, told | own.folder(kept), kept=kept)
    return Form(kept / compiled.GRAPH_FILE, told, kept=kept)


def compiling_form(graph: Path, place: Place, told: dict[str, str], to: Path) -> Form:
    """What has a provider write what it compiles of `graph` into the folder `to`."""
    own = PROVIDERS[place.provider].compiled
    if own is not None and own.folder is not None:
        return Form(graph, told | own.folder(to))
    # Beside the graph that is written and not inside: it may have gigabytes.
    entries = {
        "ep.context_enable": "1",
        "ep.context_file_path": native(to / compiled.GRAPH_FILE),
        "ep.context_embed_mode": "0",
    }
    return Form(graph, told, entries)


def target_of(own: Compiled, place: Place, device: Device, told: dict[str, str]) -> compiled.Target:
    """What a graph is compiled for in a place; the device itself where no option names a chip."""
    options = {key: value for key, value in told.items() if key not in own.unheeded}
    named = own.chip is not None and options.get(own.chip, "0") != "0"
    return compiled.Target(
        place.provider,
        build_of(place.provider),
        options,
        hardware="" if named else _described(device),
        whole=own.folder is None,
    )


def _described(device: Device) -> str:
    """A device by what it says of itself, its driver where that is told."""
    told = {} if device.listed is None else dict(device.listed.ep_metadata)
    own = sorted((key, value) for key, value in told.items() if key not in (LIBRARY, VERSION))
    said = [] if device.listed is None else said_of(device.listed)
    parts = repr((device.kind, device.number, said, own))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _in_a_child(graph: Path, to: Path, *, place: Place) -> None:
    run_child(
        module_command("runtime.compiling"),
        {
            "graph": str(graph.absolute()),
            "to": str(to.absolute()),
            "place": place.as_data(),
        },
        f"Compiling {graph} for {place}",
        TIME_LIMIT_S,
    )
