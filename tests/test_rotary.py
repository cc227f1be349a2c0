"""The tables of rotary angles, by their definition."""

from dataclasses import replace

import numpy as np
import pytest

from export.model import Model
from export.rotary import rotary_tables
from tests import tiny
from tests.graphs import tiny_model

HALF = tiny.HIDDEN // tiny.HEADS // 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("gguf"))


def test_each_pair_turns_at_its_own_frequency(model: Model) -> None:
    cosine, sine = rotary_tables(model, 257)
    assert cosine.shape == sine.shape == (257, HALF)
    assert cosine.dtype == sine.dtype == np.float32
    np.testing.assert_array_equal(cosine[0], 1)
    np.testing.assert_array_equal(sine[0], 0)
    np.testing.assert_allclose(cosine[:, 0], np.cos(np.arange(257)), atol=1e-6)
    frequencies = 10000.0 ** (-np.arange(HALF) / HALF)
    np.testing.assert_allclose(sine[200], np.sin(200 * frequencies), atol=1e-6)


@pytest.mark.parametrize("positions", [1, 2, 100])
def test_a_longer_table_begins_as_a_shorter_one(positions: int, model: Model) -> None:
    for short, long in zip(rotary_tables(model, positions), rotary_tables(model, 300), strict=True):
        assert len(short) == positions
        np.testing.assert_array_equal(short, long[:positions])


def test_factors_divide_the_frequencies(model: Model) -> None:
    factors = np.linspace(1, 8, HALF, dtype=np.float32)
    with_factors = replace(model, weights={**model.weights, "rope_factors": factors})
    cosine, sine = rotary_tables(with_factors, 50)
    plain = rotary_tables(model, 50)
    np.testing.assert_array_equal(cosine[:, 0], plain[0][:, 0], "its factor is one")
    frequencies = 10000.0 ** (-np.arange(HALF) / HALF) / factors
    np.testing.assert_allclose(sine[49], np.sin(49 * frequencies), atol=1e-6)
    assert np.abs(sine[49] - plain[1][49]).max() > 0.01
