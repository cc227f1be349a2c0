"""Where both models run, and that nothing asked for is left unused."""

from pathlib import Path
from typing import Any

import pytest

from runtime.errors import ProviderError, UsageError
from runtime.places import OF_PLACES, of_target, places_of
from runtime.providers import Place
from tests.fake_devices import Machine, hardware

NOTHING: dict[str, Any] = {**dict.fromkeys(OF_PLACES), "allow_cpu_fallback": False}


@pytest.fixture
def snapdragon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop with QNN and WebGPU installed."""
    Machine(monkeypatch, libraries={"QNN": [hardware("NPU")], "WebGPU": [hardware("GPU")]})


def test_both_run_on_the_cpu_where_nothing_is_asked_for() -> None:
    assert places_of(NOTHING) == (Place("CPU"), Place("CPU"))


@pytest.mark.usefixtures("snapdragon")
def test_each_is_where_it_was_asked_for_with_what_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "QNN.so"
    file.touch()
    asked = NOTHING | {"device": "GPU", "draft_device": "NPU", "ep_libraries": {"qnn": file}}
    target, draft = places_of(asked)
    assert (str(target), str(draft)) == ("WebGPU on GPU", "QNN on NPU")
    assert (target.library, draft.library) == (None, file)
    alone = of_target(asked | {"allow_cpu_fallback": True}, target)
    assert alone == {"ep_libraries": None, "allow_cpu_fallback": True}
    assert of_target(asked, draft)["ep_libraries"] == {"qnn": file}
    assert not of_target(asked | {"allow_cpu_fallback": True}, Place("CPU"))["allow_cpu_fallback"]


@pytest.mark.usefixtures("snapdragon")
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"ep_libraries": {"QNN": "q.so"}},
            r"\(--ep-library\) names a library of QNN, and neither",
        ),
        (
            {"device": "GPU", "ep_libraries": {"QNN": "q.so"}},
            "uses it: the target runs on WebGPU on GPU, the draft on CPU. Ask for QNN, or leave",
        ),
        (
            {"device": "NPU", "ep_libraries": {"QNN": "q.so", "QNNExecutionProvider": "r.so"}},
            "ep_libraries names QNN twice",
        ),
        ({"allow_cpu_fallback": True}, "no device was asked for: the target runs on CPU"),
        ({"allow_cpu_fallback": True, "draft_device": "CPU"}, "allow_cpu_fallback is for operator"),
    ],
)
def test_what_neither_model_would_use_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        places_of(NOTHING | asked, report=print)


@pytest.mark.usefixtures("snapdragon")
@pytest.mark.parametrize("device", ["device", "draft_device"])
def test_a_fallback_is_allowed_where_either_has_a_device(device: str) -> None:
    places = places_of(NOTHING | {"allow_cpu_fallback": True, device: "GPU"}, report=print)
    assert {place.report for place in places} == {print}


@pytest.mark.usefixtures("snapdragon")
def test_an_option_of_the_other_model_names_its_flag() -> None:
    burst = {"htp_performance_mode": "burst"}
    with pytest.raises(UsageError, match=r"QNN has it: .* --draft-provider-option htp_perf"):
        places_of(NOTHING | {"draft_execution_provider": "QNN", "provider_options": burst})
    with pytest.raises(UsageError, match=r"QNN has it: .* is --provider-option htp_perf"):
        places_of(NOTHING | {"device": "NPU", "draft_provider_options": burst})
    with pytest.raises(UsageError, match=r"CPU has no option 'htp_performance_mode', nor any"):
        places_of(NOTHING | {"device": "CPU", "draft_provider_options": burst})
    with pytest.raises(UsageError, match="The draft was asked for on the execution provider 'qn'"):
        places_of(NOTHING | {"draft_execution_provider": "qn"})


@pytest.mark.usefixtures("snapdragon")
@pytest.mark.parametrize(
    "asked", [{"draft_device": "NPU:1"}, {"execution_provider": "OpenVINO"}, {"device": "GPU:3"}]
)
def test_a_place_that_cannot_be_had_names_the_doctor(asked: dict[str, Any]) -> None:
    with pytest.raises(ProviderError, match=r"[^.]\. mirror-doctor says what is here\.$"):
        places_of(NOTHING | asked)
