"""Tests of runtime/trace.py: the events of a timeline made by hand, and of a real session's."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from runtime import open_session
from runtime.timeline import Timeline
from runtime.trace import Trace, own_work
from tests.timelines import THREE_ROUNDS


@dataclass
class Timed:
    kept: Timeline

    def to_dict(self) -> dict[str, Any]:
        return {"rounds": len(self.kept.rounds)}

    def timeline(self) -> Timeline:
        return self.kept


def traced(*timelines: Timeline, group: str = "mirror") -> list[dict[str, Any]]:
    trace = Trace("a test")
    for number, timeline in enumerate(timelines, 1):
        trace.add(group, f"answer {number}", Timed(timeline))
    events: list[dict[str, Any]] = trace.to_dict()["traceEvents"]
    return events


def spans(events: list[dict[str, Any]], kind: str) -> list[tuple[Any, ...]]:
    """Name, thread, start and duration in seconds, and arguments."""
    return [
        (event["name"], event["tid"], event["ts"] / 1e6, event["dur"] / 1e6, event["args"])
        for event in events
        if event["ph"] == "X" and event["cat"] == kind
    ]


def check_nesting(events: list[dict[str, Any]]) -> None:
    """On each thread a span lies within the one that is open, or begins after it: no crossing."""
    open_until: dict[tuple[int, int], list[float]] = {}
    for event in events:
        if event["ph"] != "X":
            continue
        assert event["dur"] >= 0
        ends = open_until.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"] + 1e-4:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + 1e-3, event
        ends.append(end)


def test_every_run_is_a_span_of_its_thread() -> None:
    events = traced(THREE_ROUNDS)
    assert spans(events, "target") == [
        ("read", 1, 0.0, 1.0, {}),
        ("verify", 1, 2.0, 0.75, {"rows": 3, "round": 1}),
        ("verify", 1, 3.5, 1.0, {"rows": 3, "round": 2}),
        ("verify", 1, 5.0, 0.5, {"rows": 1, "round": 3}),
    ]
    assert spans(events, "draft") == [
        ("read", 2, 0.25, 0.25, {}),
        ("propose", 2, 1.25, 0.5, {"round": 1}),
        ("look ahead", 2, 2.0, 0.5, {"round": 1}),
        ("look ahead", 2, 3.75, 1.0, {"round": 2}),
    ]
    assert spans(events, "wait") == [("wait for the draft", 1, 1.25, 0.75, {"round": 1})]
    assert spans(events, "overhead") == [
        ("prepare", 1, 1.0, 0.25, {"round": 1}),
        ("choose and commit", 1, 2.75, 0.25, {"round": 1}),
        ("make text", 1, 3.0, 0.25, {}),
        ("choose and commit", 1, 4.5, 0.5, {"round": 2}),
        ("choose and commit", 1, 5.5, 0.5, {"round": 3}),
        ("make text", 1, 6.0, 0.25, {}),
    ]
    assert spans(events, "answer") == [("answer 1", 1, 0.0, 6.25, {"rounds": 3})]
    assert [span[:4] for span in spans(events, "round")] == [
        ("round 1", 1, 1.0, 2.0),
        ("round 2", 1, 3.5, 1.5),
        ("round 3", 1, 5.0, 1.0),
    ]
    check_nesting(events)


def test_every_round_ends_in_an_outcome() -> None:
    events = [event for event in traced(THREE_ROUNDS) if event["ph"] == "i"]
    assert [(event["name"], event["ts"], event["args"]) for event in events] == [
        (
            "miss",
            3e6,
            {"round": 1, "proposed": 2, "accepted": 1, "final_token": 70, "hit": False},
        ),
        ("hit", 5e6, {"round": 2, "proposed": 2, "accepted": 2, "final_token": 80, "hit": True}),
        ("verified", 6e6, {"round": 3, "proposed": 0, "accepted": 0, "final_token": 90}),
    ]
    assert all(event["s"] == "t" and event["tid"] == 1 for event in events)


def test_threads_are_named_in_every_group() -> None:
    trace = Trace("a test")
    later = replace(THREE_ROUNDS, start=8.0)
    for group, timeline in [("a", THREE_ROUNDS), ("b", later), ("a", THREE_ROUNDS)]:
        trace.add(group, "answer", Timed(timeline))
    whole = trace.to_dict()
    assert whole["otherData"] == {"program": "a test"}
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in whole["traceEvents"]
        if event["ph"] == "M" and event["name"] in ("process_name", "thread_name")
    }
    assert names == {
        (1, 0): "a", (1, 1): "target (caller)", (1, 2): "draft",
        (2, 0): "b", (2, 1): "target (caller)", (2, 2): "draft",
    }  # fmt: skip
    # On one axis, which begins with whichever answer began first.
    starts = [
        (event["pid"], event["ts"])
        for event in whole["traceEvents"]
        if event.get("cat") == "answer"
    ]
    assert sorted(starts) == [(1, 2e6), (1, 2e6), (2, 0)]


def test_rounding_leaves_what_is_within_a_span_within_it() -> None:
    lists: dict[str, Any] = {
        name: tuple(
            run._replace(start=run.start / 3, end=run.end / 3)
            for run in getattr(THREE_ROUNDS, name)
        )
        for name in ("rounds", "target", "draft", "waits", "deliveries")
    }
    third = replace(THREE_ROUNDS, start=10 / 3, **lists)
    check_nesting(traced(third))


def test_a_trace_of_nothing_is_one(tmp_path: Path) -> None:
    Trace("a test").write(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"] == []


def test_a_round_without_a_run_is_all_work() -> None:
    bare = replace(THREE_ROUNDS, target=(), waits=())
    assert [run[:3] for run in own_work(bare, bare.rounds[0])] == [(11, 13, "choose and commit")]


@pytest.mark.parametrize("strategy", ["autoregressive", "speculative", "mirror"])
def test_a_real_answer(strategy: str, tiny_bundle: Path, tmp_path: Path) -> None:
    trace = Trace("a test")
    with open_session(tiny_bundle, strategy=strategy, threads=1, draft_threads=1) as session:
        for number in range(2):
            answer = session.generate("one two three", max_new_tokens=12)
            trace.add(strategy, f"answer {number}", answer.metrics)
            list(answer)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    check_nesting(events)
    found = Counter(event["cat"] for event in events if event["ph"] != "M")
    rounds = sum(entry.metrics.timeline().rounds != () for entry in trace.entries)
    assert rounds == found["answer"] == 2
    assert found["round"] == found["outcome"] == found["target"] - 2
    assert (found["draft"] > 0) == (strategy != "autoregressive")
    rows = [(event["args"], event["name"]) for event in events if event.get("cat") == "target"]
    assert all(args["rows"] > 0 for args, name in rows if name == "verify")
