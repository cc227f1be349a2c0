"""Settings are filled in alike for everyone, and what does not go together is refused."""

import math
from typing import Any, Literal

import pytest

from runtime.errors import UsageError
from runtime.providers import Place
from runtime.settings import DRAFTS, STRATEGIES, Settings, check_strategy, settle
from tests.fake_devices import Machine, hardware

ASKED: dict[str, Any] = {
    "precision": "int8",
    "draft": None,
    "has_draft_model": False,
    "strategy": None,
    "num_draft_tokens": 4,
    "draft_tokens_per_pass": None,
    "num_siblings": None,
    "num_copied_tokens": 0,
    "num_hypotheses": None,
    "hypothesis_sources": None,
    "after_miss": None,
    "context_length": None,
    "threads": None,
    "draft_threads": None,
    "device": None,
    "draft_device": None,
    "execution_provider": None,
    "draft_execution_provider": None,
    "ep_libraries": None,
    "provider_options": None,
    "draft_provider_options": None,
    "report": None,
    "draft_time_limit_s": None,
}


def test_what_is_left_open_is_filled_in() -> None:
    assert settle(**ASKED) == Settings(
        precision="int8",
        draft="model",
        needs_draft=False,
        strategy="auto",
        num_draft_tokens=4,
        draft_tokens_per_pass=None,
        num_siblings=None,
        num_copied_tokens=0,
        num_hypotheses=None,
        hypothesis_sources=("bonus", "runner-ups"),
        after_miss=None,
        context_length=None,
        threads=None,
        draft_threads=None,
        place=Place("CPU"),
        draft_place=Place("CPU"),
        draft_time_limit_s=5.0,
    )


@pytest.mark.parametrize(
    ("found", "asked", "due"),
    [
        ("NPU", {"draft_execution_provider": "QNN"}, 5.0),
        ("CPU", {"draft_execution_provider": "QNN"}, 300.0),  # software plays it
        ("CPU", {"execution_provider": "QNN"}, 5.0),
        ("CPU", {"draft": "lookup"}, 5.0),
        ("CPU", {"draft_execution_provider": "QNN", "draft_time_limit_s": 7.0}, 7.0),
    ],
)
def test_a_draft_whose_device_is_played_by_software_has_more_time(
    monkeypatch: pytest.MonkeyPatch,
    found: Literal["CPU", "NPU"],
    asked: dict[str, Any],
    due: float,
) -> None:
    Machine(monkeypatch, libraries={"QNN": [hardware(found)]})
    assert settle(**ASKED | asked).draft_time_limit_s == due


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_draft_decides_which_strategies_there_are(draft: str, strategy: str) -> None:
    usual = settle(**ASKED | {"draft": draft}).strategy
    assert usual == ("autoregressive" if draft == "none" else "auto")
    if draft == "none" and strategy != "autoregressive":
        with pytest.raises(UsageError, match=f"strategy '{strategy}' needs a draft"):
            settle(**ASKED | {"draft": draft, "strategy": strategy})
        with pytest.raises(UsageError, match="needs a draft"):
            check_strategy(strategy, draft)
    else:
        assert settle(**ASKED | {"draft": draft, "strategy": strategy}).strategy == strategy


@pytest.mark.parametrize(
    ("asked", "needed"),
    [
        ({}, False),
        ({"draft": "model"}, True),
        ({"has_draft_model": True}, True),
        ({"draft_execution_provider": "CPU"}, True),
        ({"draft_tokens_per_pass": 1}, True),
        ({"strategy": "mirror"}, False),
    ],
)
def test_a_draft_model_is_needed_where_it_was_asked_for(
    asked: dict[str, Any],
    needed: bool,  # noqa: FBT001
) -> None:
    assert settle(**ASKED | asked).needs_draft == needed


def test_sources_of_hypotheses_are_kept_once_and_in_their_order() -> None:
    asked = ["masks", "bonus", "masks"]
    assert settle(**ASKED | {"hypothesis_sources": asked}).hypothesis_sources == ("bonus", "masks")


