"""What does not go with a target is told before the work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.distill.checks import check_records, check_settings
from export.distill.corpus import Record
from export.distill.settings import Settings
from runtime.errors import UsageError
from runtime.manifest import Geometry

GEOMETRY = Geometry(
    layers=4,
    hidden=64,
    intermediate=96,
    heads=4,
    kv_heads=2,
    head_size=16,
    vocabulary=300,
    context=50,
    rope_base=1e4,
    norm_epsilon=1e-5,
)


ALL = range(4)


def settings(**changes: Any) -> Settings:
    return replace(Settings("x", depth=2, head_width=100), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 4},
        {"layers": (0, 3), "depth": 15},
        {"lenses": (1, 3)},
        {"head_width": 300},
    ],
)
def test_what_the_target_has_may_be_asked_for(changes: dict[str, Any]) -> None:
    check_settings(settings(**changes), GEOMETRY, ALL)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"depth": 5}, "--depth asks for 5, where 4 is the most"),
        ({"layers": (0, 4)}, "--layers asks for 4, where 3 is the most"),
        ({"lenses": (1, 4)}, "--lenses asks for 4, where 3 is the most"),
        ({"lenses": (0, 1)}, "--lenses counts the layers that the target has run"),
        ({"head_width": 301}, "--head-width asks for 301, where 300 is the most"),
    ],
)
def test_what_it_has_not_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_settings(settings(**changes), GEOMETRY, ALL)


def test_layers_must_be_those_of_the_draft_it_begins_as() -> None:
    check_settings(settings(depth=2), GEOMETRY, [0, 3])
    check_settings(settings(depth=None, layers=(3,)), GEOMETRY, [0, 3])
    with pytest.raises(UsageError, match="--depth asks for 3, where 2 is the most"):
        check_settings(settings(depth=3), GEOMETRY, [0, 3])
    with pytest.raises(UsageError, match=r"--layers asks for 1, and the draft .* has \[0, 3\]"):
        check_settings(settings(layers=(0, 1)), GEOMETRY, [0, 3])


@pytest.mark.parametrize("part", ["hidden", "intermediate", "head_size"])
def test_widths_that_four_bits_cannot_hold_are_refused(part: str) -> None:
    odd = replace(GEOMETRY, **{part: 36})
    with pytest.raises(UsageError, match=r"matrices have (36|144) columns, and 32 go together"):
        check_settings(settings(), odd, ALL)


def record(*tokens: int) -> Record:
    return Record(np.array(tokens), 1, 0.0, "x")


def test_answers_must_be_there_and_of_such_a_target() -> None:
    folder = Path("corpus")
    fits = [record(1, 299), record(*range(50))]
    check_records(fits, GEOMETRY, folder)
    with pytest.raises(UsageError, match="no answers in corpus"):
        check_records([], GEOMETRY, folder)
    with pytest.raises(UsageError, match="in corpus are of another target: there is the token 300"):
        check_records([*fits, record(300, 1)], GEOMETRY, folder)
    with pytest.raises(UsageError, match="conversation of 51 tokens"):
        check_records([*fits, record(*range(51))], GEOMETRY, folder)
