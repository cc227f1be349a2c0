"""What the system tells of the machine, from files as Linux has them."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from runtime.doctor_machine import examine, surroundings

linux = pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux's")


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_machine_is_described() -> None:
    found = examine()
    assert found["cores"] >= 1
    assert found["onnxruntime"]
    assert "CPUExecutionProvider" in found["built_in"]
    if found["memory_bytes"] is not None and found["available_bytes"] is not None:
        assert 0 < found["available_bytes"] <= found["memory_bytes"]


@linux
def test_a_gpu_and_an_npu_are_told_with_their_drivers(tmp_path: Path) -> None:
    write(tmp_path / "dev/dri/renderD128")
    write(tmp_path / "dev/accel/accel0").chmod(0o600)
    gpu = tmp_path / "sys/class/drm/renderD128/device"
    write(gpu / "vendor", "0x1002\n")
    write(gpu / "device", "0x1586\n")
    write(gpu / "mem_info_vram_total", "8589934592\n")
    (tmp_path / "sys/bus/amdgpu").mkdir(parents=True)
    (gpu / "driver").symlink_to(tmp_path / "sys/bus/amdgpu")
    write(tmp_path / "sys/module/amdgpu/version", "6.14\n")
    write(tmp_path / "sys/class/accel/accel0/device/vendor", "0xbeef\n")
    accel, render = examine(tmp_path)["devices"]
    assert render == {
        "file": str(tmp_path / "dev/dri/renderD128"),
        "opens": True,
        "vendor": "AMD",
        "device": "0x1586",
        "driver": "amdgpu",
        "driver_version": "6.14",
        "memory_bytes": 8589934592,
    }
    assert (accel["vendor"], accel["driver"], accel["memory_bytes"]) == ("0xbeef", None, None)
    assert examine(tmp_path / "nothing")["devices"] == []


@linux
def test_files_that_this_user_may_not_open_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "dev/dri/renderD128")
    monkeypatch.setattr("os.access", lambda *_: False)
    found = surroundings({"HOME": "/", "DISPLAY": ""}, frozenset({"libx.so"}), tmp_path)
    card = write(tmp_path / "dev/nvidia0")
    write(tmp_path / "dev/nvidiactl")
    assert found.nodes == {f"/{file.relative_to(tmp_path)}": False}
    found = surroundings({"HOME": "/", "DISPLAY": ""}, frozenset({"libx.so"}), tmp_path)
    assert found.nodes == {f"/{each.relative_to(tmp_path)}": False for each in (file, card)}
    assert found.variables == {"HOME", "DISPLAY"}
    assert (found.system, found.missing) == (sys.platform, frozenset({"libx.so"}))


def test_builds_of_onnxruntime_that_overwrite_each_other_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.0"}

    def version(name: str) -> str:
        if name not in here:
            raise importlib.metadata.PackageNotFoundError(name)
        return here[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    assert examine()["onnxruntime_packages"] == ["onnxruntime 1.32.0", "onnxruntime-gpu 1.31.0"]
