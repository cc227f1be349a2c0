"""What is tried in child processes, and what becomes of those that end badly."""

import threading
from pathlib import Path
from typing import Any

import pytest

from runtime.doctor_tries import Tries
from runtime.errors import LateError, ProviderError, UsageError
from runtime.manifest import Manifest
from runtime.providers import PROVIDERS, Place
from tests.fake_doctor import FakeTasks, device, listed, place


def tries(tasks: FakeTasks, said: list[str], **libraries: Path) -> Tries:
    return tasks.tries(said.append, libraries, 55.0)


def test_a_library_that_may_kill_is_listed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"onnxruntime_qnn"}
    monkeypatch.setattr(
        "runtime.doctor_tries.find_spec", lambda name: name if name in installed else None
    )
    killed = ProviderError("Listing QNN ended the process that tried it, by SIGSEGV.")
    tasks = FakeTasks({"CPU": listed(device("CPU")), "QNN": killed, "CUDA": listed()})
    said: list[str] = []
    found = tries(tasks, said, CUDA=Path("/there/cuda.so")).providers()
    groups = [dict(request["libraries"]) for _, request in tasks.asked]
    assert [len(group) for group in groups] == [len(PROVIDERS) - 2, 1, 1]
    assert groups[1:] == [{"QNN": None}, {"CUDA": "/there/cuda.so"}]
    assert list(found) == list(PROVIDERS)
    assert found["QNN"]["reason"] == str(killed)
    assert (found["QNN"]["devices"], found["QNN"]["version"]) == ((), None)
    assert found["CPU"]["devices"] == [device("CPU")]
    assert found["WebGPU"]["reason"] == "No WebGPU here."
    assert "Asking QNN for devices." in said


def test_a_small_graph_is_right_or_wrong_or_fails() -> None:
    wrong = {"largest_difference": 0.2, "spread": 0.3, "right": False, "seconds": 0.1}
    died = ProviderError("It ended the process, by SIGABRT.")
    own = tries(FakeTasks(smoke={"OpenVINO": wrong, "QNN": died}), [])
    found = {key: own.smoke(Place(key)) for key in ("CPU", "OpenVINO", "QNN")}
    assert [each["verdict"] for each in found.values()] == ["right", "wrong", "failed"]
    assert found["QNN"]["reason"] == str(died)
    assert found["QNN"]["spread"] is None
    assert found["OpenVINO"]["largest_difference"] == 0.2
    assert set(found["CPU"]) == set(found["OpenVINO"]) == set(found["QNN"])


@pytest.mark.parametrize(
    ("answer", "has"),
    [(True, True), (False, False), (ProviderError("Died."), False), (LateError("Late."), None)],
)
def test_a_gpu_is_asked_for_float16(answer: object, has: bool | None) -> None:  # noqa: FBT001
    own = tries(FakeTasks(halves={"WebGPU": answer, "QNN": answer}), [])
    assert own.smoke(Place("WebGPU", "GPU"))["float16"] is has
    assert own.smoke(Place("QNN", "NPU"))["float16"] is None, "that has int8"


def test_a_long_step_gives_signs_of_life(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.doctor_tries.ALIVE_S", 0.001)
    said: list[str] = []
    alive = threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        if " so far" in text:
            alive.set()

    def slow(*_: Any, **__: Any) -> Any:
        assert alive.wait(20)
        alive.clear()
        return {"nodes": {}}

    manifest = Manifest.load(tiny_bundle)
    graph = manifest.target.graphs["portable-fp32"]
    own = Tries(tell, {}, 55.0, slow, slow)
    own.nodes(manifest, "target", graph, Place("CPU"))
    assert said[1].startswith("  … Loading target/fp32/portable")
    said.clear()
    own.trial(manifest, "target", graph, Place("CPU"))
    assert said[1].startswith("  … Trying target/fp32/portable")


def test_a_place_is_found_with_what_it_is_told() -> None:
    answers = {
        "target": place("QNN", "NPU", emulated=True, options=[["vtcm_mb", "8"]], library="/q.so"),
        "draft": {"usage": "The draft's option is wrong."},
    }
    tasks, said = FakeTasks(places=answers), [""]
    own = tries(tasks, said, QNN=Path("/q.so"))
    own_flags = {"device": "NPU", "execution_provider": "QNN", "provider_options": {"vtcm_mb": "8"}}
    asked: dict[str, dict[str, Any]] = {"target": own_flags, "draft": dict.fromkeys(own_flags)}
    found, emulated = own.place("target", asked, report=said.append)
    assert (found.provider, found.kind, found.options) == ("QNN", "NPU", (("vtcm_mb", "8"),))
    assert (found.library, emulated, found.report) == (Path("/q.so"), True, said.append)
    assert tasks.asked[0][1]["libraries"] == {"QNN": "/q.so"}
    with pytest.raises(UsageError, match="option is wrong"):
        own.place("draft", asked, report=None)
