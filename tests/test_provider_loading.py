"""A session runs where it was asked to, or an error lists what does not."""

import dataclasses
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import onnxruntime as ort
import pytest

from runtime.errors import BundleError, ProviderError
from runtime.providers import PROVIDERS, Place, as_place, load, strays, takes, told_options
from runtime.providers.devices import Device, device_of
from tests.fake_devices import Machine, hardware


class FakeSession:
    """Stands for a session some of whose nodes the provider left to the CPU.

    As onnxruntime's own it is refused for that where a setting forbids it.
    """

    left: ClassVar[tuple[str, ...]] = ()
    opened: ClassVar[list["FakeSession"]] = []

    def __init__(self, path: str, options: Any, *, providers: Any) -> None:
        self.options, self.providers = options, providers
        self.fallback = True
        strict = entry(options, "session.disable_cpu_ep_fallback") == "1"
        if strict and self.left:
            raise RuntimeError(
                "This session contains graph nodes that are assigned to the default CPU EP, but "
                "fallback to CPU EP has been explicitly disabled by the user."
            )
        type(self).opened.append(self)

    def disable_fallback(self) -> None:
        self.fallback = False

    def get_provider_graph_assignment_info(self) -> list[Any]:
        assert entry(self.options, "session.record_ep_graph_assignment_info") == "1"

        def part(name: str, kinds: tuple[str, ...]) -> Any:
            nodes = [SimpleNamespace(op_type=kind) for kind in kinds]
            return SimpleNamespace(ep_name=name, get_nodes=lambda: nodes)

        parts = [part("DmlExecutionProvider", ("MatMul",))]
        return parts + ([part("CPUExecutionProvider", self.left)] if self.left else [])

    def run(self, *_arguments: Any) -> str:
        return "run"

    def run_with_iobinding(self, *_arguments: Any) -> str:
        return "bound"


def entry(options: Any, name: str) -> str | None:
    try:
        return str(options.get_session_config_entry(name))
    except RuntimeError:
        return None


