"""Where a provider's library comes from: onnxruntime itself, a file, a package or Windows."""

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

from runtime.errors import ProviderError
from runtime.providers import PROVIDERS, libraries, register, version
from runtime.providers.libraries import _windows_library, build_of
from tests.fake_devices import Machine, hardware

ROOT = Path(__file__).resolve().parent.parent


def test_a_library_is_registered_once_and_what_is_built_in_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(
        monkeypatch, libraries={"QNN": [hardware("NPU")], "WebGPU": []}, built_in={"CUDA": []}
    )
    for _ in range(2):
        for key in ("QNN", "WebGPU", "CUDA", "CPU"):  # one of which finds no device
            register(key)
    assert machine.registered == [
        ("QNNExecutionProvider", "/packages/QNN.so"),
        ("WebGpuExecutionProvider", "/packages/WebGPU.so"),
    ]
    assert (version("QNN"), version("CPU")) == ("1.2", ort.__version__)


def test_a_package_knows_its_version_better_than_its_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """QNN's calls itself 0.1.0 in every release; what was compiled must not outlive one."""
    machine = Machine(monkeypatch, libraries={"QNN": [hardware("NPU")]})
    register("QNN")

    def distribution(name: str) -> Any:
        assert name == "onnxruntime-qnn"
        return SimpleNamespace(version="2.7.0", locate_file=lambda part: folder / part)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    folder = tmp_path
    assert version("QNN") == "1.2"
    folder = Path("/")
    monkeypatch.setattr(
        machine,
        "listed",
        [
            replace(
                machine.listed[0],
                ep_metadata={"version": "1.2", "library_path": "/onnxruntime_qnn/own.so"},
            )
        ],
    )
    assert version("QNN") == "2.7.0"


def test_a_build_is_a_library_under_an_onnxruntime(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Machine(monkeypatch, libraries={"QNN": [hardware("NPU")]})
    own = tmp_path / "own.so"
    own.write_bytes(b"one")
    register("QNN", own)
    first = build_of("QNN")
    assert re.fullmatch(rf"1\.2 \([0-9a-f]{{12}}\) under onnxruntime {ort.__version__}", first)
    own.write_bytes(b"two")
    assert build_of("QNN") != first
    assert build_of("CPU") == f"{ort.__version__} under onnxruntime {ort.__version__}"


def test_a_process_takes_one_library_of_a_provider(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, libraries={"QNN": [hardware("NPU")]})
    own, other = tmp_path / "own.so", tmp_path / "other.so"
    own.touch()
    with pytest.raises(ProviderError, match=r"The library of QNN, .*other\.so, is no file"):
        register("QNN", other)
    register("QNN", own)
    register("QNN", tmp_path / "." / "own.so")
    register("QNN")
    other.touch()
    with pytest.raises(ProviderError, match=r"QNN runs from .*own\.so in this process already, "):
        register("QNN", other)
    assert machine.registered == [("QNNExecutionProvider", str(own))]


def test_a_missing_package_names_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, libraries={})
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    written = str(extras["optional-dependencies"])
    for key in ("QNN", "OpenVINO", "WebGPU"):
        with pytest.raises(ProviderError) as caught:
            register(key)
        distribution = PROVIDERS[key].distribution
        assert str(caught.value) == f"{key} is not installed: python -m pip install {distribution}"
        assert f"'{distribution}>=" in written
        assert key.lower() in extras["optional-dependencies"]
    for key, extra in (("CUDA", "cuda"), ("DirectML", "directml")):
        monkeypatch.setattr(sys, "platform", PROVIDERS[key].systems[-1])
        with pytest.raises(ProviderError, match=f"comes with {PROVIDERS[key].built_in}, or from a"):
            register(key)
        (requirement,) = extras["optional-dependencies"][extra]
        assert requirement.startswith(f"{PROVIDERS[key].built_in}>=")


