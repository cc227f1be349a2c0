"""What machine this is, as far as the system tells without any provider."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from runtime.bench_report import machine
from runtime.memory import available_bytes
from runtime.providers import PROVIDERS, Surroundings, files_of_devices, files_of_makers

VENDORS: Mapping[str, str] = {
    "0x8086": "Intel",
    "0x1002": "AMD",
    "0x10de": "NVIDIA",
    "0x1022": "AMD",
    "0x17cb": "Qualcomm",
}


def examine(root: Path = Path("/")) -> dict[str, Any]:
    """The machine: processor, cores, memory in bytes, onnxruntime, and the kernel's devices.

    None stands for what the system does not tell; `devices` is for Linux alone, read below `root`.
    """
    return machine() | {
        "memory_bytes": _memory_bytes(),
        "available_bytes": available_bytes(),
        "onnxruntime_build": ort.get_build_info(),
        "onnxruntime_file": str(Path(ort.__file__).parent),
        "onnxruntime_packages": _packages(),
        "built_in": list(ort.get_available_providers()),
        "devices": _kernel_devices(root) if sys.platform == "linux" else None,
    }


def surroundings(
    environ: Mapping[str, str], missing: frozenset[str], root: Path = Path("/")
) -> Surroundings:
    """What decides which advice holds; `missing`: libraries that cannot be loaded."""
    return Surroundings(
        sys.platform,
        platform.machine(),
        frozenset(environ),
        {
            f"/{file.relative_to(root).as_posix()}": os.access(file, os.R_OK | os.W_OK)
            for file in (*files_of_devices(root), *files_of_makers(root))
        },
        missing,
    )


def _packages() -> list[str]:
    """The installed distributions that bring onnxruntime; more than one overwrite each other."""
    names = {"onnxruntime"} | {str(each.built_in).partition(",")[0] for each in PROVIDERS.values()}
    found = []
    for name in sorted(
        name for name in names if name.startswith("onnxruntime") and " " not in name
    ):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def _kernel_devices(root: Path) -> list[dict[str, Any]]:
    """Linux's GPUs and NPUs: the file of each, whether this user may open it, and its driver."""
    found = []
    for file in files_of_devices(root):
        kind = "drm" if file.name.startswith("render") else "accel"
        folder = root / "sys/class" / kind / file.name / "device"
        driver = (folder / "driver").resolve().name if (folder / "driver").exists() else None
        vendor = _line(folder / "vendor")
        found.append(
            {
                "file": str(file),
                "opens": os.access(file, os.R_OK | os.W_OK),
                "vendor": VENDORS.get(vendor or "", vendor),
                "device": _line(folder / "device"),
                "driver": driver,
                "driver_version": driver and _line(root / "sys/module" / driver / "version"),
                "memory_bytes": _number(_line(folder / "mem_info_vram_total")),
            }
        )
    return found


def _line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