@pytest.fixture
def directml(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    """A machine with onnxruntime-directml, which lists no devices, and sessions on it."""
    Machine(monkeypatch, libraries={}, built_in={"DirectML": []})
    monkeypatch.setattr(FakeSession, "left", ())
    monkeypatch.setattr(FakeSession, "opened", [])
    monkeypatch.setattr(ort, "InferenceSession", FakeSession)
    return FakeSession


def test_a_provider_is_told_its_device_and_options_and_may_not_fall_back(
    directml: type[FakeSession],
) -> None:
    place = Place("DirectML", "GPU", 1, (("disable_metacommands", "1"),))
    load(Path("graph.onnx"), threads=1, name=place)
    (session,) = directml.opened
    told = {"device_id": "1", "disable_metacommands": "1"}
    assert session.providers == [("DmlExecutionProvider", told)]
    assert entry(session.options, "session.disable_cpu_ep_fallback") == "1"
    assert session.fallback is False
    assert session.options.enable_mem_pattern is False


def test_operators_elsewhere_are_an_error_that_lists_them(
    directml: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directml, "left", ("Gather", "Cast", "Gather"))
    with pytest.raises(ProviderError) as caught:
        load(Path("graph.onnx"), threads=1, name="DirectML")
    assert str(caught.value) == (
        "graph.onnx was to run on DirectML on GPU, but onnxruntime put operators elsewhere "
        "(CPUExecutionProvider: 1 Cast, 2 Gather). --allow-cpu-fallback (allow_cpu_fallback in a "
        "program) lets them run there."
    )


def test_a_report_takes_the_place_of_the_error(
    directml: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    place = Place("DirectML", "GPU", report=said.append)
    load(Path("graph.onnx"), threads=1, name=place)
    assert said == []
    monkeypatch.setattr(directml, "left", ("Gather",))
    session = load(Path("graph.onnx"), threads=1, name=place)
    assert said == [
        "graph.onnx runs on DirectML on GPU, except for CPUExecutionProvider: 1 Gather."
    ]
    assert strays(session, place) == {"CPUExecutionProvider": Counter(Gather=1)}
    assert session.fallback is False, "what fails while it runs does not move to the CPU"


@pytest.mark.usefixtures("directml")
def test_other_errors_are_the_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_arguments: Any, **_named: Any) -> None:
        raise RuntimeError("no such thing\nand more")

    monkeypatch.setattr(ort, "InferenceSession", failing)
    with pytest.raises(
        BundleError,
        match=r"graph\.onnx cannot be loaded on DirectML on GPU: no such thing and more; ask mir",
    ):
        load(Path("graph.onnx"), threads=1, name="DirectML")
    place = Place("DirectML", "GPU", options=(("device_filter", "gpu"),))
    with pytest.raises(BundleError, match=r"and more; leave out device_filter, ask mirror-"):
        load(Path("graph.onnx"), threads=1, name=place)


def test_what_is_printed_while_a_real_device_loads_stays_an_answer(
    directml: type[FakeSession], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another thread's text; of software that plays a device see test_qnn.py."""
    make = directml.__init__

    def making(*arguments: Any, **named: Any) -> None:
        os.write(1, b"text")
        make(*arguments, **named)

    monkeypatch.setattr(directml, "__init__", making)
    load(Path("graph.onnx"), threads=1, name="DirectML")
    assert capfd.readouterr() == ("text", "")


def listed(key: str, kind: Any, *, emulated: bool = False) -> Device:
    return Device(key, kind, 0, emulated=emulated, listed=hardware("CPU"), hardware=None)


def test_what_a_provider_is_told() -> None:
    def told(place: Place, *, emulated: bool = False) -> dict[str, str]:
        return told_options(place, listed(place.provider, place.kind, emulated=emulated), 2)

    own = {"backend_type": "htp", "offload_graph_io_quantization": "0"}
    assert told(Place("QNN", "NPU")) == own
    assert told(Place("QNN", "NPU"), emulated=True) == {**own, "soc_model": "60"}
    asked = (("offload_graph_io_quantization", "1"), ("soc_model", "87"))
    assert told(Place("QNN", "NPU", 0, asked), emulated=True) == {**own, **dict(asked)}
    assert told(Place("QNN", "GPU"))["backend_type"] == "gpu"
    # QNN refuses both a backend's kind and its file.
    file = (("backend_path", "libQnnHtp.so"),)
    assert told(Place("QNN", "NPU", 0, file)) == {
        "backend_path": "libQnnHtp.so", "offload_graph_io_quantization": "0",
    }  # fmt: skip
    assert told(Place("WebGPU", "GPU")) == {}
    assert told(Place("CUDA", "GPU")) == {"use_tf32": "0"}
    assert told(Place("CoreML", "NPU"))["MLComputeUnits"] == "CPUAndNeuralEngine"


@pytest.mark.parametrize("key", PROVIDERS)
def test_a_key_alone_means_the_first_kind_of_device(key: str) -> None:
    place = as_place(key)
    assert place == Place(key, next(iter(PROVIDERS[key].devices)))
    assert as_place(place) is place
    assert takes(key) == PROVIDERS[key].devices[place.kind]


def test_a_place_whose_device_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, libraries={"QNN": [hardware("NPU")]})
    assert device_of(Place("QNN", "NPU")).listed.ep_name == "QNNExecutionProvider"
    with pytest.raises(ProviderError, match="QNN on GPU: QNN finds no such device"):
        device_of(Place("QNN", "GPU"))
    moved = dataclasses.replace(Place("QNN", "NPU"), number=1)
    with pytest.raises(ProviderError, match="QNN on NPU:1: QNN finds no such device"):
        load(Path("graph.onnx"), threads=1, name=moved)