@pytest.mark.parametrize("name", ["CPU", "cpu", "CPUExecutionProvider"])
def test_a_provider_may_be_spelled_in_onnxruntimes_way(name: str) -> None:
    assert settle(**ASKED | {"execution_provider": name}).place == Place("CPU")


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"precision": "int2"}, UsageError, "precision 'int2' is not one of int8, fp32"),
        ({"draft": "ngram"}, UsageError, "draft 'ngram' is not one of model, lookup, none"),
        ({"strategy": "fast"}, UsageError, "strategy 'fast' is not one of auto"),
        ({"draft": "lookup", "has_draft_model": True}, UsageError, "draft model was named"),
        (
            {"draft": "lookup", "draft_execution_provider": "CPU"},
            UsageError,
            "needs no provider",
        ),
        (
            {"draft": "lookup", "draft_tokens_per_pass": 2},
            UsageError,
            "draft_tokens_per_pass is for a draft model, but the draft is 'lookup'",
        ),
        ({"draft_tokens_per_pass": 0}, UsageError, "draft_tokens_per_pass must be a whole number"),
        ({"draft_tokens_per_pass": 2.0}, UsageError, "draft_tokens_per_pass must be"),
        ({"num_draft_tokens": 0}, UsageError, "num_draft_tokens must be a whole number, 1 to 32"),
        ({"num_draft_tokens": 33}, UsageError, "num_draft_tokens"),
        ({"num_hypotheses": -1}, UsageError, "num_hypotheses must be a whole number, 0 to 64"),
        ({"num_hypotheses": 65}, UsageError, "num_hypotheses"),
        (
            {"hypothesis_sources": ["entry"]},
            UsageError,
            "'entry' is not one of bonus, runner",
        ),
        ({"hypothesis_sources": "bonus"}, UsageError, "hypothesis_sources"),
        ({"hypothesis_sources": [7]}, UsageError, "source of hypotheses 7 is not one of"),
        ({"after_miss": "wait"}, UsageError, "after_miss 'wait' is not one of redraft, verify"),
        ({"threads": 0}, UsageError, "threads must be a whole number"),
        ({"draft_threads": True}, UsageError, "draft_threads must be a whole number"),
        ({"context_length": 2.5}, UsageError, "context_length must be a whole number"),
        ({"draft_time_limit_s": math.nan}, UsageError, "draft_time_limit_s"),
        ({"execution_provider": "GPU9"}, UsageError, "target was asked for on .* 'GPU9'"),
        (
            {"draft_execution_provider": "QMN"},
            UsageError,
            "draft was asked for on .* 'QMN'.*the nearest is QNN",
        ),
        ({"execution_provider": 7}, UsageError, "execution_provider must be a text"),
        ({"device": 7}, UsageError, "device must be a text"),
        ({"draft": "none", "draft_device": "NPU"}, UsageError, "asked for on NPU, but the draft"),
        ({"provider_options": "a=b"}, UsageError, "provider_options must be a mapping"),
        ({"provider_options": {"a": 1}}, UsageError, r"provider_options\[a\] must be a text"),
        ({"provider_options": {"a": "b"}}, UsageError, "CPU has no option 'a', nor any other"),
        ({"ep_libraries": ["x"]}, UsageError, "ep_libraries must be a mapping"),
        ({"ep_libraries": {"QNN": 5}}, UsageError, r"ep_libraries\[QNN\] must be a path"),
        ({"ep_libraries": {"Q": "a"}}, UsageError, "library was asked for on .* 'Q'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    asked: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        settle(**ASKED | asked)


@pytest.mark.parametrize(
    "asked", [{"num_copied_tokens": 4}, {"after_miss": "redraft"}, {"after_miss": "verify"}]
)
def test_what_is_planned_cannot_be_asked_for(asked: dict[str, Any]) -> None:
    for strategy in ("speculative", "mirror", "autoregressive"):
        settle(**ASKED | asked | {"strategy": strategy})
    settle(**ASKED | asked | {"draft": "none"})
    for planned in ({"strategy": "auto"}, {}):
        with pytest.raises(UsageError, match=r"^\w+ is for the strateg.* 'mirror'; 'auto' chooses"):
            settle(**ASKED | asked | planned)


def test_hypotheses_are_refused_where_none_are_followed() -> None:
    asked = ASKED | {"num_hypotheses": 0}
    for strategy, draft in (("mirror", "model"), ("mirror", "lookup"), ("auto", "model")):
        assert settle(**asked | {"strategy": strategy, "draft": draft}).num_hypotheses == 0
    for strategy, draft in (
        *(("speculative", "model"), ("speculative", "lookup"), ("auto", "lookup")),
        *(("autoregressive", "model"), ("autoregressive", "none")),
    ):
        with pytest.raises(UsageError, match=f"'{strategy}' with the draft '{draft}' follows none"):
            settle(**asked | {"strategy": strategy, "draft": draft})
