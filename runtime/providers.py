"""Where a graph runs: the only file that names an execution provider."""

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime.errors import BundleError, ProviderError
from runtime.layout import Sharing
from runtime.manifest import Flavour, Precision
from runtime.pages import huge_pages

SUPPORTED_DEVICES = ("CPU",)


@dataclass(frozen=True, slots=True)
class Provider:
    """One execution provider: its name in onnxruntime, the graphs it takes, how it is told.

    flavours, precisions: best first. package: the Python package that brings its library, and
    `distribution` what pip calls it. options: what onnxruntime is told, from the number of threads.
    """

    ep_name: str
    flavours: tuple[Flavour, ...]
    precisions: tuple[Precision, ...]
    package: str | None = None
    distribution: str | None = None
    options: Callable[[int], dict[str, str]] = field(default=lambda _threads: {})


def _openvino_options(threads: int) -> dict[str, str]:
    """Float32 as asked for: by default this device computes in bfloat16, and the text changes.

    Pinning would move the threads of the session beside it.
    """
    device = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": str(threads),
        "NUM_STREAMS": "1",
        "ENABLE_CPU_PINNING": "NO",
    }
    return {"load_config": json.dumps({"CPU": device})}


PROVIDERS: Mapping[str, Provider] = {
    "CPU": Provider(
        "CPUExecutionProvider", ("fused", "portable"), ("int4", "int8", "fp32", "fp16")
    ),
    "OpenVINO": Provider(
        "OpenVINOExecutionProvider",
        ("portable",),
        ("fp32", "fp16", "int8"),
        package="onnxruntime_ep_openvino",
        distribution="onnxruntime-ep-openvino",
        options=_openvino_options,
    ),
}


def check_device(role: str, device: str) -> None:
    """Refuse a device word that nothing here can honour; raises ProviderError."""
    if device not in SUPPORTED_DEVICES:
        raise ProviderError(
            f"The {role} was asked for on {device!r}; this version runs on "
            f"{', '.join(SUPPORTED_DEVICES)} only, so leave the option out."
        )


def find(role: str, name: str) -> str:
    """The key of PROVIDERS that `name` means, in any case and with onnxruntime's ending or not.

    Raises ProviderError for a provider that is not known or cannot be loaded here.
    """
    short = name.lower().removesuffix("executionprovider")
    key = next((known for known in PROVIDERS if known.lower() == short), None)
    if key is None:
        raise ProviderError(
            f"The {role} was asked for on the execution provider {name!r}; "
            f"known are {', '.join(PROVIDERS)}."
        )
    if PROVIDERS[key].package is not None:
        _devices(key, PROVIDERS[key])
    return key


def usable_cores() -> list[int]:
    """The logical cores this process may use, lowest first."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Keep the calling thread on one logical core, where the system can; None leaves it free."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def load(
    path: Path,
    *,
    threads: int,
    name: str = "CPU",
    cores: tuple[int, ...] = (),
    sharing: Sharing = "alone",
) -> ort.InferenceSession:
    """Load a graph on the provider `name`, all of it there.

    threads: how many threads one run uses, the calling thread among them.
    cores: one logical core for each of them; the first is the caller's, who pins itself.
    sharing: with a session that works in turn, threads spin during a run and no longer; with one
    that works at once, idle threads sleep.
    Raises BundleError when onnxruntime cannot read the graph, ProviderError when a node of it
    would run anywhere but where it was asked to.
    """
    chosen = PROVIDERS[name]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its errors are raised too
    if sharing == "at once":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif sharing == "in turn":
        options.add_session_config_entry("session.force_spinning_stop", "1")
    if len(cores) == threads and threads > 1:
        others = ";".join(str(core + 1) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    if chosen.package is not None:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        options.add_provider_for_devices(_devices(name, chosen), chosen.options(threads))
    try:
        with huge_pages():
            session = ort.InferenceSession(
                _native(path), options, providers=None if chosen.package else [chosen.ep_name]
            )
    except Exception as error:  # onnxruntime raises a dozen unrelated classes for a bad file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BundleError(
            f"{path} cannot be loaded on {name}: {reason}; build the bundle again."
        ) from error
    session.disable_fallback()
    _check_placement(session, path, name, chosen)
    return session


def _native(path: Path) -> str:
    """The path as native code reads it, in UTF-8 whatever the locale that Python read it by."""
    return str(path) if os.name == "nt" else os.fsencode(path).decode()


def bind(
    binding: ort.IOBinding,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, NDArray[Any]],
) -> None:
    """Bind arrays, which the caller keeps alive, as what a graph reads and writes."""
    for bind_one, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            bind_one(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def input_type(session: ort.InferenceSession, name: str) -> np.dtype[Any]:
    """The numpy type of the float32 or float16 input `name`; BundleError where there is none."""
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    for item in session.get_inputs():
        if item.name == name and item.type in types:
            return np.dtype(types[item.type])
    raise BundleError(f"A graph has no input {name} of real numbers; build the bundle again.")


def _devices(name: str, chosen: Provider) -> list[ort.OrtEpDevice]:
    """The provider's CPU device, its library loaded at first use; ProviderError without one."""

    def found() -> list[ort.OrtEpDevice]:
        return [
            device
            for device in ort.get_ep_devices()
            if device.ep_name == chosen.ep_name
            and device.device.type == ort.OrtHardwareDeviceType.CPU
        ]

    if devices := found():
        return devices
    try:
        package = importlib.import_module(str(chosen.package))
        ort.register_execution_provider_library(chosen.ep_name, package.get_library_path())
    except ImportError as error:
        raise ProviderError(
            f"{name} is not installed: python -m pip install {chosen.distribution}"
        ) from error
    except Exception as error:  # onnxruntime's own classes, for a library that does not fit it
        raise ProviderError(f"{name} cannot be loaded: {error}.") from error
    if devices := found():
        return devices
    raise ProviderError(f"{name} finds no device of its own on this machine.")


def _check_placement(
    session: ort.InferenceSession, path: Path, name: str, chosen: Provider
) -> None:
    """Raise ProviderError, with the operators, for nodes that were put on another provider."""
    if chosen.package is None:
        elsewhere = [used for used in session.get_providers() if used != chosen.ep_name]
        if elsewhere:
            raise ProviderError(f"{path} was to run on {name} but onnxruntime chose {elsewhere}.")
        return
    strays: dict[str, set[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        if part.ep_name != chosen.ep_name:
            kinds = {node.op_type for node in part.get_nodes()}
            strays.setdefault(part.ep_name, set()).update(kinds)
    if strays:
        places = "; ".join(f"{where}: {', '.join(sorted(ops))}" for where, ops in strays.items())
        raise ProviderError(
            f"{path} was to run on {name}, but onnxruntime put operators elsewhere ({places})."
        )
