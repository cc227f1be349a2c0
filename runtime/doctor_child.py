"""What the doctor does in a process that a provider may end: one task for each start."""

import gc
import importlib.metadata
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runtime import providers
from runtime.child import answer
from runtime.draft_model import head_tokens
from runtime.errors import BundleError, MirrorError, ProviderError, UsageError
from runtime.flavours import graph_files, open_graph
from runtime.manifest import Graph, Manifest, Role
from runtime.providers import PROVIDERS, Device, Place
from runtime.session import GraphSession
from runtime.trial_child import difference

Found = dict[str, Any]
TEXT = 24  # tokens before those that are compared


def listing(request: Found) -> Found:
    """What each of some providers is and finds here, see `_listed`, by its key."""
    return {key: _listed(key, _path(file)) for key, file in request["libraries"].items()}


def _listed(key: str, library: Path | None) -> Found:
    """Versions, library and devices, or `reason` why not; `missing`: what it may need and lacks."""
    provider = PROVIDERS[key]
    found: Found = {"missing": providers.missing_libraries(provider.advice), "package": None}
    if provider.distribution is not None:
        try:
            version = importlib.metadata.version(provider.distribution)
            found["package"] = f"{provider.distribution} {version}"
        except importlib.metadata.PackageNotFoundError:
            pass
    try:
        providers.register(key, library)
        devices = [_told(device) for device in providers.devices(key)]
    except ProviderError as error:
        return found | {"reason": str(error)}
    paths = {providers.library_of(each) for each in providers.known_devices(key)}
    return found | {
        "reason": None if devices else f"{key} finds no device of its own on this machine.",
        "version": providers.version(key),
        "library": max(paths, default="") or None,
        "devices": devices,
    }


def place(request: Found) -> Found:
    """Where a role runs with these flags, or with `usage` which of them cannot be meant."""
    role, asked = request["role"], request["asked"][request["role"]]
    other = "draft" if role == "target" else "target"
    words = (request["asked"][other][name] for name in ("device", "execution_provider"))
    try:
        found = providers.resolve(
            role,
            device=asked["device"],
            provider=asked["execution_provider"],
            options=asked["provider_options"],
            libraries={key: Path(file) for key, file in request["libraries"].items()},
            beside=providers.candidates(other, *words),
        )
    except UsageError as error:
        return {"usage": str(error)}
    return found.as_data() | {"emulated": providers.device_of(found).emulated}


def smoke(request: Found) -> Found:
    """A graph of a few operators in a place, beside numpy's answer."""
    where = Place.from_data(request)
    started = time.perf_counter()
    try:
        found = providers.smoke_test(where)
    except MirrorError as error:
        said = str(error).removesuffix(providers.REBUILD).removesuffix(providers.DOCTOR)
        raise ProviderError(f"{said.rstrip(' ;,.')}.") from None
    except Exception as error:  # onnxruntime's own classes have no other base
        raise ProviderError(f"The first run on {where} failed: {error}") from error
    return {
        "largest_difference": found.largest_difference,
        "spread": found.spread,
        "right": found.right,
        "seconds": time.perf_counter() - started,
    }


def halves(request: Found) -> Found:
    """Whether a place runs that graph in float16, and right."""
    try:
        return {"right": providers.smoke_test(Place.from_data(request), halves=True).right}
    except Exception:  # noqa: BLE001 - onnxruntime's own classes have no other base
        return {"right": False}


def nodes(request: Found) -> Found:
    """How many nodes of which operators of a graph's files each provider runs; of the CPU none.

    All of them are there, and onnxruntime does not count them.
    """
    manifest, _, graph = _graph(request)
    where = replace(Place.from_data(request), report=print)
    found: dict[str, dict[str, int]] = {}
    for file in graph_files(manifest.folder, graph):
        session = providers.load(file, threads=1, name=where)
        if where.provider == "CPU":
            continue
        for name, kinds in providers.placed(session).items():
            total = found.setdefault(name, {})
            for kind, count in kinds.items():
                total[kind] = total.get(kind, 0) + count
    return {"nodes": found}


def greedy(request: Found) -> Found:
    """Every token of a text that the CPU writes greedily, chosen again in a place, row by row.

    As a Trial's figures, of `tokens` rows. One model is loaded at a time.
    """
    manifest, role, graph = _graph(request)
    head = head_tokens(manifest.folder, role)
    count = request["tokens"]
    most = graph.context or role.geometry.context
    if TEXT + count > most:
        raise BundleError(
            f"--tokens {count}: the graph {graph.file} holds {most} tokens, of which {TEXT} come "
            "before: take fewer."
        )
    text = np.arange(TEXT + count) * 7919 % role.geometry.vocabulary

    def opened(where: Place) -> GraphSession[Any]:
        return open_graph(
            manifest.folder,
            graph,
            role.geometry,
            provider=where,
            columns=None if head is None else len(head),
            threads=1,
            context=TEXT + count,
        )

    def rows(session: GraphSession[Any], *, writes: bool) -> Any:
        found = []
        for end in range(TEXT, TEXT + count):
            found.append(session.extend(text[:end])[-1].copy())
            if writes:
                chosen = int(found[-1].argmax())
                text[end] = chosen if head is None else head[chosen]
        return np.stack(found)

    session = opened(Place("CPU"))
    known = rows(session, writes=True)
    del session
    gc.collect()
    return difference(known, rows(opened(Place.from_data(request)), writes=False))


TASKS: Mapping[str, Callable[[Found], Found]] = {
    "listing": listing,
    "place": place,
    "smoke": smoke,
    "halves": halves,
    "nodes": nodes,
    "greedy": greedy,
}


def _graph(request: Found) -> tuple[Manifest, Role, Graph]:
    manifest = Manifest.load(Path(request["bundle"]))
    role = manifest.role(request["role"])
    return manifest, role, role.graphs[request["graph"]]


def _told(device: Device) -> Found:
    """A device, and what onnxruntime tells of it; None where it tells nothing."""
    listed = device.listed
    metadata: dict[str, str] = {}
    if listed is not None:
        metadata = {str(key): str(value) for key, value in listed.device.metadata.items()}
        metadata |= {str(key): str(value) for key, value in listed.ep_metadata.items()}
    return {
        "kind": device.kind,
        "number": device.number,
        "emulated": device.emulated,
        "vendor": None if listed is None else str(listed.device.vendor),
        "vendor_id": None if listed is None else listed.device.vendor_id,
        "device_id": None if listed is None else listed.device.device_id,
        "name": _value(metadata, "FULL_DEVICE_NAME|Description"),
        "driver": _value(metadata, "(?i)driver.?version"),
        "memory": _value(metadata, "(?i)total_mem_size|videomemory"),
        "metadata": metadata,
    }


def _value(metadata: Mapping[str, str], pattern: str) -> str | None:
    return next((value for key, value in metadata.items() if re.search(pattern, key)), None)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


if __name__ == "__main__":
    answer(lambda request: TASKS[request["task"]](request))
