"""What helps where a provider finds no device or fails on one; each provider lists its own."""

import ctypes
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from runtime.providers.provider import Kind  # which has advice


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What decides which advice holds here.

    system: as sys.platform. processor: as platform.machine(). variables: names in the environment.
    nodes: whether this user may open each of the kernel's files of devices. missing: libraries of
    the system that cannot be loaded. software: that plays the device, which then has no file.
    """

    system: str
    processor: str
    variables: frozenset[str] = frozenset()
    nodes: Mapping[str, bool] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    software: bool = False

    def has(self, kind: "Kind") -> bool:
        """Whether Linux's kernel offers a device of the kind, which every machine does of CPU."""
        return kind == "CPU" or any(name.startswith(STARTS[kind]) for name in self.nodes)


@dataclass(frozen=True, slots=True)
class Advice:
    """A text, and when it holds: where all that is named is so.

    kinds: one is that of the device which is missing or fails. systems, processors: one is here.
    said: a pattern found in the error. unset: a variable that the environment lacks. library: one
    that cannot be loaded. absent, closed: the start of the names of the kernel's files of devices,
    of which there are none, or none that this user may open.
    """

    text: str
    kinds: tuple["Kind", ...] = ()
    systems: tuple[str, ...] = ()
    processors: tuple[str, ...] = ()
    said: str = ""
    unset: str | None = None
    library: str | None = None
    absent: str | None = None
    closed: str | None = None

    def holds(self, kind: "Kind", said: str, here: Surroundings) -> bool:
        """Whether it helps where a device of `kind` is missing or fails with `said`."""
        return (
            (not self.kinds or kind in self.kinds)
            and (not self.systems or here.system in self.systems)
            and (not self.processors or here.processor.lower() in self.processors)
            and re.search(self.said, said) is not None
            and (self.unset is None or self.unset not in here.variables)
            and (self.library is None or self.library in here.missing)
            and (self.absent is None or _state(self.absent, here) == "absent")
            and (self.closed is None or _state(self.closed, here) == "closed")
        )


def missing_libraries(advice: Iterable[Advice]) -> list[str]:
    """Those of the libraries that `advice` is about, on this system, that cannot be loaded.

    Loading one runs its code: ask in a process that may die.
    """
    names = {
        each.library
        for each in advice
        if each.library is not None and (not each.systems or sys.platform in each.systems)
    }
    return sorted(name for name in names if not _loads(name))


def files_of_devices(root: Path = Path("/")) -> list[Path]:
    """Linux's files of GPUs and of other processors that compute, below `root`."""
    return sorted((*root.glob("dev/dri/renderD*"), *root.glob("dev/accel/accel*")))


def files_of_makers(root: Path = Path("/")) -> list[Path]:
    """Those of NVIDIA, of AMD and of Windows below its Linux, which may be there without others."""
    return [found for name in ("nvidia[0-9]*", "kfd", "dxg") for found in root.glob(f"dev/{name}")]


def _state(start: str, here: Surroundings) -> Literal["open", "absent", "closed"]:
    """Of the files of devices whose names start so."""
    found = [opens for name, opens in here.nodes.items() if name.startswith(start)]
    if here.software or any(found):
        return "open"
    return "closed" if found else "absent"


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


_GPU, _NPU = "/dev/dri/renderD", "/dev/accel/accel"
STARTS: Mapping["Kind", tuple[str, ...]] = {
    "GPU": (_GPU, "/dev/nvidia", "/dev/kfd", "/dev/dxg"),
    "NPU": (_NPU, "/dev/dxg"),
}
# What holds for every provider that reaches a device by Linux's own files.
LINUX_GPU = (
    Advice(
        "The kernel offers no GPU, as /dev/dri has no render node: load the GPU's driver; a "
        "container must be given /dev/dri.",
        kinds=("GPU",),
        systems=("linux",),
        absent=_GPU,
    ),
    Advice(
        "This user may not open the GPU: join the group of /dev/dri/renderD* (mostly render: "
        "sudo usermod -aG render $USER), and log in again.",
        kinds=("GPU",),
        systems=("linux",),
        closed=_GPU,
    ),
)
LINUX_NPU = (
    Advice(
        "The kernel offers no NPU, as there is no /dev/accel/accel0: it needs a kernel with the "
        "NPU's driver (intel_vpu from Linux 6.3, amdxdna from 6.14).",
        kinds=("NPU",),
        systems=("linux",),
        absent=_NPU,
    ),
    Advice(
        "This user may not open the NPU: join the group of /dev/accel/accel0 (mostly render: "
        "sudo usermod -aG render $USER), and log in again.",
        kinds=("NPU",),
        systems=("linux",),
        closed=_NPU,
    ),
)
