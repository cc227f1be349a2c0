"""Lets the reference round rows as the int8 graphs do, so that only the order of sums is left."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export import reference
from export.model import Model
from tests.stored import ONE_BYTE, one_byte, two_bytes_back

Array = NDArray[np.float32]


def keep_of_rows_what_int8_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte of rows after a norm, two before o, down and a mapped head; heads' norms stay."""
    norm, head_rows = reference._norm, reference._head_rows

    def rounded_norm(hidden: Array, weight: Array, epsilon: float) -> Array:
        normed = norm(hidden, weight, epsilon)
        return one_byte(normed) * ONE_BYTE if hidden.ndim == 2 else normed

    def round_before(part: Callable[..., Array], last: str) -> Callable[..., Array]:
        def rounded_part(model: Model, name: str, *inputs: Any) -> Array:
            matrix = model.weights[f"{name}.{last}"]
            nothing = np.eye(matrix.shape[1], dtype=np.float32)
            bare = replace(model, weights={**model.weights, f"{name}.{last}": nothing})
            result: Array = two_bytes_back(part(bare, name, *inputs)) @ matrix.T
            return result

        return rounded_part

    def rounded_head_rows(model: Model, hidden: Array) -> Array:
        if "head_map" not in model.weights:
            return head_rows(model, hidden)
        rows = norm(hidden, model.weights["norm"], model.geometry.norm_epsilon)
        return two_bytes_back(rows @ model.weights["head_map"].T)

    monkeypatch.setattr(reference, "_norm", rounded_norm)
    monkeypatch.setattr(reference, "_head_rows", rounded_head_rows)
    for part, last in (("_attention", "o"), ("_feed_forward", "down")):
        monkeypatch.setattr(reference, part, round_before(getattr(reference, part), last))
