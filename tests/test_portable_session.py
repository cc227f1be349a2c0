"""A portable session gives the fused one's logits, whatever calls a text comes in."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.branches import Rows
from runtime.errors import BundleError, ContextError
from runtime.fused import FusedSession
from runtime.manifest import Manifest
from runtime.portable import PortableSession
from tests import tiny

Tokens = NDArray[np.int64]
Array = NDArray[np.float32]
TEXT: Tokens = np.random.default_rng(5).integers(0, len(tiny.vocabulary()), tiny.CONTEXT)
OTHER: Tokens = (TEXT + 1) % len(tiny.vocabulary())
ROWS, WIDE = 8, 64


class Watched(PortableSession):
    """Notes for each turn how many tokens were cached and how many were fed."""

    calls: list[tuple[int, int]]

    def _feed(self, tokens: Tokens, num_logits: int, nodes: Rows) -> Array:
        self.calls.append((self.length, len(tokens)))
        return super()._feed(tokens, num_logits, nodes)


def opened(bundle: Path, precision: str = "fp32", *rows: int, **settings: Any) -> Watched:
    manifest = Manifest.load(bundle)
    graph = manifest.graph("target", precision, flavour="portable")
    graphs = {
        int(number): bundle / file
        for number, file in graph.rows.items()
        if not rows or int(number) in rows
    }
    settings = {"threads": 1, "slots": graph.context} | settings
    session = Watched(graphs, manifest.target.geometry, **settings)
    session.calls = []
    return session


def plain(bundle: Path, precision: str = "fp32") -> FusedSession:
    manifest = Manifest.load(bundle)
    path = manifest.graph_path("target", precision)
    return FusedSession(path, manifest.target.geometry, threads=1)


@pytest.fixture(params=["fp32", "int8"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def close(found: Array, wanted: Array, precision: str = "fp32") -> None:
    """Equal but for float32's rounding, which in int8 tips a step of a row now and then."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 if precision == "fp32" else 0.02)


def compositions(length: int) -> Iterator[list[int]]:
    """Every way to write `length` as a sum of whole numbers, in order."""
    for cuts in itertools.product((False, True), repeat=length - 1):
        ends = [place + 1 for place, cut in enumerate(cuts) if cut] + [length]
        yield [end - start for start, end in itertools.pairwise([0, *ends])]


@pytest.mark.parametrize("rows", [(ROWS,), (WIDE,), (ROWS, WIDE)])
@pytest.mark.parametrize("start", [0, 5])
def test_a_text_in_any_parts_has_the_fused_graphs_logits(
    precision: str, start: int, rows: tuple[int, ...], tiny_bundle: Path
) -> None:
    session = opened(tiny_bundle, precision, *rows)
    text = TEXT[: start + 5]
    wanted = plain(tiny_bundle, precision).extend(text, num_logits=5).copy()
    for parts in compositions(5):
        session.crop(start)
        end = start
        for part in parts:
            end += part
            found = session.extend(text[:end], num_logits=part)
            assert found.shape == (part, session.vocabulary)
            close(found, wanted[end - start - part : end - start], precision)
        assert session.length == len(text)


@pytest.mark.parametrize("length", [1, 4, 5, 64, 65, 68, 129])
def test_more_logits_than_a_graph_gives_come_in_several_calls(
    length: int, tiny_bundle: Path
) -> None:
    wanted = plain(tiny_bundle).extend(TEXT[:length], num_logits=length).copy()
    session = opened(tiny_bundle)
    for count in {1, 2, 4, 5, 9, length - 1, length} & set(range(1, length + 1)):
        session.crop(0)
        close(session.extend(TEXT[:length], num_logits=count), wanted[-count:])
        assert session.length == length


