"""What decides how a place computes, beside the graph: its provider, its device, their driver."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.providers.devices import device_of
from runtime.providers.drivers import drivers
from runtime.providers.libraries import library_of, version
from runtime.providers.place import Place
from runtime.providers.table import PROVIDERS

OTHER_EVERY_BOOT = ("LUID",)  # Windows' name of an adapter


def identity(place: Place) -> str:
    """A text that is another one where provider, device or driver are others.

    That is as far as onnxruntime and the system tell: versions, what the device says of itself,
    size and time of the provider's library and of files that its options name, and `drivers`.
    Raises ProviderError where the place is not on this machine.
    """
    if place.provider == "CPU":
        return place.provider
    listed = device_of(place).listed
    parts = [PROVIDERS[place.provider].ep_name, version(place.provider)]
    if listed is not None:
        parts += [*said_of(listed), *_lines(listed.ep_metadata), *_state(library_of(listed))]
    for _key, value in place.options:
        parts += _state(value)
    return "\n".join([*parts, *drivers()])


def said_of(listed: Any) -> list[str]:
    """What a device says of itself that is the same after every boot; `listed`: an OrtEpDevice."""
    hardware = listed.device
    named = f"{hardware.type} {hardware.vendor_id} {hardware.device_id}"
    return [named, *_lines(hardware.metadata)]


def _lines(metadata: Mapping[str, Any]) -> list[str]:
    return [f"{key}={metadata[key]}" for key in sorted(metadata) if key not in OTHER_EVERY_BOOT]


def _state(file: str) -> list[str]:
    """Size and time of a file, where this names one."""
    try:
        status = Path(file).stat()
    except (OSError, ValueError):
        return []
    return [f"{file}: {status.st_size} {status.st_mtime_ns}"]
