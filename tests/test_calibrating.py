"""A pair of tiny models is timed as a session would open it."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest

from runtime.bench import main
from runtime.calibrating import Pair, calibrate, described, pair_of
from runtime.calibration import read_costs
from runtime.costs import Costs, Curve
from runtime.layout import Layout
from runtime.manifest import Manifest
from runtime.providers import as_place

SETTINGS: dict[str, Any] = {
    "precision": "fp32",
    "device": None,
    "draft_device": None,
    "execution_provider": None,
    "draft_execution_provider": None,
    "ep_libraries": None,
    "provider_options": None,
    "draft_provider_options": None,
    "allow_cpu_fallback": False,
    "threads": 1,
    "draft_threads": 1,
    "draft_tokens_per_pass": None,
}


@pytest.fixture
def pair(tiny_bundle: Path) -> Pair:
    return pair_of(tiny_bundle, None, SETTINGS)


def test_costs_are_found_and_kept(pair: Pair, tmp_path: Path) -> None:
    costs = calibrate(pair, "at once", folder=tmp_path, say=lambda _line: None, limit_s=0.2)
    assert min(costs.target.seconds) > 0
    assert min(costs.draft.seconds) > 0
    assert costs.exit_s == 0
    assert read_costs(pair.costs_path(tmp_path, pair.layout("at once"))) == costs
    assert read_costs(pair.costs_path(tmp_path, pair.layout("in turn"))) is None


def test_a_target_that_can_be_left_early(with_exit: Path, tmp_path: Path) -> None:
    pair = pair_of(with_exit, None, SETTINGS)
    costs = calibrate(pair, "at once", folder=tmp_path, say=lambda _line: None, limit_s=0.2)
    assert 0 < costs.prefix_share < 1
    assert costs.exit_s > 0
    assert read_costs(pair.costs_path(tmp_path, pair.layout("at once"))) == costs
    assert "reading the early exit behind them" in described(costs, pair.layout("at once"))


def test_models_that_work_in_turn_never_slow_each_other_down(pair: Pair, tmp_path: Path) -> None:
    costs = calibrate(pair, "in turn", folder=tmp_path, say=lambda _line: None, limit_s=0.2)
    assert min(costs.target_slowdown, costs.draft_slowdown) >= 1


def test_a_target_without_a_draft(tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = dataclasses.replace(Manifest.load(tiny_bundle), draft=None)
    pair = Pair(manifest, None, "fp32", threads=1)
    assert pair.sharings == ("alone",)
    costs = calibrate(pair, "alone", folder=tmp_path, say=lambda _line: None, limit_s=0.2)
    text = described(costs, pair.layout("alone"))
    assert text.startswith("The target alone, 1 thread:\nrows ")
    assert "draft" not in text


def test_whatever_changes_the_costs_changes_where_they_are_kept(pair: Pair) -> None:
    def path(of: Pair, layout: Layout | None = None) -> Path:
        return of.costs_path(Path(), layout or of.layout("at once"))

    others = [
        path(dataclasses.replace(pair, precision="int8")),
        path(dataclasses.replace(pair, draft=None)),
        path(dataclasses.replace(pair, draft_tokens_per_pass=1)),
        path(pair, Layout(2, 1)),
        path(pair, Layout(1, 1, sharing="in turn")),
    ]
    assert path(pair) == path(dataclasses.replace(pair))
    # One token a pass is all that this draft gives.
    assert others.pop(2) == path(pair)
    assert len({path(pair), *others}) == 5


def test_two_providers_work_at_once_only(pair: Pair) -> None:
    assert pair.sharings == ("at once", "in turn")
    assert dataclasses.replace(pair, draft_provider="OpenVINO").sharings == ("at once",)


def test_both_places_keep_what_is_compiled(pair: Pair, tmp_path: Path) -> None:
    kept = pair.keeping(tmp_path, print)
    assert as_place(kept.provider).compiled == as_place(kept.draft_provider).compiled == tmp_path
    layout = pair.layout("at once")
    assert kept.costs_path(tmp_path, layout) == pair.costs_path(tmp_path, layout)


def test_a_table_for_a_person() -> None:
    costs = Costs(Curve((1, 16), (0.01, 0.0255)), Curve((1,), (0.004,)), 5, 1.25, 1.5)
    assert described(costs, Layout(2, 1, sharing="at once")).splitlines() == [
        "Target and draft at once, 2 threads and 1 thread, 5 tokens a pass:",
        "rows               1      16",
        "target, ms      10.0    25.5",
        "rows               1",
        "draft, ms        4.0",
        "Beside each other the target takes 1.25 times as long, the draft 1.50 times.",
    ]
    assert "Beside" not in described(costs, Layout(2, 0))


def test_the_bench_calibrates(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "__kwdefaults__", {"limit_s": 0.2})
    stdout, stderr = io.StringIO(), io.StringIO()
    flags = f"--calibrate -m {tiny_bundle} --cache-dir {tmp_path} --threads 1 --draft-threads 1"
    assert main(flags.split(), stdout=stdout, stderr=stderr, leave=lambda _: None) == 0
    assert "Target and draft at once, 1 thread and 1 thread" in stdout.getvalue()
    assert "Target and draft in turn" in stdout.getvalue()
    assert len(list((tmp_path / "probes").glob("costs-*.json"))) == 2
