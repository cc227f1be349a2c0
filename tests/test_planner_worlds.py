"""The planner beside every fixed way in worlds of known costs: never slower by more than 3 %.

Time is simulated and luck is seeded, so that the figures are the same on every machine.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from runtime.calibration import UNMEASURED
from runtime.costs import Costs, Curve
from runtime.planner import Choice, Planner
from tests.worlds import Time, World, fixed_s, planned_s, texts

TEXTS = 20
NEVER_SLOWER = 0.97
FIXED = (
    Choice("none"),
    *(Choice("lookup", length) for length in (1, 2, 4, 8)),
    *(Choice("model", length, count) for length in (1, 2, 4, 8) for count in (0, 4, 16)),
)
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)

GOOD = (0.75, 0.6, 0.5, 0.45, 0.4, 0.4, 0.35)
BAD = (0.05, 0.03)
COPYING = (0.4, 0.6, 0.8, 0.92)


def line(first: float, more: float) -> Time:
    """Seconds of a call: of one row, and what each further one adds."""
    return lambda rows: first + more * (rows - 1)


def of_npu(agreement: Sequence[float], *, pass_s: float = 0.030) -> World:
    """A draft on a device of its own, which slows the target down a little."""
    return World(
        line(0.060, 0.0006),
        line(pass_s, 0.0001),
        lambda _text: agreement,
        target_slowdown=1.1,
        draft_slowdown=1.2,
    )


def of_cpu(agreement: Sequence[float]) -> World:
    """Both on the same cores."""
    return World(
        line(0.0112, 0.001),
        line(0.006, 0.00015),
        lambda _text: agreement,
        target_slowdown=1.9,
        draft_slowdown=1.9,
    )


WORLDS = {
    "npu": of_npu(GOOD),
    "npu, one token a pass": replace(of_npu((0.8,), pass_s=0.009), per_pass=1),
    "npu, nearly right": replace(
        of_npu((0.9,), pass_s=0.020), per_pass=8, ranks=(0.6, 0.2, 0.1, 0.05)
    ),
    "cpu": of_cpu(GOOD),
    "cpu, useless": of_cpu(BAD),
    "npu, useless and slow": of_npu(BAD, pass_s=0.080),
    "cpu, much to copy": replace(of_cpu(GOOD), copying=lambda _text: COPYING),
    "npu, better from text 10 on": replace(
        of_npu(BAD), agreement=lambda text: GOOD if text >= 10 else BAD
    ),
    "npu, useless from text 10 on": replace(
        of_npu(BAD), agreement=lambda text: BAD if text >= 10 else GOOD
    ),
    "npu, hotter and hotter": replace(of_npu(GOOD), heat=lambda text: 1 + text / 10),
}


def measured(world: World) -> Costs:
    """What a calibration would find."""
    return Costs(
        Curve(WIDTHS, tuple(map(world.target, WIDTHS))),
        Curve(WIDTHS, tuple(map(world.draft, WIDTHS))),
        world.per_pass,
        world.target_slowdown,
        world.draft_slowdown,
    )


def far_off(world: World) -> Costs:
    """A calibration of another day: all is dearer, width costs less, and nothing is shared."""
    one = world.target(1)
    target = Curve(WIDTHS, tuple(1.4 * one + 0.6 * (world.target(rows) - one) for rows in WIDTHS))
    return Costs(target, measured(world).draft, world.per_pass)


def share_of_best(name: str, costs: Callable[[World], Costs]) -> float:
    """The planner's speed by the best fixed one's."""
    world, own = WORLDS[name], texts(WORLDS[name], TEXTS)
    return best_fixed_s(name) / planned_s(world, Planner(costs(world)), own)


@functools.cache
def best_fixed_s(name: str) -> float:
    own = texts(WORLDS[name], TEXTS)
    return min(fixed_s(WORLDS[name], choice, own) for choice in FIXED)


def unmeasured(world: World) -> Costs:
    """What is taken where nothing was measured."""
    return replace(UNMEASURED, tokens_per_pass=world.per_pass)


@pytest.mark.parametrize("name", WORLDS)
def test_never_slower_than_the_best_fixed_way(name: str) -> None:
    assert share_of_best(name, measured) >= NEVER_SLOWER


@pytest.mark.parametrize("name", ["npu", "cpu", "cpu, useless"])
def test_a_wrong_calibration_is_found_out(name: str) -> None:
    assert share_of_best(name, far_off) >= NEVER_SLOWER


@pytest.mark.parametrize("name", ["npu", "cpu", "npu, useless and slow"])
def test_without_a_calibration_the_rounds_are_enough(name: str) -> None:
    assert share_of_best(name, unmeasured) >= NEVER_SLOWER


def test_no_fixed_way_is_as_good_where_texts_differ() -> None:
    world = replace(
        of_cpu(GOOD),
        agreement=lambda text: GOOD if text % 2 else BAD,
        copying=lambda text: COPYING if text % 3 == 0 else (0.05, 0.1, 0.2),
    )
    own = texts(world, TEXTS)
    best_s = min(fixed_s(world, choice, own) for choice in FIXED)
    assert best_s / planned_s(world, Planner(measured(world)), own) > 1.0


def test_the_same_again_when_told_the_same() -> None:
    world = WORLDS["npu"]
    own = texts(world, 3)
    planners = [Planner(measured(world)) for _ in range(2)]
    assert planned_s(world, planners[0], own) == planned_s(world, planners[1], own)
    assert planners[0].explain() == planners[1].explain()