def test_a_long_text_goes_in_chunks_of_the_widest_graph(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle)
    assert session.chunk == WIDE
    while not session.prefill(TEXT[:200], num_logits=3):
        assert session.calls[-1] == (session.length - WIDE, WIDE)
    assert len(session.calls) == 3
    close(
        session.extend(TEXT[:200], num_logits=3),
        plain(tiny_bundle).extend(TEXT[:200], num_logits=3),
    )
    assert opened(tiny_bundle, "fp32", ROWS).chunk == ROWS


def test_what_was_cropped_is_read_again(precision: str, tiny_bundle: Path) -> None:
    session, fused = opened(tiny_bundle, precision), plain(tiny_bundle, precision)
    session.extend(TEXT[:30])
    for text in (
        np.concatenate([TEXT[:20], OTHER[:9]]),
        TEXT[:25],
        OTHER[:12],
        np.concatenate([OTHER[:3], TEXT[:70]]),
    ):
        close(session.extend(text, num_logits=2), fused.extend(text, num_logits=2), precision)
    session.crop(5)
    session.calls.clear()
    close(session.extend(OTHER[:10]), fused.extend(OTHER[:10]), precision)
    assert session.calls == [(3, 7)]


@pytest.mark.parametrize("context", [2, 16, tiny.CONTEXT, None])
def test_a_context_is_filled_to_the_last_slot_and_not_further(
    context: int | None, tiny_bundle: Path
) -> None:
    session, end = opened(tiny_bundle, context=context), context or tiny.CONTEXT
    assert session.context == end
    close(session.extend(TEXT[:end]), plain(tiny_bundle).extend(TEXT[:end]))
    close(session.extend(TEXT[:end], num_logits=2)[1:], plain(tiny_bundle).extend(TEXT[:end]))
    too_long = np.append(TEXT[:end], 1)
    message = f"A text of {end + 1} tokens does not fit in the context of {end}."
    for refused in (session.extend, session.prefill):
        with pytest.raises(ContextError, match=re.escape(message)):
            refused(too_long)
    assert session.length == end


def test_no_more_context_than_model_and_slots_have(tiny_bundle: Path) -> None:
    assert opened(tiny_bundle, context=10**6).context == tiny.CONTEXT
    assert opened(tiny_bundle, context=7).context == 7


def test_another_session_takes_a_cache_over(tiny_bundle: Path) -> None:
    first = opened(tiny_bundle)
    first.extend(TEXT[:30])
    second = opened(tiny_bundle, "fp32", WIDE, threads=2, cache=first.cache)
    close(second.extend(TEXT[:40]), plain(tiny_bundle).extend(TEXT[:40]))
    assert second.calls == [(30, 10)]
    assert first.length == 40, "it is one cache"


def test_a_session_goes_from_arena_to_arena(tiny_bundle: Path) -> None:
    session, fused = opened(tiny_bundle), plain(tiny_bundle)
    one, other = session.cache, session.new_cache(25)
    assert (other.context, other.keys.shape) == (25, one.keys.shape)
    session.extend(TEXT[:24])
    session.use(other)
    session.extend(OTHER[:24])
    session.use(one)
    close(session.extend(TEXT[:25]), fused.extend(TEXT[:25]))
    session.use(other)
    close(session.extend(OTHER[:25]), fused.extend(OTHER[:25]))
    assert session.calls == [(0, 24), (0, 24), (24, 1), (24, 1)]


def test_slots_that_the_graphs_do_not_have_are_named(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle, slots=tiny.CONTEXT - 1)
    with pytest.raises(BundleError, match="does not fit its manifest"):
        session.extend(TEXT[:3])


def test_a_graph_of_another_flavour_is_named(tiny_bundle: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    graphs = {8: manifest.graph_path("target", "fp32")}
    with pytest.raises(BundleError, match="no input mask"):
        PortableSession(graphs, manifest.target.geometry, slots=256, threads=1)


def test_stop_ends_every_later_call(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle)
    session.stop()
    with pytest.raises(BundleError, match="terminate"):
        session.extend(TEXT[:9])
