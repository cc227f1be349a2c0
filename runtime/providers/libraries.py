"""Where a provider's library comes from, and making onnxruntime take it."""

import contextlib
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from runtime.bundle_files import file_sha256
from runtime.errors import ProviderError
from runtime.providers.native import native, python_name
from runtime.providers.table import PROVIDERS

ALREADY = "already registered"  # in onnxruntime's own words
WARNING, ERROR = 2, 3  # its severities


def register(key: str, library: Path | None = None) -> None:
    """Have onnxruntime know the provider's devices: built in, by a file, a package, or Windows.

    A process takes one library of a provider. Raises ProviderError where there is none, where it
    does not fit this onnxruntime, and where another file was taken before `library`.
    """
    provider = PROVIDERS[key]
    if library is None and (known_devices(key) or is_built_in(key)):
        return
    path = str(library.absolute()) if library else _own_library(key)
    taken = {library_of(device) or path for device in known_devices(key)}
    if taken:
        if not any(_same_file(path, each) for each in taken):
            raise ProviderError(
                f"{key} runs from {min(taken)} in this process already, and cannot from {path}."
            )
        return
    if library is not None and not library.is_file():
        raise ProviderError(f"The library of {key}, {library}, is no file.")
    try:
        with _warnings_off():
            ort.register_execution_provider_library(provider.ep_name, native(path))
    except Exception as error:  # onnxruntime's own classes, for a library that does not fit it
        if ALREADY in str(error):
            return  # and found no device
        raise ProviderError(f"{key} cannot be loaded: {_sentence(error)}") from error


def is_built_in(key: str) -> bool:
    """Whether the installed onnxruntime has the provider inside."""
    return PROVIDERS[key].ep_name in ort.get_available_providers()


def known_devices(key: str) -> list[Any]:
    """What onnxruntime lists of the provider by now: OrtEpDevices."""
    name = PROVIDERS[key].ep_name
    return [device for device in ort.get_ep_devices() if device.ep_name == name]


def library_of(listed: Any) -> str:
    """The file of the library that a device which onnxruntime lists is of; "" where it tells none.

    listed: an OrtEpDevice.
    """
    return python_name(str(listed.ep_metadata.get("library_path", "")))


def version(key: str) -> str:
    """The version of a provider that is registered: its package's, where its library lies there.

    Else what the library says, which may be the same in each release; onnxruntime's where it says
    nothing.
    """
    found = known_devices(key)
    packaged = [_package_version(key, library_of(each)) for each in found]
    own = [str(each.ep_metadata.get("version", "")) for each in found]
    best = max((one or other for one, other in zip(packaged, own, strict=True)), default="")
    return best or str(ort.__version__)


def build_of(key: str) -> str:
    """What tells one build of a registered provider, under one onnxruntime, from another."""
    paths = {library_of(device) for device in known_devices(key)}
    loose = [Path(each) for each in sorted(paths) if _package_version(key, each) is None]
    marks = [f" ({file_sha256(each)[:12]})" for each in loose if each.is_file()]
    return f"{version(key)}{''.join(marks)} under onnxruntime {ort.__version__}"


def _package_version(key: str, library: str) -> str | None:
    """The version of the provider's package; None where the library lies elsewhere."""
    provider = PROVIDERS[key]
    if provider.package is None or provider.distribution is None:
        return None
    try:
        package = importlib.metadata.distribution(provider.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = Path(str(package.locate_file(provider.package)))
    inside = Path(library).resolve().is_relative_to(folder.resolve())
    return package.version if inside else None


def _own_library(key: str) -> str:
    """The library of the provider's package or of Windows; ProviderError says how to get it."""
    provider = PROVIDERS[key]
    if provider.package is not None:
        try:
            return str(importlib.import_module(provider.package).get_library_path())
        except ImportError:
            pass  # there may be other ways
        except Exception as error:  # whatever a package's own code raises
            raise ProviderError(f"{key} cannot be loaded: {_sentence(error)}") from error
    if provider.windows_ml and sys.platform == "win32":
        path = _windows_library(provider.ep_name)
        if path is not None:
            return path
    if sys.platform not in provider.systems:
        windows = provider.windows_ml and sys.platform == "win32"
        raise ProviderError(
            f"{key} is not here: its package is for {provider.systems_named} only"
            f"{', and Windows ML has it not on this machine' if windows else ''}."
        )
    if provider.distribution is not None:
        raise ProviderError(
            f"{key} is not installed: python -m pip install {provider.distribution}"
        )
    raise ProviderError(
        f"{key} is not in this onnxruntime: it comes with {provider.built_in}, or from a library "
        f"that is named by --ep-library {key}=FILE (ep_libraries in a program)."
    )


@contextlib.contextmanager
def _warnings_off() -> Iterator[None]:
    """Have onnxruntime log errors only for a while, then warnings again, as is its default.

    WebGPU warns that software may play the GPU, where the user has just asked for that.
    """
    ort.set_default_logger_severity(ERROR)
    try:
        yield
    finally:
        ort.set_default_logger_severity(WARNING)


def _windows_library(ep_name: str) -> str | None:
    """The file of a provider that Windows ML has on this machine; nothing is fetched."""
    try:
        found = _catalogue().find_all_providers()
    except Exception:  # noqa: BLE001 - a package of another shape, or a Windows without a catalogue
        return None
    for provider in found:
        if provider.name == ep_name and provider.ready_state.name != "NotPresent":
            provider.ensure_ready()
            return str(provider.library_path) or None
    return None


@cache
def _catalogue() -> Any:
    """Windows ML's catalogue, never closed: that has crashed beside some drivers of NPUs."""
    return importlib.import_module("windowsml").EpCatalog()


def _same_file(one: str, other: str) -> bool:
    return one == other or Path(one).resolve() == Path(other).resolve()


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."
