"""Where keys and values lie: exact bookkeeping of tokens and slots, by small enumerations."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

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
    assert arena.path.tolist() == []
    assert arena.free(slots + 3).tolist() == list(range(slots))


def arena_of(geometry: Geometry) -> Arena:
    return Arena(geometry, SLOTS, SLOTS)


def new(numbers: Sequence[int], geometry: Geometry) -> dict[str, NDArray[np.float32]]:
    """Keys and values that tell their tokens' numbers, as `Arena.write` takes them."""
    shape, told = (geometry.layers, geometry.kv_heads), np.array(numbers, np.float32)
    keys = np.broadcast_to(told, (*shape, SIZE, len(numbers)))
    return {"keys": keys, "values": -np.swapaxes(keys, 2, 3)}


def held(arena: Arena) -> list[int]:
    """The numbers of the tokens in the path, by their keys; their values must agree."""
    keys, values = arena.keys[..., arena.path], arena.values[..., arena.path, :]
    numbers = keys[0, 0, 0]
    assert (keys == numbers).all()
    assert (values == -numbers[:, None]).all()
    return [int(number) for number in numbers]


def test_any_history_of_keeping_and_cropping_keeps_every_slot_once(geometry: Geometry) -> None:
    """Every order of three steps, each of which writes a branch, keeps some of it, or crops."""
    keeps = [order for count in range(3) for order in itertools.permutations(range(3), count)]
    steps: list[tuple[str, tuple[int, ...]]] = [("keep", order) for order in keeps]
    steps += [("crop", (length,)) for length in (0, 2)]
    for history in itertools.product(steps, repeat=3):
        arena, text, count = arena_of(geometry), list[int](), 1
        for kind, places in history:
            if kind == "crop":
                arena.crop(places[0])
                del text[places[0] :]
                continue
            slots = arena.free(3).copy()
            if len(slots) <= max(places, default=-1) or len(text) + len(places) > SLOTS:
                continue
            written = range(count, count + len(slots))
            arena.write(slots, **new(written, geometry))
            count += len(slots)
            before = arena.keys.copy()
            chosen = [written[place] for place in places]
            arena.keep([int(slots[place]) for place in places], chosen)
            np.testing.assert_array_equal(arena.keys, before, "nothing was moved")
            text += chosen
        assert arena.length == len(text)
        assert held(arena) == text
        assert arena.shared_with(np.array([*text, 99], np.int64)) == len(text)
        every = [*arena.path.tolist(), *arena.free(SLOTS).tolist()]
        assert sorted(every) == list(range(SLOTS)), "no slot is lost, none is used twice"


def test_writing_goes_where_it_was_told(geometry: Geometry) -> None:
    for slots in itertools.permutations(range(4), 2):
        arena = arena_of(geometry)
        arena.write(slots, **new([1, 2], geometry))
        wanted = np.zeros(SLOTS)
        wanted[list(slots)] = 1, 2
        assert (arena.keys == wanted).all()
        assert (arena.values == -wanted[:, None]).all()


def test_free_slots_are_those_behind_the_text(geometry: Geometry) -> None:
    arena = arena_of(geometry)
    arena.keep([4, 1], [10, 11])
    assert arena.path.tolist() == [4, 1]
    assert arena.free(2).tolist() == [0, 2]
    assert arena.free(9).tolist() == [0, 2, 3, 5]
    arena.crop(1)
    assert arena.path.tolist() == [4]
    assert arena.free(9).tolist() == [1, 0, 2, 3, 5], "the last forgotten is the first used again"