@pytest.mark.parametrize(
    ("system", "key", "message"),
    [
        ("linux", "DirectML", "DirectML is not here: its package is for Windows only."),
        ("darwin", "QNN", "QNN is not here: its package is for Linux and Windows only."),
        ("win32", "MIGraphX", "for Linux only, and Windows ML has it not on this machine."),
        ("linux", "MIGraphX", "it comes with onnxruntime-migraphx, from AMD, or from a library"),
        ("darwin", "WebGPU", "WebGPU is not installed: python -m pip install"),
    ],
)
@pytest.mark.usefixtures("fresh_catalogue")
def test_what_is_for_another_system_is_not_to_be_installed(
    system: str, key: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, libraries={})
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(libraries, "_catalogue", cache(lambda: catalogue().EpCatalog()))
    with pytest.raises(ProviderError, match=re.escape(message)):
        register(key)


def test_a_library_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_name: str, _path: str) -> None:
        raise RuntimeError("needs version 27 of the API\nand more")

    Machine(monkeypatch, libraries={"OpenVINO": []})
    monkeypatch.setattr(ort, "register_execution_provider_library", failing)
    with pytest.raises(
        ProviderError, match=r"OpenVINO cannot be loaded: needs version 27 .*API\.$"
    ):
        register("OpenVINO")


def test_onnxruntime_warns_of_nothing_while_a_library_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, libraries={"QNN": [hardware("NPU")], "OpenVINO": []})
    levels: list[int] = []
    monkeypatch.setattr(ort, "set_default_logger_severity", levels.append)
    own = machine._register

    def registered(name: str, path: str) -> None:
        assert levels[-1] == 3
        if name.startswith("OpenVINO"):
            raise RuntimeError("no")
        own(name, path)

    monkeypatch.setattr(ort, "register_execution_provider_library", registered)
    register("QNN")
    with pytest.raises(ProviderError):
        register("OpenVINO")
    assert levels == [3, 2, 3, 2]


def test_a_package_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def get_library_path() -> str:
            raise OSError("its files are gone")

    Machine(monkeypatch, libraries={})
    monkeypatch.setattr(importlib, "import_module", lambda _name: Broken)
    with pytest.raises(ProviderError, match=r"QNN cannot be loaded: its files are gone\.$"):
        register("QNN")


@pytest.fixture
def fresh_catalogue() -> Iterator[None]:
    libraries._catalogue.cache_clear()
    yield
    libraries._catalogue.cache_clear()


def catalogue(*found: Any) -> Any:
    """A module like windowsml, whose catalogue has these providers."""

    class EpCatalog:
        def find_all_providers(self) -> list[Any]:
            return list(found)

    return SimpleNamespace(EpCatalog=EpCatalog)


def entry(name: str, state: str, path: str, made_ready: list[str]) -> Any:
    return SimpleNamespace(
        name=name,
        ready_state=SimpleNamespace(name=state),
        library_path=path,
        ensure_ready=lambda: made_ready.append(name),
    )


@pytest.mark.usefixtures("fresh_catalogue")
def test_windows_is_asked_for_what_it_has_and_fetches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_ready: list[str] = []
    found = catalogue(
        entry("VitisAIExecutionProvider", "NotReady", "C:/vitis.dll", made_ready),
        entry("QNNExecutionProvider", "NotPresent", "", made_ready),
        entry("MIGraphXExecutionProvider", "Ready", "", made_ready),
    )
    monkeypatch.setattr(importlib, "import_module", lambda _name: found)
    assert _windows_library("VitisAIExecutionProvider") == "C:/vitis.dll"
    assert _windows_library("QNNExecutionProvider") is None
    assert _windows_library("MIGraphXExecutionProvider") is None
    assert _windows_library("OpenVINOExecutionProvider") is None
    assert made_ready == ["VitisAIExecutionProvider", "MIGraphXExecutionProvider"]


@pytest.mark.usefixtures("fresh_catalogue")
def test_a_windows_without_a_catalogue_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_name: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr(importlib, "import_module", absent)
    assert _windows_library("QNNExecutionProvider") is None
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ProviderError, match="VitisAI is not in this onnxruntime"):
        register("VitisAI")
