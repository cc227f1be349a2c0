"""Lists of devices as onnxruntime gives them, for machines that are not at hand."""

from dataclasses import dataclass, field
from typing import Any, Literal

import onnxruntime as ort
import pytest

from runtime.providers.table import PROVIDERS


@dataclass(frozen=True)
class FakeHardware:
    """Stands for an OrtHardwareDevice."""

    type: Any
    vendor_id: int = 0
    device_id: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    vendor: str = "Maker"


@dataclass(frozen=True)
class FakeListed:
    """Stands for an OrtEpDevice."""

    ep_name: str
    device: FakeHardware
    ep_metadata: dict[str, str] = field(default_factory=dict)


def hardware(kind: Literal["CPU", "GPU", "NPU"], number: int = 0, **metadata: str) -> FakeHardware:
    return FakeHardware(getattr(ort.OrtHardwareDeviceType, kind), 1, number, metadata)


class Machine:
    """What onnxruntime finds: `built_in` by name, and per library the devices it brings."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        *,
        libraries: dict[str, list[FakeHardware]],
        built_in: dict[str, list[FakeHardware]] | None = None,
    ) -> None:
        """`libraries` by provider, each the file `<key>.so`, of an installed package or not."""
        self.libraries = libraries
        self.registered: list[tuple[str, str]] = []
        self.listed: list[FakeListed] = []
        self.inside = [PROVIDERS[key].ep_name for key in built_in or {}]
        for key, found in (built_in or {}).items():
            self._list(PROVIDERS[key].ep_name, found, "")
        patch.setattr(ort, "get_ep_devices", lambda: list(self.listed))
        patch.setattr(
            ort, "get_available_providers", lambda: [*self.inside, "CPUExecutionProvider"]
        )
        patch.setattr(ort, "register_execution_provider_library", self._register)
        patch.setattr("runtime.providers.libraries.importlib.import_module", self._package)

    def _list(self, ep_name: str, found: list[FakeHardware], path: str) -> None:
        metadata = {"version": "1.2"} | ({"library_path": path} if path else {})
        self.listed += [FakeListed(ep_name, each, metadata) for each in found]

    def _register(self, ep_name: str, path: str) -> None:
        if any(ep_name == name for name, _ in self.registered):
            raise RuntimeError(f"EP library is already registered under {ep_name}")
        self.registered.append((ep_name, path))
        key = next(key for key, provider in PROVIDERS.items() if provider.ep_name == ep_name)
        self._list(ep_name, self.libraries[key], path)

    def _package(self, name: str) -> Any:
        key = next(key for key, provider in PROVIDERS.items() if provider.package == name)
        if key not in self.libraries:
            raise ModuleNotFoundError(f"No module named {name!r}")

        class Package:
            @staticmethod
            def get_library_path() -> str:
                return f"/packages/{key}.so"

        return Package
