"""The drivers of GPUs and NPUs on this machine, as far as the system names their versions."""

import hashlib
import importlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = ("nvidia", "amdgpu", "amdxdna", "i915", "xe", "intel_vpu")  # of Linux
NVIDIA = "proc/driver/nvidia/version"
VULKAN = ("etc/vulkan/icd.d", "usr/local/share/vulkan/icd.d", "usr/share/vulkan/icd.d")
VULKAN_NAMED = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # variables that Vulkan's loader reads
WINDOWS = r"SYSTEM\CurrentControlSet\Control\Class"
WINDOWS_KINDS = (
    "{4d36e968-e325-11ce-bfc1-08002be10318}",  # displays
    "{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}",  # processors for neural networks
)
MOST_WINDOWS_DEVICES = 32


def drivers(root: Path = Path("/")) -> list[str]:
    """A line for each driver, another one where the driver is: below `root` on Linux.

    The first is the system itself, as some drivers come with it.
    """
    files = [*(f"sys/module/{name}/version" for name in MODULES), NVIDIA]
    found = [f"{platform.release()} {platform.version()}"]
    for file in (*(root / file for file in files), *_vulkan(root)):
        try:
            found.append(f"{file}: {hashlib.sha256(file.read_bytes()).hexdigest()}")
        except OSError:
            continue
    return [*found, *_windows()]


def _vulkan(root: Path) -> Iterator[Path]:
    """The files that name Vulkan's drivers; most bear a version that changes with the driver's."""
    named = [os.environ[each] for each in VULKAN_NAMED if os.environ.get(each)]
    if named:
        yield from map(Path, named[0].split(os.pathsep))
        return
    for folder in VULKAN:
        yield from sorted((root / folder).glob("*.json"))


def _windows() -> Iterator[str]:
    """What Windows' registry says of the drivers; nothing on other systems."""
    try:
        registry: Any = importlib.import_module("winreg")
    except ImportError:
        return
    for kind in WINDOWS_KINDS:
        for number in range(MOST_WINDOWS_DEVICES):
            try:
                place = rf"{WINDOWS}\{kind}\{number:04}"
                with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, place) as key:
                    values = [
                        str(registry.QueryValueEx(key, name)[0])
                        for name in ("DriverDesc", "DriverVersion")
                    ]
            except OSError:
                continue
            yield " ".join(values)
