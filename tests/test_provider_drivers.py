"""The drivers that a system names: Linux's files, Vulkan's, and Windows' registry."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.providers.drivers import MODULES, NVIDIA, VULKAN, VULKAN_NAMED, drivers


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VULKAN_NAMED:
        monkeypatch.delenv(name, raising=False)


FILES = [NVIDIA, *(f"sys/module/{name}/version" for name in MODULES)]


@pytest.mark.parametrize("file", [*FILES, *(f"{folder}/radeon_icd.json" for folder in VULKAN)])
def test_a_file_that_changes_is_another_driver(file: str, tmp_path: Path) -> None:
    bare = drivers(tmp_path)
    assert len(bare) == 1
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    seen = [bare]
    for version in ("1", "2"):
        path.write_text(version, encoding="utf-8")
        seen.append(drivers(tmp_path))
        assert str(path) in seen[-1][1]
    assert seen[1] != seen[2]


def test_a_driver_that_is_named_takes_the_place_of_vulkans_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / VULKAN[0] / "own.json", tmp_path / "a.json", tmp_path / "b.json"]
    files[0].parent.mkdir(parents=True)
    for file in files:
        file.write_text("{}", encoding="utf-8")
    monkeypatch.setenv("VK_ICD_FILENAMES", f"{files[1]}:{files[2]}:{tmp_path / 'gone.json'}")
    found = drivers(tmp_path)[1:]
    assert [line.partition(": ")[0] for line in found] == [str(file) for file in files[1:]]
    monkeypatch.setenv("VK_DRIVER_FILES", str(files[2]))
    assert len(drivers(tmp_path)) == 2


def test_windows_drivers_are_in_its_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {
        r"{4d36e968-e325-11ce-bfc1-08002be10318}\0001": {"DriverDesc": "A", "DriverVersion": "3.1"},
        r"{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}\0000": {"DriverDesc": "N", "DriverVersion": "2"},
        r"{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}\0001": {"DriverDesc": "unfinished"},
    }

    def opened(_root: str, place: str) -> Any:
        found = kept.get("\\".join(place.rsplit("\\", 2)[1:]))
        if found is None:
            raise FileNotFoundError(place)
        return nullcontext(found)

    def value(key: dict[str, str], name: str) -> tuple[str, int]:
        if name not in key:
            raise FileNotFoundError(name)
        return key[name], 1

    registry = SimpleNamespace(HKEY_LOCAL_MACHINE="", OpenKey=opened, QueryValueEx=value)
    monkeypatch.setitem(sys.modules, "winreg", registry)
    assert drivers(tmp_path)[1:] == ["A 3.1", "N 2"]
