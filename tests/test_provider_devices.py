"""What a device's word and a provider's name mean on machines of every kind."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.errors import ProviderError, UsageError
from runtime.providers import PROVIDERS, Place, devices, find_word, key_of, resolve
from runtime.providers.devices import device_of
from tests.fake_devices import Machine, hardware


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("CPU", ("CPU", None)),
        ("gpu", ("GPU", None)),
        (" NPU ", ("NPU", None)),
        ("GPU:0", ("GPU", 0)),
        ("gpu:12", ("GPU", 12)),
    ],
)
def test_a_word_names_a_kind_and_perhaps_a_number(word: str, found: tuple[str, int | None]) -> None:
    assert find_word(word) == found


@pytest.mark.parametrize("word", ["", "TPU", "GPU1", "GPU:", "GPU:-1", "GPU:x", "GPU:1:2", "NPU 0"])
def test_any_other_word_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=rf"^{re.escape(repr(word))} is no device: say CPU, GPU"):
        find_word(word)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((key, key) for key in PROVIDERS),
        *((key.upper(), key) for key in PROVIDERS),
        *((provider.ep_name, key) for key, provider in PROVIDERS.items()),
        *((provider.ep_name.lower(), key) for key, provider in PROVIDERS.items()),
        ("TensorRT-RTX", "NvTensorRTRTX"),
        ("dml", "DirectML"),
    ],
)
def test_a_provider_is_found_by_any_of_its_names(name: str, key: str) -> None:
    assert key_of("target", name) == key


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", ""),
        ("GPU", ": it is a device, not a provider"),
        ("OpenVNO", "; the nearest is OpenVINO"),
        ("qn", "; the nearest is QNN"),
    ],
)
def test_an_unknown_provider_is_refused_with_those_there_are(name: str, hint: str) -> None:
    message = (
        f"The draft was asked for on the execution provider {name!r}, which is not known{hint}. "
        f"Known are {', '.join(PROVIDERS)}."
    )
    with pytest.raises(UsageError, match=re.escape(message)):
        key_of("draft", name)


def snapdragon(patch: pytest.MonkeyPatch) -> Machine:
    """A laptop with QNN and WebGPU installed."""
    return Machine(
        patch,
        libraries={"QNN": [hardware("NPU"), hardware("GPU")], "WebGPU": [hardware("GPU")]},
    )


def intel(patch: pytest.MonkeyPatch) -> Machine:
    """A laptop with an NPU, its own GPU and another; OpenVINO and WebGPU are installed."""
    own, card = hardware("GPU", 1), hardware("GPU", 2)
    everything = [hardware("CPU"), hardware("NPU"), own, card]
    return Machine(patch, libraries={"OpenVINO": everything, "WebGPU": [card, own]})


def emulator(patch: pytest.MonkeyPatch) -> Machine:
    """A machine without GPU and NPU, on which QNN and WebGPU play both."""
    return Machine(patch, libraries={"QNN": [hardware("CPU")], "WebGPU": [hardware("CPU")]})


def nvidia(patch: pytest.MonkeyPatch) -> Machine:
    """A desktop with onnxruntime-gpu, which lists no devices."""
    return Machine(patch, libraries={}, built_in={"CUDA": []})


@pytest.mark.parametrize(
    ("machine", "device", "provider", "place"),
    [
        (snapdragon, None, None, Place("CPU")),
        (snapdragon, "CPU", None, Place("CPU")),
        (snapdragon, "NPU", None, Place("QNN", "NPU")),
        (snapdragon, "GPU", None, Place("WebGPU", "GPU")),
        (snapdragon, "GPU", "qnn", Place("QNN", "GPU")),
        (snapdragon, None, "QNN", Place("QNN", "NPU")),
        (intel, "NPU", None, Place("OpenVINO", "NPU")),
        (intel, "GPU", None, Place("WebGPU", "GPU")),
        (intel, "GPU:0", None, Place("WebGPU", "GPU")),
        # WebGPU counts one; the other is OpenVINO's first, as numbers count a provider's own.
        (intel, "GPU:1", None, Place("OpenVINO", "GPU", 0)),
        (intel, "GPU:1", "OpenVINO", Place("OpenVINO", "GPU", 1)),
        (intel, None, "OpenVINO", Place("OpenVINO", "CPU")),
        (intel, "CPU", "OpenVINO", Place("OpenVINO", "CPU")),
        (emulator, "NPU", "QNN", Place("QNN", "NPU")),
        (emulator, None, "QNN", Place("QNN", "NPU")),
        (emulator, None, "WebGPU", Place("WebGPU", "GPU")),
        (nvidia, "GPU", None, Place("CUDA", "GPU")),
        (nvidia, "GPU:1", "CUDA", Place("CUDA", "GPU", 1)),
    ],
)
def test_the_best_provider_that_has_the_device_is_taken(
    machine: object,
    device: str | None,
    provider: str | None,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert callable(machine)
    machine(monkeypatch)
    found = resolve("target", device=device, provider=provider)
    assert found == place
    if found.provider != "CPU":
        device_of(found)


@pytest.mark.parametrize(
    ("machine", "device", "provider", "sentence"),
    [
        (
            emulator,
            "NPU",
            None,
            "QNN only emulates one, and must be named for that. OpenVINO is not installed",
        ),
        (emulator, "GPU", None, "WebGPU only emulates one, and must be"),
        (
            emulator,
            "NPU",
            None,
            "VitisAI is not in this onnxruntime. CoreML is not here: its package is for macOS only",
        ),
        (snapdragon, "NPU:1", None, "draft was asked for on NPU:1, and there is no such device"),
        (snapdragon, "CPU:1", None, "draft was asked for on CPU:1, and there is no such device"),
        (snapdragon, "GPU:1", "WebGPU", "on WebGPU GPU:1, and WebGPU finds GPU:0 on this machine"),
        (snapdragon, "CPU", "QNN", "on QNN's CPU; QNN runs on NPU and GPU"),
        (snapdragon, "GPU", "CPU", "on CPU's GPU; CPU runs on CPU"),
        (snapdragon, None, "OpenVINO", "OpenVINO is not installed: python -m pip install onnxr"),
        (
            snapdragon,
            None,
            "CUDA",
            "CUDA is not in this onnxruntime: it comes with onnxruntime-gpu",
        ),
        (nvidia, "NPU", "CUDA", "on CUDA's NPU; CUDA runs on GPU"),
    ],
)
def test_what_is_not_there_is_refused_with_the_reasons(
    machine: object,
    device: str,
    provider: str | None,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert callable(machine)
    machine(monkeypatch)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(ProviderError) as caught:
        resolve("draft", device=device, provider=provider)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".") or "pip install" in str(caught.value)
    assert not str(caught.value).endswith(". .")


def test_virtual_devices_and_other_names_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(
        monkeypatch,
        libraries={"OpenVINO": [hardware("GPU", is_virtual="1"), hardware("GPU", 7)]},
    )
    resolve("target", provider="OpenVINO", device="GPU")
    machine._list("OpenVINOExecutionProvider.AUTO", [hardware("GPU", 8)], "")
    (only,) = devices("OpenVINO")
    assert (only.kind, only.number, only.listed.device.device_id) == ("GPU", 0, 7)


def test_real_devices_come_before_emulated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, libraries={"QNN": [hardware("CPU"), hardware("NPU")]})
    assert resolve("target", device="NPU") == Place("QNN", "NPU", 0)
    assert [(each.number, each.emulated) for each in devices("QNN")] == [(0, False), (1, True)]


def test_two_of_one_make_are_told_apart_by_what_the_system_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twins = [hardware("GPU", 5, LUID="1"), hardware("GPU", 5, LUID="2")]
    Machine(monkeypatch, libraries={"OpenVINO": twins})
    assert resolve("target", device="GPU:1").number == 1
    with pytest.raises(ProviderError):
        resolve("target", device="GPU:2")


def test_a_place_keeps_what_the_user_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, libraries={"QNN": [hardware("NPU")]})
    library = tmp_path / "own.so"
    library.touch()
    place = resolve(
        "draft",
        device="NPU",
        options={"vtcm_mb": " 8 ", "enable_htp_fp16_precision": "off"},
        libraries={"QNN": library},
    )
    assert place.options == (("enable_htp_fp16_precision", "0"), ("vtcm_mb", "8"))
    assert place.library == library
    assert machine.registered == [("QNNExecutionProvider", str(library))]
    assert (str(place), place.key) == (
        "QNN on NPU",
        "QNN on NPU\nenable_htp_fp16_precision=0\nvtcm_mb=8",
    )
    assert str(Place("OpenVINO", "GPU", 1)) == "OpenVINO on GPU:1"
    assert Place("CPU").key == "CPU"
    kept = replace(place, report=print).keeping(tmp_path / "compiled", print)
    assert (kept, kept.key) == (place, place.key), "what is told does not change what is computed"
    there = Place.from_data(json.loads(json.dumps(kept.as_data())))
    assert (there, there.compiled, there.report) == (place, tmp_path / "compiled", print)
    assert Place.from_data(place.as_data()).report is None


def test_keys_that_a_provider_ignores_say_where_else(monkeypatch: pytest.MonkeyPatch) -> None:
    intel(monkeypatch)
    with pytest.raises(UsageError, match=r"OpenVINO ignores the option precision; .* load_config"):
        resolve("target", provider="OpenVINO", options={"precision": "FP16"})
