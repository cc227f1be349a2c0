"""When a provider's advice holds, and what of the machine decides that."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from runtime.providers import KINDS, PROVIDERS, Surroundings, files_of_devices, missing_libraries
from runtime.providers.advice import LINUX_GPU, Advice

HERE = Surroundings(
    "linux",
    "x86_64",
    frozenset({"HOME"}),
    {"/dev/dri/renderD128": True, "/dev/accel/accel0": False},
    frozenset({"libvulkan.so.1"}),
)


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({}, True),
        ({"kinds": ("GPU", "NPU")}, True),
        ({"kinds": ("NPU",)}, False),
        ({"systems": ("win32", "linux")}, True),
        ({"systems": ("win32",)}, False),
        ({"processors": ("x86_64",)}, True),
        ({"processors": ("arm64",)}, False),
        ({"said": "(?i)No Adapter"}, True),
        ({"said": "compiler"}, False),
        ({"unset": "VK_ICD_FILENAMES"}, True),
        ({"unset": "HOME"}, False),
        ({"library": "libvulkan.so.1"}, True),
        ({"library": "libcuda.so.1"}, False),
        ({"absent": "/dev/kfd"}, True),
        ({"absent": "/dev/dri/renderD"}, False),
        ({"absent": "/dev/accel/accel"}, False),
        ({"closed": "/dev/kfd"}, False),
        ({"closed": "/dev/dri/renderD"}, False),
        ({"closed": "/dev/accel/accel"}, True),
        ({"kinds": ("GPU",), "library": "libvulkan.so.1", "systems": ("win32",)}, False),
    ],
)
def test_all_that_is_named_must_be_so(conditions: dict[str, object], holds: bool) -> None:  # noqa: FBT001
    advice = dataclasses.replace(Advice("Do it."), **conditions)  # type: ignore[arg-type]
    assert advice.holds("GPU", "there is no adapter", HERE) is holds


def test_a_device_that_software_plays_needs_no_file() -> None:
    bare = dataclasses.replace(HERE, nodes={})
    assert [advice.holds("GPU", "", bare) for advice in LINUX_GPU] == [True, False]
    played = dataclasses.replace(bare, software=True)
    assert [advice.holds("GPU", "", played) for advice in LINUX_GPU] == [False, False]


def test_libraries_of_other_systems_are_not_tried() -> None:
    advice = (
        Advice("", library="libc.so.6", systems=("linux",)),
        Advice("", library="libnothing-at-all.so.9", systems=(sys.platform,)),
        Advice("", library="libelsewhere.so.1", systems=("plan9",)),
    )
    missing = missing_libraries(advice)
    assert [name for name in missing if name != "libc.so.6"] == ["libnothing-at-all.so.9"]
    if sys.platform == "linux":
        assert "libc.so.6" not in missing


def test_the_kernels_files_of_devices_are_found(tmp_path: Path) -> None:
    for name in ("dri/renderD128", "dri/card0", "accel/accel0"):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    assert [file.name for file in files_of_devices(tmp_path)] == ["accel0", "renderD128"]


@pytest.mark.parametrize("key", PROVIDERS)
def test_every_advice_can_hold_and_says_what_to_do(key: str) -> None:
    for advice in PROVIDERS[key].advice:
        re.compile(advice.said)
        assert advice.text.endswith(".")
        assert set(advice.kinds) <= set(KINDS)
        assert not advice.kinds or set(advice.kinds) & set(PROVIDERS[key].devices)
