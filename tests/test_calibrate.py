"""Bounds of products: what a float32 pass really sees, under the names that graphs use."""

from dataclasses import replace

import numpy as np
import pytest

from export import reference
from export.calibrate import ROOM, Bounds, bounds_of
from export.linear import matrix_shape
from export.model import Model
from tests import tiny
from tests.graphs import TEXT, tiny_model

TEXTS = [TEXT[:20].tolist(), TEXT[20:50].tolist()]
PARTS = ("qkv", "o", "gate_up", "down")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("gguf"))


def test_every_product_of_a_graph_is_there(model: Model) -> None:
    names = {f"layers.{layer}.{part}" for layer in range(tiny.LAYERS) for part in PARTS}
    found = bounds_of(model, TEXTS)
    assert found.keys() == names | {"head"}
    assert all(matrix_shape(model, name) for name in found)


def test_the_heads_products_are_the_logits(model: Model) -> None:
    rows = np.concatenate(reference.logits_of_texts(model, TEXTS))
    found = bounds_of(model, TEXTS)["head"]
    assert found.high_out == pytest.approx(ROOM * rows.max(), rel=1e-6)
    assert found.low_out == pytest.approx(ROOM * rows.min(), rel=1e-6)


def test_the_first_products_rows_are_the_normed_embedding(model: Model) -> None:
    weights = model.weights
    rows = weights["embedding"][np.concatenate(TEXTS)]
    length = np.sqrt((rows**2).mean(axis=1, keepdims=True) + model.geometry.norm_epsilon)
    normed = rows / length * weights["layers.0.attention_norm"]
    products = [normed @ weights[f"layers.0.{part}"].T for part in "qkv"]
    found = bounds_of(model, TEXTS)["layers.0.qkv"]
    sides = (normed, np.concatenate(products, axis=1))
    low_in, high_in, low_out, high_out = (
        ROOM * limit for side in sides for limit in (side.min(), side.max())
    )
    # Of what comes out a median for each of the three matrices, weighed by their sizes.
    medians = [np.median(np.abs(each)) * each.size for each in products]
    out = np.abs(sides[1]).max() * sides[1].size / sum(medians)
    into = np.abs(normed).max() / np.median(np.abs(normed))
    assert found.spread == pytest.approx(max(into, out), rel=1e-5)
    wanted = Bounds(low_in, high_in, low_out, high_out, found.spread)
    for name in Bounds.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-5)


def test_a_bias_is_added_behind_the_product(model: Model) -> None:
    biases = {
        f"layers.0.{part}_bias": np.full(len(model.weights[f"layers.0.{part}"]), 1e3, np.float32)
        for part in "qkv"
    }
    biased = replace(model, weights={**model.weights, **biases})
    assert bounds_of(biased, TEXTS)["layers.0.qkv"] == bounds_of(model, TEXTS)["layers.0.qkv"]


def test_more_text_goes_no_less_far(model: Model) -> None:
    some, all_of_it = bounds_of(model, TEXTS[:1]), bounds_of(model, TEXTS)
    for name, found in some.items():
        assert 0 < found.high_out <= all_of_it[name].high_out + 1e-4  # sums in another order
        assert 0 > found.low_out >= all_of_it[name].low_out - 1e-4


def test_watching_changes_nothing(model: Model) -> None:
    seen: list[str] = []
    watched = [*reference.states_of_texts(model, TEXTS, lambda name, *_: seen.append(name))]
    plain = [*reference.states_of_texts(model, TEXTS)]
    for one, other in zip(watched, plain, strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
    assert len(seen) == tiny.LAYERS * 7
