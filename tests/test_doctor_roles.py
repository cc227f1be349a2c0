"""What becomes of target and draft: the place, the graph, the memory, the trial."""

from pathlib import Path
from typing import Any

import pytest

from runtime import memory
from runtime.doctor_roles import (
    Pair,
    RoleCheck,
    check_graphs,
    check_memory,
    check_smoke,
    find_place,
)
from runtime.errors import ProviderError
from runtime.manifest import Manifest
from runtime.providers import Place
from runtime.trial import Trial
from tests.fake_doctor import GOOD, RIGHT, FakeTasks, device, place

NOTHING = dict.fromkeys(("device", "execution_provider", "provider_options"))
OPENVINO = Place("OpenVINO", "CPU")


def asked(**devices: str) -> dict[str, dict[str, Any]]:
    return {role: NOTHING | {"device": devices.get(role)} for role in ("target", "draft")}


@pytest.fixture
def pair(tiny_bundle: Path) -> Pair:
    manifest = Manifest.load(tiny_bundle)
    return Pair(manifest, manifest, None, None)


def checked(
    pair: Pair, tasks: FakeTasks, where: Place = OPENVINO, *, tokens: int | None = None
) -> RoleCheck:
    check = RoleCheck("target", named=True, place=where)
    check_graphs(check, pair, tasks.tries(lambda _: None, {}, 55.0), tokens=tokens)
    return check


def test_a_role_that_nobody_placed_is_on_the_cpu_without_a_child() -> None:
    tasks = FakeTasks()
    check = find_place("draft", asked(), tasks.tries(print, {}, 55.0), None)
    assert (check.place, check.named, tasks.asked) == (Place("CPU"), False, [])


def test_a_place_that_is_not_here_is_a_reason() -> None:
    tasks = FakeTasks(places={"target": ProviderError("No GPU."), "draft": place("QNN", "NPU")})
    tries = tasks.tries(print, {}, 55.0)
    assert find_place("target", asked(target="GPU"), tries, None).reason == "No GPU."
    found = find_place("draft", asked(draft="NPU"), tries, None)
    assert (found.place, found.named) == (Place("QNN", "NPU"), True)


@pytest.mark.parametrize(
    ("verdict", "options", "reason"),
    [
        ("right", (), None),
        ("failed", (), "It died."),
        ("wrong", (), "OpenVINO on CPU computes wrongly: a small graph is off by 0.2 of 0.3."),
        ("wrong", (("load_config", "{}"),), None),  # tried anew, with them, and right
    ],
)
def test_a_small_graph_decides_first(
    verdict: str, options: tuple[tuple[str, str], ...], reason: str | None
) -> None:
    smoke = {"verdict": verdict, "largest_difference": 0.2, "spread": 0.3, "reason": "It died."}
    found = {"OpenVINO": {"devices": [device("CPU", 1), device("CPU") | {"smoke": smoke}]}}
    found["OpenVINO"]["devices"][0]["smoke"] = None
    check = RoleCheck("target", named=True, place=Place("OpenVINO", "CPU", 0, options))
    tasks = FakeTasks(smoke={"OpenVINO": RIGHT})
    check_smoke(check, found, tasks.tries(lambda _: None, {}, 55.0))
    assert check.reason == reason
    assert [task for task, _ in tasks.asked] == (["smoke"] if options else [])


def test_the_graph_that_would_run_is_loaded_and_tried(pair: Pair) -> None:
    tasks = FakeTasks()
    check = checked(pair, tasks)
    (graph,) = check.graphs
    assert (graph.name, check.model, check.reason) == ("portable-fp32", "tiny", None)
    assert graph.nodes == {"OpenVINOExecutionProvider": {"MatMul": 7}}
    assert graph.trial is not None
    assert (graph.trial["rows"], graph.greedy) == (27, None)
    folder = pair.target.folder / "target" / "fp32"
    weights = sum(file.stat().st_size for file in folder.iterdir() if file.suffix != ".onnx")
    assert weights < graph.bytes < sum(file.stat().st_size for file in folder.iterdir())
    assert graph.parity["tokens_compared"] > 0
    assert tasks.asked[0][1]["graph"] == "portable-fp32"


