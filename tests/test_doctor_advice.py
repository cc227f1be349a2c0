"""What helps, and which flags would work."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.doctor_advice import best_pair, is_installed, of_listing, of_role
from runtime.doctor_roles import RoleCheck
from runtime.manifest import Precision, RoleName
from runtime.providers import PROVIDERS, Place, Surroundings
from tests.fake_doctor import device, listed

HERE = Surroundings("linux", "x86_64")
NOTHING: dict[str, Any] = dict.fromkeys(("device", "execution_provider", "provider_options"))


def machine(**devices: list[dict[str, Any]]) -> dict[str, Any]:
    """Every provider, those with devices installed; each device computed right unless it says."""
    found: dict[str, Any] = {
        key: listed(reason=f"No {key}.", version=None) | {"devices": []} for key in PROVIDERS
    }
    for key, own in devices.items():
        found[key] = listed(*({"smoke": {"verdict": "right"}} | each for each in own))
    return found


def failing(kind: str, reason: str = "It died.") -> dict[str, Any]:
    return device(kind) | {"smoke": {"verdict": "failed", "reason": reason}}


def takes_all(_role: RoleName, _place: Place, _precision: Precision | None) -> bool:
    return True


GPU, NPU = device("GPU"), device("NPU")


@pytest.mark.parametrize(
    ("devices", "best"),
    [
        ({}, ""),
        ({"WebGPU": [GPU]}, "--device GPU"),
        ({"QNN": [NPU]}, "--draft-device NPU"),
        ({"WebGPU": [GPU], "QNN": [NPU]}, "--device GPU --draft-device NPU"),
        ({"OpenVINO": [GPU, NPU]}, "--device GPU --draft-device NPU"),
        # The word would mean the one that fails.
        ({"WebGPU": [failing("GPU")], "OpenVINO": [GPU]}, "--device GPU -e OpenVINO"),
        (
            {"QNN": [failing("NPU")], "OpenVINO": [NPU]},
            "--draft-device NPU --draft-execution-provider OpenVINO",
        ),
        ({"WebGPU": [device("GPU", emulated=True)], "QNN": [NPU]}, "--draft-device NPU"),
        ({"CUDA": [device("GPU", 1)]}, ""),
        ({"OpenVINO": [device("CPU")]}, ""),
    ],
)
def test_the_best_pair_is_of_real_devices_that_compute_right(
    devices: dict[str, list[dict[str, Any]]], best: str
) -> None:
    assert best_pair(machine(**devices), takes_all) == best


def test_a_graph_must_be_there() -> None:
    both = machine(WebGPU=[GPU], OpenVINO=[GPU], QNN=[NPU])
    assert best_pair(both, lambda role, *_: role == "target") == "--device GPU"
    assert best_pair(both, lambda _, place, __: place.provider == "OpenVINO") == (
        "--device GPU -e OpenVINO"
    )
    only_draft = machine(WebGPU=[GPU])
    assert best_pair(only_draft, lambda role, *_: role == "draft") == "--draft-device GPU"


def test_devices_that_software_plays_are_named_with_their_provider() -> None:
    played = {"WebGPU": [device("GPU", emulated=True)], "QNN": [device("NPU", emulated=True)]}
    assert best_pair(machine(**played), takes_all, emulated=True) == (
        "--device GPU -e WebGPU --draft-device NPU --draft-execution-provider QNN"
    )
    assert best_pair(machine(**played), takes_all) == ""


def test_a_gpu_without_float16_gets_another_precision() -> None:
    bare = {"smoke": {"verdict": "right", "float16": False}}
    played = {
        "WebGPU": [device("GPU", emulated=True) | bare],
        "QNN": [device("NPU", emulated=True)],
    }
    assert best_pair(machine(**played), takes_all, emulated=True) == (
        "--device GPU -e WebGPU --precision fp32 --draft-device NPU --draft-execution-provider QNN"
    )
    real = machine(WebGPU=[GPU | bare])
    assert best_pair(real, takes_all) == "--device GPU --precision fp32"
    assert best_pair(real, lambda *asked: asked[2] != "fp32") == ""


def test_an_installed_provider_without_a_device_is_helped() -> None:
    found = listed(missing=["libvulkan.so.1"])
    texts = of_listing("WebGPU", found, HERE)
    assert any("libvulkan.so.1 cannot be loaded" in text for text in texts)
    assert any("/dev/dri has no render node" in text for text in texts)
    assert any("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1" in text for text in texts)
    absent = machine()["WebGPU"]
    assert not is_installed(absent)
    assert of_listing("WebGPU", absent, HERE) == []
    good = machine(WebGPU=[GPU])["WebGPU"]
    assert of_listing("WebGPU", good, HERE) == []


def test_a_device_that_fails_is_helped_by_what_was_said() -> None:
    played = failing("GPU", "Failed: No supported adapters") | {"emulated": True}
    (text,) = (
        text for text in of_listing("WebGPU", listed(played), HERE) if "ALLOW_SOFTWARE" not in text
    )
    assert "Vulkan finds no device that suits WebGPU" in text


def role(**changes: Any) -> RoleCheck:
    settings: dict[str, Any] = {"role": "draft", "named": True, "reason": "It cannot run."}
    return RoleCheck(**settings | changes)


def test_a_word_without_a_device_says_what_to_install() -> None:
    providers = machine()
    providers["OpenVINO"] = listed(missing=["libze_loader.so.1"])
    texts = of_role(role(), NOTHING | {"device": "NPU"}, providers, HERE)
    assert 'QNN: python -m pip install onnxruntime-qnn, the extra "qnn" of this package' in texts
    assert any("libze_loader.so.1 cannot be loaded" in text for text in texts)
    assert not any("libOpenCL" in text for text in texts), "that is for GPUs"
    assert not any("onnxruntime-ep-openvino" in text for text in texts), "it is here"
    assert of_role(role(reason=None), NOTHING, providers, HERE) == []


def test_a_named_provider_alone_is_helped() -> None:
    asked, windows = NOTHING | {"execution_provider": "dml"}, Surroundings("win32", "amd64")
    assert of_role(role(), asked, machine(), HERE) == [], "it is for Windows, as the error says"
    assert of_role(role(), asked, machine(), windows) == [
        'DirectML: python -m pip install onnxruntime-directml, the extra "directml" of this '
        "package; uninstall onnxruntime before"
    ]


def test_nothing_is_to_be_installed_for_a_device_that_is_not_there() -> None:
    asked = NOTHING | {"device": "GPU"}
    texts = of_role(role(), asked, machine(), HERE)
    assert [text.partition(":")[0] for text in texts] == ["WebGPU", "The kernel offers no GPU"]
    assert texts[1].endswith(": CUDA, NvTensorRTRTX, OpenVINO, MIGraphX, QNN would find none.")
    for file in ("/dev/nvidia0", "/dev/dri/renderD128", "/dev/dxg"):
        texts = of_role(role(), asked, machine(), replace(HERE, nodes={file: True}))
        assert any("pip install onnxruntime-gpu" in text for text in texts)
        assert not any("kernel" in text for text in texts)


def test_a_place_that_was_found_is_helped_by_its_provider() -> None:
    own = role(
        place=Place("QNN", "NPU"), emulated=True, reason="Not done after 55 s, the time limit."
    )
    texts = of_role(own, NOTHING, machine(QNN=[NPU]), HERE)
    assert texts[-1] == "Give it longer: --time-limit 600."
    assert any("only emulates their NPU" in text for text in texts)
    arm = Surroundings("linux", "aarch64")
    assert not any("emulates" in text for text in of_role(own, NOTHING, machine(QNN=[NPU]), arm))
