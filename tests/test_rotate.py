"""A turned residual stream computes the same function, without channels that stand out."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from export import gguf_file, reference
from export.linear import Int8
from export.model import Model
from export.rotate import random_rotation, rotated
from tests import tiny

Array = NDArray[np.float32]
SIZES = (1, 2, 3, 64, 101)
TEXT = np.random.default_rng(5).integers(0, len(tiny.vocabulary()), 60).tolist()
OUTLIER = 11  # a channel


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The tiny model, whose norms have weights of many sizes and both signs."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    found = gguf_file.read(tiny.write_gguf(path, weights=tiny.tensors(tied=request.param))).model
    assert ("head" in found.weights) is not request.param
    noise = np.random.default_rng(6)
    return with_weights(
        found,
        {
            name: (weight * noise.uniform(-2, 2, weight.shape)).astype(np.float32)
            for name, weight in found.weights.items()
            if weight.ndim == 1
        },
    )


def with_weights(model: Model, changes: Mapping[str, Array]) -> Model:
    assert changes.keys() <= model.weights.keys()
    return replace(model, weights={**model.weights, **changes})


@pytest.mark.parametrize("size", SIZES)
def test_a_rotation_is_orthogonal(size: int) -> None:
    for seed in range(3):
        turn = random_rotation(size, seed=seed)
        assert turn.shape == (size, size)
        assert turn.dtype == np.float64
        np.testing.assert_allclose(turn @ turn.T, np.eye(size), rtol=0, atol=1e-12)
        np.testing.assert_allclose(turn.T @ turn, np.eye(size), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_the_factorisation_behind_a_rotation_is_the_only_one(size: int) -> None:
    noise = np.random.default_rng(4).standard_normal((size, size))
    triangular = random_rotation(size, seed=4).T @ noise
    np.testing.assert_allclose(np.tril(triangular, -1), 0, atol=1e-12 * size)
    assert (np.diag(triangular) > 0).all()


def test_a_seed_names_a_rotation(model: Model) -> None:
    np.testing.assert_array_equal(random_rotation(64, seed=9), random_rotation(64, seed=9))
    assert np.abs(random_rotation(64, seed=9) - random_rotation(64, seed=8)).max() > 0.1
    once, again, other = rotated(model), rotated(model, seed=0), rotated(model, seed=1)
    for name, weight in once.weights.items():
        np.testing.assert_array_equal(weight, again.weights[name])
        if weight.ndim == 2:
            assert np.abs(weight - other.weights[name]).max() > 0.1, name


@pytest.mark.parametrize("seed", [0, 1])
def test_the_function_is_the_same(model: Model, seed: int) -> None:
    turned = rotated(model, seed=seed)
    assert turned.geometry == model.geometry
    wanted = reference.logits(model, TEXT)
    lost = np.abs(reference.logits(turned, TEXT) - wanted).max()
    assert lost < 1e-5 * np.ptp(wanted)
    # Every weight has a part in that: without its turn the function is another.
    eye = np.eye(tiny.HIDDEN, dtype=np.float32)
    for name, weight in turned.weights.items():
        if weight.ndim == 2:
            unturned = eye if name == "head_map" else model.weights[name]
            assert not np.array_equal(weight, unturned)
            mixed = reference.logits(with_weights(turned, {name: unturned}), TEXT)
            assert np.abs(mixed - wanted).max() > 1e-2 * np.ptp(wanted), name


def test_what_a_rotated_model_is_made_of(model: Model) -> None:
    before = {name: weight.copy() for name, weight in model.weights.items()}
    turned = rotated(model)
    tied = "head" not in model.weights
    assert turned.weights.keys() == model.weights.keys() | ({"head_map"} if tied else set())
    for name, weight in turned.weights.items():
        assert weight.dtype == np.float32
        mapped = name == "head_map"
        assert weight.shape == ((tiny.HIDDEN,) * 2 if mapped else model.weights[name].shape)
        if weight.ndim == 1:
            assert (weight == 1).all(), name
    assert (turned.head is turned.weights["embedding"]) == tied
    for name, weight in model.weights.items():
        np.testing.assert_array_equal(weight, before[name])


def test_what_does_not_touch_the_stream_stays(model: Model) -> None:
    noise, added = np.random.default_rng(7), {}
    half = tiny.HIDDEN // tiny.HEADS // 2
    for layer in (f"layers.{place}" for place in range(tiny.LAYERS)):
        for part in "qkv":
            size = len(model.weights[f"{layer}.{part}"])
            added[f"{layer}.{part}_bias"] = noise.standard_normal(size).astype(np.float32)
        for part in "qk":
            added[f"{layer}.{part}_norm"] = noise.uniform(0.5, 2, 2 * half).astype(np.float32)
    added["rope_factors"] = np.linspace(1, 8, half, dtype=np.float32)
    richer = replace(model, weights={**model.weights, **added})
    turned = rotated(richer)
    for name, weight in added.items():
        assert turned.weights[name] is weight
    wanted = reference.logits(richer, TEXT)
    assert np.abs(reference.logits(turned, TEXT) - wanted).max() < 1e-5 * np.ptp(wanted)
    assert np.abs(wanted - reference.logits(model, TEXT)).max() > 0.1 * np.ptp(wanted)


def test_matrices_are_turned_on_the_side_of_the_stream(model: Model) -> None:
    turn, turned = random_rotation(tiny.HIDDEN, seed=0), rotated(model).weights
    norms = {"attention_norm": ("q", "k", "v"), "feed_forward_norm": ("gate", "up")}
    wanted = {
        "embedding": model.weights["embedding"] @ turn,
    }
    if "head" in model.weights:
        wanted["head"] = model.head * model.weights["norm"] @ turn
    else:
        wanted["head_map"] = turn.T @ np.diag(model.weights["norm"]) @ turn
    for layer in (f"layers.{place}" for place in range(tiny.LAYERS)):
        for norm, readers in norms.items():
            scale = model.weights[f"{layer}.{norm}"]
            for name in (f"{layer}.{reader}" for reader in readers):
                wanted[name] = model.weights[name] * scale @ turn
        for name in (f"{layer}.o", f"{layer}.down"):
            wanted[name] = turn.T @ model.weights[name]
    assert wanted.keys() == {name for name, weight in turned.items() if weight.ndim == 2}
    for name, matrix in wanted.items():
        np.testing.assert_allclose(turned[name], matrix, atol=1e-5, err_msg=name)


def test_an_outlier_is_spread_over_all_channels(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_outlier(model)
    before, after = (largest_of_normed_rows(one, monkeypatch) for one in (model, rotated(model)))
    assert before.shape == after.shape == (2 * tiny.LAYERS + 1, len(TEXT))
    assert before.min() > 0.8 * np.sqrt(tiny.HIDDEN)  # one channel is nearly the whole row
    assert after.max() < Int8.CLIP  # so that nothing is cut off


def with_outlier(model: Model) -> Model:
    """The model with one channel a hundred times the others in the embedding."""
    embedding = model.weights["embedding"].copy()
    embedding[:, OUTLIER] = np.copysign(100 * np.abs(embedding).max(), embedding[:, OUTLIER])
    return with_weights(model, {"embedding": embedding})


def largest_of_normed_rows(model: Model, monkeypatch: pytest.MonkeyPatch) -> NDArray[np.float64]:
    """The largest magnitude by the mean length of each row behind each norm, without its weight."""
    seen = []
    norm = reference._norm

    def watched(hidden: Array, weight: Array, epsilon: float) -> Array:
        normed = norm(hidden, np.ones_like(weight), epsilon)
        seen.append(np.abs(normed).max(axis=1) / np.sqrt((normed**2).mean(axis=1)))
        return norm(hidden, weight, epsilon)

    with monkeypatch.context() as patch:
        patch.setattr(reference, "_norm", watched)
        reference.logits(model, TEXT)
    return np.array(seen, np.float64)
