"""Tests of runtime/profiles.py, and that every figure of models/devices says where it is from."""

import json
import math
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import BundleError, UsageError
from runtime.profiles import BOUNDS, Figure, Profile, _check, load_profile, profile_folder
from tests.devices import device, profile

NAMES = [
    "dual-desktop-gpu",
    "gpu-cpu",
    "lunar-lake-igpu-npu",
    "ryzen-ai-igpu-npu",
    "snapdragon-8-elite-gpu-npu",
    "snapdragon-x-elite-gpu-npu",
]


def sources() -> set[str]:
    """The last column of the table of sources."""
    lines = (profile_folder() / "README.md").read_text(encoding="utf-8").splitlines()
    return {line.strip("| ").split(" | ")[-1] for line in lines if line.startswith("| ")}


def objects(content: Any) -> Iterator[dict[str, Any]]:
    """Every object in parsed JSON."""
    if isinstance(content, dict):
        yield content
        content = list(content.values())
    for item in content if isinstance(content, list) else ():
        yield from objects(item)


def written(name: str) -> Any:
    return json.loads((profile_folder() / f"{name}.json").read_text(encoding="utf-8"))


def test_all_profiles_are_there() -> None:
    assert sorted(path.stem for path in profile_folder().glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_published_derived_or_guessed(name: str) -> None:
    published = sources()
    for item in objects(written(name)):
        numbers = {key for key, value in item.items() if isinstance(value, int | float)}
        assert numbers <= ({"rows"} if "rows" in item else {"value"}), item
        if "value" in item:
            (origin,) = set(item) - {"value"}
            assert origin in ("source", "derived", "guessed")
            assert origin != "source" or item["source"] in published


@pytest.mark.parametrize("name", NAMES)
def test_profiles_load_also_with_their_guesses_halved_and_doubled(name: str) -> None:
    found = load_profile(name)
    assert found.name == name
    assert load_profile(str(profile_folder() / f"{name}.json")) == found
    for factor in (0.5, 2.0):
        scaled = found.scaled_guesses(factor)
        for role in ("target", "draft"):
            before, after = getattr(found, role), getattr(scaled, role)
            known = [point for point in before.cost if point.ms.guessed is None]
            assert [point for point in after.cost if point.ms.guessed is None] == known
    assert found.scaled_guesses(1.0).target == found.target


@pytest.mark.parametrize(
    ("rows", "ms"), [(1, 10), (2, 12), (3, 14), (4, 17), (5, 20), (7, 26), (105, 320)]
)
def test_costs_are_straight_between_points_and_go_on_behind_the_last(rows: int, ms: float) -> None:
    found = device((1, 10), (3, 14), (5, 20))
    assert found.seconds(rows) == pytest.approx(ms / 1000)
    apart = device((1, 10), (3, 14), (5, 20), transfer_ms=4)
    assert apart.seconds(rows, 0.25) == pytest.approx((0.25 * ms + 4) / 1000)


def test_of_a_guess_only_what_is_not_known_is_scaled(tmp_path: Path) -> None:
    content = written("ryzen-ai-igpu-npu")
    content["target"]["cost"] = [
        {"rows": 1, "ms": {"value": 80, "derived": "a"}},
        {"rows": 4, "ms": {"value": 90, "guessed": "b"}},
        {"rows": 8, "ms": {"value": 92, "derived": "c"}},
        {"rows": 16, "ms": {"value": 100, "guessed": "d"}},
    ]
    content["draft"]["cost"] = [
        {"rows": 1, "ms": {"value": 20, "guessed": "e"}},
        {"rows": 9, "ms": {"value": 30, "guessed": "f"}},
    ]
    content["draft"]["contention"] = {"value": 1.25, "guessed": "g"}
    content["target"]["contention"] = {"value": 1.5, "derived": "h"}
    content["overhead_ms"] = {"value": 0.5, "guessed": "i"}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    half = load_profile(str(path)).scaled_guesses(0.5)
    assert [point.ms.value for point in half.target.cost] == [80, 85, 92, 96]
    assert [point.ms.value for point in half.draft.cost] == [10, 15]
    assert (half.draft.contention.value, half.target.contention.value) == (1.125, 1.5)
    assert half.overhead_ms == Figure(0.25, guessed="i")
    assert half.name == "ryzen-ai-igpu-npu (guesses x 0.5, x 0.5)"
    mixed = load_profile(str(path)).scaled_guesses(0.5, draft=2.0)
    assert (mixed.target, mixed.overhead_ms) == (half.target, half.overhead_ms)
    assert [point.ms.value for point in mixed.draft.cost] == [40, 60]
    assert mixed.draft.contention.value == 1.5
    assert mixed.name == "ryzen-ai-igpu-npu (guesses x 0.5, x 2)"


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("overhead_ms", {"value": 1}, "needs a source"),
        ("overhead_ms", {"value": 1, "guessed": " "}, "needs a source"),
        ("overhead_ms", {"value": 1, "guessed": "a", "derived": "b"}, "needs a source"),
        ("overhead_ms", 1, "object is needed"),
        ("speed", 1, "unknown key"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(
    place: str, value: Any, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**written("gpu-cpu"), place: value}), encoding="utf-8")
    with pytest.raises(BundleError, match=complaint):
        load_profile(str(path))