def test_on_the_cpu_a_graph_is_only_loaded(pair: Pair) -> None:
    tasks = FakeTasks(trials={"CPU": ProviderError("never")})
    check = checked(pair, tasks, Place("CPU"))
    assert [graph.name for graph in check.graphs] == ["fused-int8"], "the usual precision"
    assert (check.reason, check.graphs[0].trial, check.graphs[0].nodes) == (None, None, None)


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        ({"nodes": ProviderError("It ended, by SIGSEGV.")}, "It ended, by SIGSEGV."),
        (
            {"nodes": {"OpenVINOExecutionProvider": {"Add": 1}, "CPUExecutionProvider": {"Ix": 2}}},
            "would not run whole on OpenVINO on CPU: CPUExecutionProvider has 2 Ix. --allow-cpu",
        ),
        ({"trials": ProviderError("Not done after 55 s.")}, "Not done after 55 s."),
        ({"trials": Trial(4.0, 8.0, 27, 3, 1.0)}, "The graph portable-fp32 .* answers wrongly"),
    ],
)
def test_whatever_goes_wrong_is_the_reason(pair: Pair, tasks: dict[str, Any], reason: str) -> None:
    found: dict[str, Any] = {name: {"OpenVINO": answer} for name, answer in tasks.items()}
    check = checked(pair, FakeTasks(**found))
    with pytest.raises(ProviderError, match=reason):
        raise ProviderError(str(check.reason))


def test_nodes_may_be_elsewhere_where_that_is_allowed(pair: Pair) -> None:
    elsewhere = {"OpenVINO": {"CPUExecutionProvider": {"Ix": 2}}}
    where = Place("OpenVINO", "CPU", report=print)
    assert checked(pair, FakeTasks(nodes=elsewhere), where).reason is None


def test_a_bundle_without_such_a_graph_says_which_it_has(pair: Pair) -> None:
    check = checked(pair, FakeTasks(), Place("CUDA", "GPU"))
    assert check.reason is None, "its portable-fp32 does"
    odd = Pair(pair.target, pair.draft, "fp16", None)
    assert "has no target graph in fp16 for CUDA" in str(
        checked(odd, FakeTasks(), Place("CUDA", "GPU")).reason
    )


def test_a_report_is_of_every_graph_that_the_place_takes(pair: Pair) -> None:
    greedy = {"largest_difference": 0.02, "spread": 9.0, "rows": 4, "equal": 3}
    tasks = FakeTasks(greedy={"OpenVINO": greedy}, nodes={})
    check = checked(pair, tasks, tokens=4)
    assert [graph.name for graph in check.graphs] == ["portable-fp32", "portable-int8"]
    assert [graph.greedy for graph in check.graphs] == [greedy, greedy]
    assert [request["tokens"] for task, request in tasks.asked if task == "greedy"] == [4, 4]
    one = Pair(pair.target, pair.draft, "int8", None)
    assert [graph.name for graph in checked(one, tasks, tokens=4).graphs] == ["portable-int8"]
    on_cpu = checked(pair, FakeTasks(), Place("CPU"), tokens=4)
    assert {graph.name for graph in on_cpu.graphs} == set(pair.target.target.graphs)


def test_tokens_that_take_too_long_leave_the_trial_standing(pair: Pair) -> None:
    late = FakeTasks(greedy={"OpenVINO": ProviderError("Not done after 55 s.")})
    said: list[str] = []
    check = RoleCheck("target", named=True, place=OPENVINO)
    check_graphs(check, pair, late.tries(said.append, {}, 55.0), tokens=900)
    graph = check.graphs[0]
    assert (check.reason, graph.reason, graph.greedy) == (None, None, None)
    assert graph.trial is not None
    assert "Not done after 55 s." in said


def test_both_models_must_fit_together(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [checked(pair, FakeTasks()), checked(pair, FakeTasks(), Place("CPU"))]
    each = [check.graphs[0].needed_bytes for check in checks]
    needed, short = check_memory(checks, pair)
    assert needed == sum(each) + memory.text_bytes(pair.target)
    assert short is None
    monkeypatch.setattr(memory, "available_bytes", lambda: needed - 1)
    assert "do not fit: about" in str(check_memory(checks, pair)[1])


def test_a_draft_may_be_lent_by_the_target_or_be_none(pair: Pair) -> None:
    assert pair.of("draft") == (pair.draft, "draft")
    alone = Pair(pair.target, None, None, None)
    assert alone.of("draft") is None
    check = RoleCheck("draft", named=False, place=Place("CPU"))
    check_graphs(check, alone, FakeTasks().tries(print, {}, 55.0), tokens=None)
    assert (check.graphs, check.reason) == ([], None)


def test_the_good_trial_of_the_fakes_is_good() -> None:
    assert GOOD.share < 0.01
