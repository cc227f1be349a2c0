"""The tasks that a child process does, done here."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import providers
from runtime.doctor_child import TASKS
from runtime.errors import BundleError, ProviderError
from runtime.locate import module_command
from runtime.providers import PROVIDERS, Place
from tests.fake_devices import Machine, hardware

CPU = Place("CPU").as_data()


def graph(bundle: Path, **changes: Any) -> dict[str, Any]:
    """A request about a graph of the target on the CPU."""
    return {**CPU, "bundle": str(bundle), "role": "target", "graph": "portable-fp32"} | changes


def test_providers_are_listed_with_what_onnxruntime_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = hardware("NPU", 7, DriverVersion="32.0.1", Description="Hexagon")
    Machine(monkeypatch, libraries={"QNN": [hardware("CPU"), npu], "OpenVINO": []})
    found = TASKS["listing"]({"libraries": {"QNN": None, "OpenVINO": None, "CUDA": None}})
    real, played = found["QNN"]["devices"]
    assert (real["kind"], real["number"], real["emulated"]) == ("NPU", 0, False)
    assert (real["name"], real["driver"], real["device_id"]) == ("Hexagon", "32.0.1", 7)
    assert (played["number"], played["emulated"], played["driver"]) == (1, True, None)
    assert (found["QNN"]["version"], found["QNN"]["library"]) == ("1.2", "/packages/QNN.so")
    assert found["OpenVINO"]["reason"] == "OpenVINO finds no device of its own on this machine."
    assert "CUDA is not in this onnxruntime" in found["CUDA"]["reason"]
    assert "devices" not in found["CUDA"]
    assert all(isinstance(each["missing"], list) for each in found.values())


def test_a_place_or_the_flag_that_cannot_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, libraries={"QNN": [hardware("CPU")]})
    asked: dict[str, Any] = {"device": None, "execution_provider": "qnn", "provider_options": None}
    other = dict.fromkeys(asked)
    request: dict[str, Any] = {
        "role": "draft",
        "asked": {"draft": asked, "target": other},
        "libraries": {},
    }
    assert TASKS["place"](request) == Place("QNN", "NPU").as_data() | {"emulated": True}
    request["asked"]["draft"] = asked | {"provider_options": {"vtcm": "8"}}
    found = TASKS["place"](request)
    assert "no option 'vtcm'; the nearest is vtcm_mb" in found["usage"]
    word = {"device": "NPU", "execution_provider": None, "provider_options": None}
    with pytest.raises(ProviderError, match="draft was asked for on NPU, and there is no such"):
        TASKS["place"](request | {"asked": {"draft": word, "target": other}})
    for_draft = other | {"provider_options": {"vtcm_mb": "8"}}
    request |= {"role": "target", "asked": {"draft": asked, "target": for_draft}}
    assert "it is --draft-provider-option vtcm_mb=" in TASKS["place"](request)["usage"]


def test_the_small_graph_is_run_or_the_error_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = TASKS["smoke"](CPU)
    assert found["right"] is True
    assert found["seconds"] > 0

    def fail(_place: Place) -> None:
        advice = f"{providers.DOCTOR}{providers.REBUILD}"
        raise BundleError(f"It cannot be loaded: no adapter; {advice}")

    monkeypatch.setattr("runtime.providers.smoke_test", fail)
    with pytest.raises(ProviderError, match=r"no adapter\.$"):
        TASKS["smoke"](CPU)


def test_the_nodes_of_the_cpu_are_not_counted_and_its_files_are_loaded(tiny_bundle: Path) -> None:
    assert TASKS["nodes"](graph(tiny_bundle)) == {"nodes": {}}
    with pytest.raises(BundleError, match="is not a bundle"):
        TASKS["nodes"](graph(tiny_bundle.parent))


def test_every_greedy_token_is_chosen_again(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = TASKS["greedy"](graph(tiny_bundle, tokens=5))
    assert (found["rows"], found["equal"], found["largest_difference"]) == (5, 5, 0.0)
    assert found["spread"] > 1
    own = TASKS["greedy"].__globals__["open_graph"]
    opened: list[Any] = []

    class Wrong:
        """Of the second session every other row turned round."""

        def __init__(self, session: Any) -> None:
            self.session, self.context = session, session.context

        def extend(self, text: Any) -> Any:
            return self.session.extend(text) * np.float32(1 - 2 * (len(text) % 2))

    def opens(*arguments: Any, **named: Any) -> Any:
        opened.append(own(*arguments, **named))
        return opened[-1] if len(opened) == 1 else Wrong(opened[-1])

    monkeypatch.setattr("runtime.doctor_child.open_graph", opens)
    found = TASKS["greedy"](graph(tiny_bundle, tokens=6))
    assert (found["rows"], found["equal"]) == (6, 3)


def test_a_text_that_the_graph_cannot_hold_is_refused(tiny_bundle: Path) -> None:
    for tokens in (5000, 10**15):
        with pytest.raises(BundleError, match=rf"--tokens {tokens}: the graph .* holds \d+ tokens"):
            TASKS["greedy"](graph(tiny_bundle, tokens=tokens))


def test_a_real_child_answers_in_the_file(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    request = {"task": "listing", "libraries": {"CPU": None, "XNNPACK": None}}
    line = json.dumps(request | {"answer": str(answer)}) + "\n"
    command = module_command("runtime.doctor_child")
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        child.stdin.write(line)
        child.stdin.flush()
        assert child.wait(60) == 0
    found = json.loads(answer.read_text(encoding="utf-8"))["found"]
    assert [each["kind"] for each in found["CPU"]["devices"]] == ["CPU"]
    assert PROVIDERS["XNNPACK"].ep_name.startswith("Xnnpack")
    assert "XNNPACK is not in this onnxruntime" in found["XNNPACK"]["reason"]