def fields(content: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Every number of a profile: its field's name, its place, and the object and key it is at."""
    yield "overhead_ms", "", content["overhead_ms"], "value"
    for role in ("target", "draft"):
        for name in ("contention", "transfer_ms", "wake_up_ms", "idle_ms"):
            yield name, f".{role}", content[role][name], "value"
        for place, point in enumerate(content[role]["cost"]):
            yield "ms", f".{role}.cost[{place}]", point["ms"], "value"
            yield "rows", f".{role}.cost[{place}]", point, "rows"


NUMBERS: dict[float, Set[str]] = {
    -1: BOUNDS.keys(),
    0: {"rows", "ms", "contention"},
    0.0009: {"ms", "contention"},
    0.999: {"contention"},
    1 << 20 | 1: BOUNDS.keys(),
    1e300: BOUNDS.keys() - {"rows"},
}


@pytest.mark.parametrize("value", NUMBERS)
def test_no_field_takes_an_absurd_number(value: float, tmp_path: Path) -> None:
    path, met = tmp_path / "mine.json", set()
    for number in range(len([*fields(written("gpu-cpu"))])):
        content = written("gpu-cpu")
        name, place, where, key = [*fields(content)][number]
        if name not in NUMBERS[value]:
            continue
        where[key] = value
        path.write_text(json.dumps(content), encoding="utf-8")
        least, most = BOUNDS[name]
        read = value if name == "rows" else float(value)
        with pytest.raises(BundleError) as caught:
            load_profile(str(path))
        assert str(caught.value) == (
            f"{path}{place}: {name} is {read}; it must be from {least:g} to {most:.12g}"
        )
        met.add(name)
    assert met == NUMBERS[value]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400])
def test_no_field_takes_what_is_no_number(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for number in range(len([*fields(written("gpu-cpu"))])):
        content = written("gpu-cpu")
        _, _, where, key = [*fields(content)][number]
        where[key] = "here"
        path.write_text(json.dumps(content).replace('"here"', text), encoding="utf-8")
        with pytest.raises(BundleError, match=re.escape(str(path))):
            load_profile(str(path))


@pytest.mark.parametrize("name", BOUNDS)
def test_a_field_takes_its_bounds_and_nothing_that_compares_with_nothing(name: str) -> None:
    for value in BOUNDS[name]:
        _check(name, value)
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(BundleError, match=f"{name} is {value}; it must be from"):
            _check(name, value)


@pytest.mark.parametrize("factor", [math.nan, math.inf, -1.0, 1e300])
def test_guesses_cannot_be_scaled_to_what_is_absurd(factor: float) -> None:
    with pytest.raises(BundleError, match="it must be from"):
        load_profile("gpu-cpu").scaled_guesses(factor)


@pytest.mark.parametrize("points", [[(1, 5)], [(2, 5), (3, 6)]])
def test_a_curve_begins_at_one_row(points: list[tuple[int, float]]) -> None:
    with pytest.raises(BundleError, match="two points or more, the first for 1 row"):
        device(*points)


@pytest.mark.parametrize("points", [[(1, 5), (2, 4)], [(1, 5), (3, 6), (3, 7)]])
def test_a_curve_ascends(points: list[tuple[int, float]]) -> None:
    with pytest.raises(BundleError, match="falls"):
        device(*points)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match=", ".join(NAMES)):
        load_profile("toaster")


def test_profiles_are_told_apart_by_their_devices() -> None:
    slow, fast = device((1, 2), (2, 3)), device((1, 1), (2, 2))
    assert isinstance(profile(slow, fast), Profile)
    assert profile(slow, fast) != profile(fast, slow)
