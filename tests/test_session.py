"""What sessions of every flavour share: what is fed, what stays cached, and where a text ends."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.branches import Rows
from runtime.cache import Cache
from runtime.errors import BundleError, ContextError, ProviderError
from runtime.manifest import Geometry, Manifest
from runtime.session import GraphSession, misfits_named, width_of_logits

Tokens = NDArray[np.int64]
TEXT: Tokens = np.random.default_rng(5).integers(0, 50, 64)
OTHER: Tokens = (TEXT + 1) % 50
CHUNK = 5
same = np.testing.assert_array_equal


class Noted(GraphSession[Cache]):
    """Its logits tell the text: row i holds the sum of tokens times places up to there."""

    chunk = CHUNK

    def __init__(self, geometry: Geometry, context: int = 40) -> None:
        super().__init__(geometry, Cache(context), logits_width=1)
        self.calls: list[tuple[int, int]] = []

    def new_cache(self, context: int) -> Cache:
        return Cache(context)

    def _feed(self, tokens: Tokens, num_logits: int, nodes: Rows) -> NDArray[np.float32]:
        with self.pace("whole", len(tokens) + len(nodes)):
            self.calls.append((self.length, len(tokens)))
            self.cache.append(tokens)
            text = self.cache._tokens[: self.length]
            every = np.append(text, nodes.tokens)
            own = [logits(every[sees]) for sees in nodes.sees]
            return np.concatenate([logits(text, num_logits), *own])


def logits(text: Tokens, num_logits: int = 1) -> NDArray[np.float32]:
    sums = np.cumsum(text * np.arange(1, len(text) + 1))
    return sums[-num_logits:, None].astype(np.float32)


@pytest.fixture(scope="module")
def geometry(tiny_bundle: Path) -> Geometry:
    return Manifest.load(tiny_bundle).target.geometry


@pytest.fixture
def session(geometry: Geometry) -> Noted:
    return Noted(geometry)


def compositions(length: int) -> Iterator[list[int]]:
    """Every way to write `length` as a sum of whole numbers, in order."""
    for cuts in itertools.product((False, True), repeat=length - 1):
        ends = [place + 1 for place, cut in enumerate(cuts) if cut] + [length]
        yield [end - start for start, end in itertools.pairwise([0, *ends])]


def test_a_session_tells_its_sizes(geometry: Geometry) -> None:
    session = Noted(geometry, 7)
    assert (session.context, session.length) == (7, 0)
    assert session.vocabulary == geometry.vocabulary
    assert session.geometry is geometry


@pytest.mark.parametrize("start", [0, 1, 6])
def test_a_text_in_any_parts(start: int, session: Noted) -> None:
    for parts in compositions(7):
        session.crop(start)
        end = start
        for part in parts:
            end += part
            same(session.extend(TEXT[:end], num_logits=part), logits(TEXT[:end], part))
        assert session.length == start + 7


@pytest.mark.parametrize("num_logits", [1, 2, 3, 7])
def test_a_long_text_goes_in_chunks_and_the_rest_in_one_call(
    num_logits: int, geometry: Geometry
) -> None:
    for cached, length in itertools.product(range(0, 12, 3), range(num_logits, 30)):
        session = Noted(geometry)
        if cached:
            session.extend(TEXT[:cached])
        session.calls.clear()
        found = session.extend(TEXT[:length], num_logits=num_logits)
        same(found, logits(TEXT[:length], num_logits))
        start = min(cached, length - num_logits)
        widths = [width for _, width in session.calls]
        assert [place for place, _ in session.calls] == [
            start + CHUNK * number for number in range(len(widths))
        ]
        assert sum(widths) == length - start
        assert set(widths[:-1]) <= {CHUNK}
        assert num_logits <= widths[-1] < CHUNK + num_logits


@pytest.mark.parametrize("num_logits", [1, 3])
def test_prefill_in_chunks_leaves_one_call(num_logits: int, session: Noted) -> None:
    text = TEXT[:23]
    turns = 0
    while not session.prefill(text, num_logits=num_logits):
        turns += 1
        assert session.calls == [(CHUNK * place, CHUNK) for place in range(turns)]
    before = list(session.calls)
    assert session.prefill(text, num_logits=num_logits), "asked again, it does nothing"
    assert session.calls == before
    same(session.extend(text, num_logits=num_logits), logits(text, num_logits))
    assert len(session.calls) == len(before) + 1


@pytest.mark.parametrize("length", [0, 1, 2, CHUNK])
def test_prefill_of_what_one_call_takes_does_nothing(length: int, session: Noted) -> None:
    assert session.prefill(TEXT[:length])
    assert session.calls == []


def test_prefill_follows_a_text_that_changes(session: Noted) -> None:
    while not session.prefill(TEXT[:20]):
        pass
    assert session.length == 15
    session.calls.clear()
    changed = np.concatenate([TEXT[:8], OTHER[:9]])
    assert session.prefill(changed)
    assert session.calls == [(8, CHUNK)]
    same(session.extend(changed), logits(changed))


def test_only_what_differs_is_computed(session: Noted) -> None:
    def check(text: Tokens, expected: tuple[int, int], *, num_logits: int = 1) -> None:
        session.calls.clear()
        same(session.extend(text, num_logits=num_logits), logits(text, num_logits))
        assert session.calls == [expected]
        assert session.length == len(text)

    check(TEXT[:5], (0, 5))
    check(TEXT[:9], (5, 4))
    check(TEXT[:9], (8, 1))
    check(TEXT[:9], (6, 3), num_logits=3)
    check(np.concatenate([TEXT[:6], OTHER[:5]]), (6, 5))
    check(TEXT[:8], (6, 2))
    check(TEXT[:3], (2, 1))
    check(OTHER[:4], (0, 4))
    check(OTHER[:30], (3, 27), num_logits=27)
    check(OTHER[:1], (0, 1))


def test_crop_forgets_and_nothing_else(session: Noted) -> None:
    session.extend(TEXT[:12])
    for length, left in ((100, 12), (12, 12), (7, 7), (7, 7), (9, 7), (0, 0), (-3, 0)):
        session.crop(length)
        assert session.length == left
    session.extend(TEXT[:9])
    session.crop(4)
    session.calls.clear()
    same(session.extend(TEXT[:9]), logits(TEXT[:9]))
    assert session.calls == [(4, 5)]


@pytest.mark.parametrize("context", [2, 16])
def test_a_text_that_does_not_fit_is_refused_and_nothing_is_lost(
    context: int, geometry: Geometry
) -> None:
    session = Noted(geometry, context)
    for end in range(1, context + 1):
        same(session.extend(TEXT[:end]), logits(TEXT[:end]))
    session.calls.clear()
    for text in (TEXT[: context + 1], OTHER[: context + 1]):
        message = f"A text of {context + 1} tokens does not fit in the context of {context}."
        for refused in (session.extend, session.prefill):
            with pytest.raises(ContextError, match=re.escape(message)):
                refused(text)
    assert session.calls == []
    assert session.length == context
    same(session.extend(TEXT[:context]), logits(TEXT[:context]))
    assert session.calls == [(context - 1, 1)]


def test_a_session_goes_from_cache_to_cache(session: Noted) -> None:
    one, other = session.cache, session.new_cache(9)
    session.extend(TEXT[:5])
    session.use(other)
    assert (session.length, session.context) == (0, 9)
    same(session.extend(OTHER[:4]), logits(OTHER[:4]))
    session.use(one)
    assert (session.length, session.context) == (5, 40)
    same(session.extend(TEXT[:6]), logits(TEXT[:6]))
    assert session.calls == [(0, 5), (0, 4), (5, 1)]


class Outputs:
    """What is asked of an onnxruntime session: the shapes of its outputs."""

    def __init__(self, *logits: list[Any]) -> None:
        self._found = [Output("logits", shape) for shape in logits]

    def get_outputs(self) -> list["Output"]:
        return [Output("new_keys.0", [1, 2, 3]), *self._found]


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    shape: list[Any]


def test_the_width_of_logits_is_the_graphs_own(geometry: Geometry) -> None:
    for columns in (1, 7, geometry.vocabulary):
        assert width_of_logits(geometry, Outputs(["rows", columns])) == columns
        assert width_of_logits(geometry, Outputs([8, columns]), Outputs([1, columns])) == columns


def test_logits_that_no_model_gives_are_named(geometry: Geometry) -> None:
    for outputs, said in (
        ([Outputs()], "no columns"),
        ([Outputs([])], "None columns"),
        ([Outputs([4, "columns"])], "columns columns"),
        ([Outputs([4, 0])], "0 columns"),
        ([Outputs([4, geometry.vocabulary + 1])], f"{geometry.vocabulary + 1} columns"),
        ([Outputs([4, 3]), Outputs([4, 2])], "2 or 3 columns"),
    ):
        with pytest.raises(BundleError, match=f"its manifest .its logits have {said}"):
            width_of_logits(geometry, *outputs)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, Exception])
def test_what_onnxruntime_says_of_a_misfit_is_cut_to_a_sentence(error: type[Exception]) -> None:
    said = error("  Got: 3 Expected: 2\nPlease fix it")
    with (
        pytest.raises(BundleError, match=r"manifest \(Got: 3 Expected: 2\); build") as caught,
        misfits_named(),
    ):
        raise said
    assert caught.value.__cause__ is said
    with pytest.raises(KeyboardInterrupt), misfits_named():
        raise KeyboardInterrupt


def test_a_device_without_float16_is_named() -> None:
    said = "Program Gather requires f16 but the device does not support it."
    with (
        pytest.raises(ProviderError, match=r"not compute in float16 .*take --precision fp32"),
        misfits_named(),
    ):
        raise RuntimeError(said)
