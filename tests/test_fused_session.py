"""A fused session gives the logits of a text, whatever calls it comes in, to the last bit."""

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export import gguf_file, reference
from runtime import fused as module
from runtime.branches import Rows
from runtime.cache import Buffers
from runtime.errors import BundleError, ContextError
from runtime.fused import FusedSession
from runtime.manifest import Manifest
from tests import tiny

Tokens = NDArray[np.int64]
TEXT: Tokens = np.random.default_rng(5).integers(0, len(tiny.vocabulary()), tiny.CONTEXT)
OTHER: Tokens = (TEXT + 1) % len(tiny.vocabulary())
same = np.testing.assert_array_equal


class Watched(FusedSession):
    """Notes for each call of the graph how many tokens were cached and how many it was fed."""

    calls: list[tuple[int, int]]

    def _feed(self, tokens: Tokens, num_logits: int, nodes: Rows) -> NDArray[np.float32]:
        self.calls.append((self.length, len(tokens)))
        return super()._feed(tokens, num_logits, nodes)


def opened(bundle: Path, precision: str = "int8", *, threads: int = 1, **settings: Any) -> Watched:
    manifest = Manifest.load(bundle)
    path = manifest.graph_path("target", precision)
    session = Watched(path, manifest.target.geometry, threads=threads, **settings)
    session.calls = []
    return session


def compositions(length: int) -> Iterator[list[int]]:
    """Every way to write `length` as a sum of whole numbers, in order."""
    for cuts in itertools.product((False, True), repeat=length - 1):
        ends = [place + 1 for place, cut in enumerate(cuts) if cut] + [length]
        yield [end - start for start, end in itertools.pairwise([0, *ends])]


