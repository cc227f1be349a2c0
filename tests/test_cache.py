"""Where keys and values lie: exact bookkeeping of tokens, by small enumerations."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from runtime.cache import Arena, Buffers, Cache
from runtime.manifest import Geometry, Manifest
from tests import tiny

SIZE = tiny.HIDDEN // tiny.HEADS
SLOTS = 6


@pytest.fixture(scope="module")
def geometry(tiny_bundle: Path) -> Geometry:
    return Manifest.load(tiny_bundle).target.geometry


def test_what_a_cache_shares_with_any_text() -> None:
    """All texts of up to three tokens of two kinds, against all of up to four."""
    words = [text for count in range(5) for text in itertools.product((1, 2), repeat=count)]
    for cached in words[:15]:
        cache = Cache(4)
        cache.append(np.array(cached, np.int64))
        assert cache.length == len(cached)
        for text in words:
            pairs = zip(cached, text, strict=False)
            shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
            assert cache.shared_with(np.array(text, np.int64)) == shared, (cached, text)


def test_a_cache_grows_by_arrays_and_by_single_tokens() -> None:
    cache = Cache(5)
    cache.append(np.array([7, 8], np.int64))
    cache.append(9)
    cache.append(np.array([], np.int64))
    assert cache.length == 3
    assert cache.shared_with(np.array([7, 8, 9, 1])) == 3
    cache.crop(2)
    cache.append(np.array([1, 2, 3], np.int64))
    assert cache.shared_with(np.array([7, 8, 1, 2, 3])) == cache.length == cache.context == 5


def test_cropping_never_grows() -> None:
    for length, crop in itertools.product(range(4), range(-2, 7)):
        cache = Cache(4)
        cache.append(np.arange(length))
        cache.crop(crop)
        assert cache.length == max(0, min(length, crop))
        assert cache.shared_with(np.arange(4)) == cache.length


@pytest.mark.parametrize("real", [np.float32, np.float16])
def test_buffers_have_a_slot_past_the_context(real: type, geometry: Geometry) -> None:
    cache = Buffers(geometry, 8, real)
    assert cache.buffers.shape == (tiny.LAYERS, 2, 1, tiny.KV_HEADS, 9, SIZE)
    assert cache.buffers.dtype == real
    assert cache.context == 8


@pytest.mark.parametrize("real", [np.float32, np.float16])
@pytest.mark.parametrize(("context", "slots"), [(4, 6), (6, 6), (9, 6)])
def test_an_arena_is_zeros_and_holds_what_both_limits_allow(
    context: int, slots: int, real: type, geometry: Geometry
) -> None:
    arena = Arena(geometry, context, slots, real)
    assert arena.context == min(context, slots)
    assert arena.keys.shape == (tiny.LAYERS, tiny.KV_HEADS, SIZE, slots)
    assert arena.values.shape == (tiny.LAYERS, tiny.KV_HEADS, slots, SIZE)
    assert arena.keys.dtype == arena.values.dtype == real
    assert not arena.keys.any()
    assert not arena.values.any()


def test_writing_goes_where_it_was_told(geometry: Geometry) -> None:
    """Keys and values that tell their tokens' numbers, every run of slots."""
    for start, end in itertools.combinations(range(SLOTS + 1), 2):
        arena = Arena(geometry, SLOTS, SLOTS)
        told = np.arange(1, end - start + 1, dtype=np.float32)
        shape = (geometry.layers, geometry.kv_heads, SIZE, end - start)
        keys = np.broadcast_to(told, shape)
        arena.write(start, keys=keys, values=-np.swapaxes(keys, 2, 3))
        wanted = np.zeros(SLOTS)
        wanted[start:end] = told
        assert (arena.keys == wanted).all()
        assert (arena.values == -wanted[:, None]).all()
