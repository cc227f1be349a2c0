"""What decides how a place computes beside the graph: its provider, its device, their driver."""

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runtime.providers.devices import device_of
from runtime.providers.libraries import version
from runtime.providers.place import Place
from runtime.providers.table import PROVIDERS, as_place

OTHER_EVERY_BOOT = ("LUID",)  # Windows' names of adapters
DRIVERS = (
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia/version",
    "/sys/module/amdgpu/version",
    "/sys/module/intel_vpu/version",
)
VULKAN = ("/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d")
VULKAN_NAMED = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # variables that Vulkan's loader reads


def identity(name: str | Place) -> str:
    """A text that is another one where provider, device or driver are others.

    That is as far as onnxruntime and the system tell: versions, what a device says of itself, size
    and time of the files that the provider is made of, and on Linux the kernel's drivers and
    Vulkan's. Raises ProviderError where the place is not on this machine.
    """
    place = as_place(name)
    if place.provider == "CPU":
        return place.provider
    listed = device_of(place).listed
    parts = [PROVIDERS[place.provider].ep_name, version(place.provider)]
    if listed is not None:
        hardware = listed.device
        parts += [str(hardware.type), str(hardware.vendor_id), str(hardware.device_id)]
        parts += [*_said(hardware.metadata), *_said(listed.ep_metadata)]
        parts += _state(Path(listed.ep_metadata.get("library_path", "")))
    for _key, value in place.options:
        parts += _state(Path(value))  # of those that name a file
    parts += [platform.release(), platform.version()]
    for file in (*map(Path, DRIVERS), *_vulkan()):
        parts += _contents(file)
    return "\n".join(parts)


def _said(metadata: Mapping[str, Any]) -> list[str]:
    return [f"{key}={metadata[key]}" for key in sorted(metadata) if key not in OTHER_EVERY_BOOT]


def _state(file: Path) -> list[str]:
    """Size and time of a file, where it is one."""
    try:
        if not file.is_file():
            return []
        status = file.stat()
    except (OSError, ValueError):
        return []
    return [f"{file}: {status.st_size} {status.st_mtime_ns}"]


def _contents(file: Path) -> list[str]:
    """A hash of a small file, where there is one."""
    try:
        return [f"{file}: {hashlib.sha256(file.read_bytes()).hexdigest()}"]
    except OSError:
        return []


def _vulkan() -> Iterator[Path]:
    """The files that name Vulkan's drivers; they bear the version of most."""
    named = [os.environ[each] for each in VULKAN_NAMED if each in os.environ]
    if named:
        yield from map(Path, named[0].split(os.pathsep))
        return
    for folder in map(Path, VULKAN):
        yield from sorted(folder.glob("*.json"))
