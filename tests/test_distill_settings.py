"""Settings that cannot work are refused before anything is started."""

import math
from typing import Any

import pytest

from export.distill.settings import Settings
from runtime.errors import UsageError


def test_what_is_usual_can_be_had() -> None:
    usual = Settings("smollm2-135m")
    assert (usual.layers, usual.lenses) == ((), ())
    assert usual.prompts + usual.begun > 2000


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("prompts", 0, 1 << 30),
        ("begun", 0, 1 << 30),
        ("max_new_tokens", 1, 1 << 30),
        ("context", 2, 1 << 30),
        ("depth", 1, 1 << 30),
        ("head_width", 5, 1 << 30),
        ("tokens_per_pass", 1, 1 << 10),
        ("tokens", 0, 1 << 60),
        ("batch_tokens", 1, 1 << 30),
        ("rate", 0.0, 1.0),
        ("blocks", 0.0, 1.0),
        ("lens_tokens", 1, 1 << 60),
        ("seed", 0, 1 << 30),
    ],
)
def test_numbers_have_bounds(name: str, least: float, most: float) -> None:
    for value in (least, most):
        assert getattr(Settings("x", **{name: value}), name) == value  # type: ignore[arg-type]
    beyond = [least - 1, math.nan, -math.inf]
    beyond += [math.inf, most + 1] if most in (1.0, 1 << 10) else []
    for value in beyond:
        with pytest.raises(UsageError, match=rf"--{name.replace('_', '-')} is .*"):
            Settings("x", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["layers", "lenses"])
@pytest.mark.parametrize("value", [(-1,), (2, 1), (1, 1)])
def test_layers_ascend(name: str, value: tuple[int, ...]) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=rf"--{name} must be numbers from 0 up"):
        Settings("x", **changes)
    assert getattr(Settings("x", **{name: (0, 3)}), name) == (0, 3)  # type: ignore[arg-type]