@pytest.fixture(params=["fp32", "int8"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("start", [0, 1, 5])
def test_a_text_in_any_parts_has_the_same_logits(
    precision: str, start: int, threads: int, tiny_bundle: Path
) -> None:
    session = opened(tiny_bundle, precision, threads=threads)
    text = TEXT[: start + 6]
    wanted = opened(tiny_bundle, precision).extend(text, num_logits=6).copy()
    for parts in compositions(6):
        session.crop(start)
        end = start
        for part in parts:
            end += part
            found = session.extend(text[:end], num_logits=part)
            assert found.shape == (part, session.vocabulary)
            same(found, wanted[end - start - part : end - start], err_msg=f"{parts}")
        assert session.length == len(text)


def test_all_calls_being_bound_anew_changes_nothing(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BOUND_SHAPES", 1)
    test_a_text_in_any_parts_has_the_same_logits("int8", 1, 1, tiny_bundle)


def test_the_logits_are_those_of_the_reference_up_to_the_last_slot(
    tiny_gguf: Path, tiny_bundle: Path
) -> None:
    wanted = reference.logits(gguf_file.read(tiny_gguf).model, TEXT.tolist())
    session = opened(tiny_bundle, "fp32")
    assert session.context == len(TEXT)
    np.testing.assert_allclose(session.extend(TEXT, num_logits=len(TEXT)), wanted, atol=1e-4)
    # The last slot also takes a lone row, whose copy stands past the context.
    session.crop(len(TEXT) - 1)
    np.testing.assert_allclose(session.extend(TEXT), wanted[-1:], atol=1e-4)
    assert session.calls[-1] == (len(TEXT) - 1, 1)


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 130, 255, 256])
@pytest.mark.parametrize("num_logits", [1, 3])
def test_a_long_text_goes_in_chunks(num_logits: int, length: int, tiny_bundle: Path) -> None:
    if num_logits > length:
        return
    session = opened(tiny_bundle)
    found = session.extend(TEXT[:length], num_logits=num_logits).copy()
    assert [cached for cached, _ in session.calls] == [
        FusedSession.chunk * place for place in range(len(session.calls))
    ]
    widths = [width for _, width in session.calls]
    assert sum(widths) == length
    assert all(width == FusedSession.chunk for width in widths[:-1])
    assert num_logits <= widths[-1] < FusedSession.chunk + num_logits
    one_by_one = opened(tiny_bundle)
    for end in range(1, length + 1):
        row = one_by_one.extend(TEXT[:end])
        if end > length - num_logits:
            same(row[0], found[end - 1 - (length - num_logits)])


@pytest.mark.parametrize("chunk", [1, 2, 7, 128])
@pytest.mark.parametrize("num_logits", [1, 3])
def test_prefill_in_chunks_leaves_one_call(
    num_logits: int, chunk: int, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT[:131]
    wanted = opened(tiny_bundle).extend(text, num_logits=num_logits).copy()
    monkeypatch.setattr(FusedSession, "chunk", chunk)
    session = opened(tiny_bundle)
    while not session.prefill(text, num_logits=num_logits):
        assert session.calls[-1] == (session.length - chunk, chunk)
    assert {width for _, width in session.calls} == {chunk}
    before = list(session.calls)
    assert session.prefill(text, num_logits=num_logits), "asked again, it does nothing"
    assert session.calls == before
    same(session.extend(text, num_logits=num_logits), wanted)
    ((cached, width),) = session.calls[len(before) :]
    assert cached == len(before) * chunk
    assert num_logits <= width < num_logits + chunk


def test_the_buffer_of_logits_grows_and_is_written_again(tiny_bundle: Path) -> None:
    session, fresh = opened(tiny_bundle), opened(tiny_bundle)
    wanted = fresh.extend(TEXT[:20], num_logits=20).copy()
    for end, count in ((4, 1), (9, 5), (10, 1), (12, 2), (20, 8), (20, 1), (20, 8)):
        same(session.extend(TEXT[:end], num_logits=count), wanted[end - count : end])
    first = session.extend(TEXT[:20])
    kept = first.copy()
    second = session.extend(OTHER[:20])
    assert np.shares_memory(first, second)
    assert (first != kept).any()


@pytest.mark.parametrize("context", [2, 16])
def test_a_context_is_filled_to_the_last_slot_and_not_further(
    context: int, precision: str, tiny_bundle: Path
) -> None:
    session = opened(tiny_bundle, precision, context=context)
    wanted = opened(tiny_bundle, precision).extend(TEXT[:context], num_logits=context).copy()
    for end in range(1, context + 1):
        same(session.extend(TEXT[:end]), wanted[end - 1 : end])
    session.crop(context - 2)
    same(session.extend(TEXT[:context], num_logits=2), wanted[-2:])
    for text in (TEXT[: context + 1], OTHER[: context + 1]):
        message = f"A text of {context + 1} tokens does not fit in the context of {context}."
        with pytest.raises(ContextError, match=re.escape(message)):
            session.extend(text)
        assert session.length == context
    session.calls.clear()
    same(session.extend(TEXT[:context]), wanted[-1:])
    assert session.calls == [(context - 1, 1)]


def test_no_more_context_than_the_model_has(tiny_bundle: Path) -> None:
    assert opened(tiny_bundle, context=10**6).context == tiny.CONTEXT
    assert opened(tiny_bundle, context=7).context == 7


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_another_session_takes_a_cache_over(
    before: int, after: int, precision: str, tiny_bundle: Path
) -> None:
    wanted = opened(tiny_bundle, precision).extend(TEXT[:40], num_logits=5).copy()
    first = opened(tiny_bundle, precision, threads=before)
    first.extend(TEXT[:30])
    second = opened(tiny_bundle, precision, threads=after, cache=first.cache)
    assert second.length == 30
    same(second.extend(TEXT[:40], num_logits=5), wanted)
    assert second.calls == [(30, 10)]
    assert first.length == 40, "it is one cache"
    same(first.extend(TEXT[:40], num_logits=5), wanted)


def test_a_session_goes_from_cache_to_cache(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle)
    wanted = {
        name: opened(tiny_bundle).extend(text[:25]).copy()
        for name, text in (("one", TEXT), ("other", OTHER))
    }
    one = session.cache
    other = Buffers(session.geometry, 25)
    session.extend(TEXT[:24])
    session.use(other)
    assert (session.length, session.context) == (0, 25)
    session.extend(OTHER[:24])
    session.use(one)
    assert (session.length, session.context) == (24, tiny.CONTEXT)
    same(session.extend(TEXT[:25]), wanted["one"])
    session.use(other)
    same(session.extend(OTHER[:25]), wanted["other"])
    assert session.calls == [(0, 24), (0, 24), (24, 1), (24, 1)]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no threads")
def test_a_run_is_pinned_and_the_caller_is_not(tiny_bundle: Path) -> None:
    free = os.sched_getaffinity(0)
    core = max(free)
    session: Any = opened(tiny_bundle, cores=(core,))
    (part,), seen = session._parts, []

    class Stand:
        io_binding = part.session.io_binding

        def run_with_iobinding(self, binding: Any, options: Any) -> None:
            seen.append(os.sched_getaffinity(0))
            part.session.run_with_iobinding(binding, options)

    session._parts = [replace(part, session=Stand())]
    session.extend(TEXT[:3])
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == free


def test_a_graph_that_cannot_be_read_is_a_bundle_error(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="build the bundle again"):
        FusedSession(tmp_path / "model.onnx", Manifest.load(tiny_bundle).target.geometry, threads=1)


# The reference model.


def greedy(session: FusedSession, opening: Tokens, count: int) -> Tokens:
    text = opening
    for _ in range(count):
        text = np.append(text, session.extend(text)[0].argmax())
    return text


@pytest.mark.real_model
@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_the_reference_model_gives_one_row_whatever_the_width_and_threads(
    kind: str, smollm: Path
) -> None:
    text = (np.arange(24) * 7919 + 11) % 49152
    start = 8
    wanted = None
    for threads in (1, 2):
        session = opened(smollm, kind, threads=threads, context=64)
        for width in (1, 2, 3, 5, 8, 16):
            session.crop(start)
            rows = [
                session.extend(text[:end], num_logits=min(width, end - place)).copy()
                for place in range(start, len(text), width)
                for end in (min(place + width, len(text)),)
            ]
            found = np.concatenate(rows)
            assert found.shape == (len(text) - start, session.vocabulary)
            wanted = found if wanted is None else wanted
            same(found, wanted, err_msg=f"width {width}, {threads} threads")


@pytest.mark.real_model
def test_stop_ends_a_call_that_runs_and_every_later_one(smollm: Path) -> None:
    session = opened(smollm, "fp32", threads=1, context=2048)
    text = np.arange(2000)
    session.extend(text[:1])
    ended: list[BundleError] = []

    def read() -> None:
        try:
            session.extend(text)
        except BundleError as error:
            ended.append(error)

    thread = Thread(target=read)
    thread.start()
    while session.length < 2:  # the first chunk is through, the second runs
        thread.join(0.01)
    session.stop()
    thread.join()
    assert "terminate" in str(ended[0])
    assert session.length < len(text)
    with pytest.raises(BundleError, match="terminate"):
        session.extend(text[:3])


@pytest.mark.real_model
def test_the_reference_model_in_int8_agrees_with_float32(smollm: Path) -> None:
    exact, fast = (opened(smollm, kind, threads=2, context=128) for kind in ("fp32", "int8"))
    equal = compared = 0
    for opening in (
        [504, 3575, 282, 4649, 314],
        [6403, 4005, 253, 655],
        [1589, 1690],
        [28, 216, 34],
    ):
        text = greedy(fast, np.array(opening, np.int64), 50)
        rows = exact.extend(text[:-1], num_logits=50)
        equal += int((rows.argmax(axis=1) == text[-50:]).sum())
        compared += 50
    assert compared == 200
    assert equal / compared > 0.9
