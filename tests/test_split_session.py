"""A target in two graphs gives the whole one's logits to the last bit, and tells of its exit."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from export import gguf_file, reference
from export.__main__ import main
from runtime.branches import Branches
from runtime.cache import Buffers
from runtime.errors import BundleError
from runtime.flavours import open_exit_head, open_graph
from runtime.fused import FusedSession
from runtime.manifest import Manifest, Precision
from runtime.split_session import SplitSession
from tests import tiny

Rows = NDArray[np.float32]
TEXT = np.random.default_rng(5).integers(0, len(tiny.vocabulary()), tiny.CONTEXT)
PRECISIONS = get_args(Precision)
same = np.testing.assert_array_equal


@pytest.fixture(scope="module")
def manifest(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The tiny model in every precision, cut between its two layers."""
    out = tmp_path_factory.mktemp("bundles") / "cut"
    graphs = ",".join(f"target/fused-{precision}" for precision in PRECISIONS)
    command = ["gguf", str(tiny_gguf), "--out", str(out), "--graphs", graphs, "--draft", "none"]
    assert main([*command, "--early-exit-layer", "1"]) == 0
    return Manifest.load(out)


def whole(manifest: Manifest, precision: str, **settings: Any) -> FusedSession:
    role = manifest.target
    settings = {"threads": 1} | settings
    session = open_graph(
        manifest.folder, role.graphs[f"fused-{precision}"], role.geometry, **settings
    )
    assert isinstance(session, FusedSession)
    return session


def split(manifest: Manifest, precision: str, **settings: Any) -> SplitSession:
    session = whole(manifest, precision, exit_layer=manifest.target.early_exit_layer, **settings)
    assert isinstance(session, SplitSession)
    return session


def compare_calls(one: FusedSession, other: FusedSession, text: NDArray[np.int64]) -> None:
    """Calls of 1 to 16 rows, with logits of one or of all, after texts that are long and short."""
    for start, width in itertools.product((0, 1, 7), range(1, 17)):
        for num_logits in {1, width}:
            rows = []
            for session in (one, other):
                session.crop(start)
                if start:
                    session.extend(text[:start])
                rows.append(session.extend(text[: start + width], num_logits=num_logits).copy())
            same(rows[0], rows[1], err_msg=f"{width} rows after {start}")
    branches = Branches((5, 6, 7, 8, 9), (9, 10, 12, 13, 5))
    for start, num_logits in ((0, 3), (8, 1), (10, 1)):
        rows = []
        for session in (one, other):
            session.crop(start)
            found = session.extend(text[:12], num_logits=num_logits, branches=branches)
            assert len(found) == num_logits + 5
            rows.append(found.copy())
        same(rows[0], rows[1], err_msg=f"a tree after {start}")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_logits_are_those_of_the_whole_graph(precision: str, manifest: Manifest) -> None:
    compare_calls(whole(manifest, precision), split(manifest, precision), TEXT)


@pytest.mark.parametrize("chunk", [1, 5, 128])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_long_text_goes_in_chunks_of_which_nobody_is_told(
    precision: str, chunk: int, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = whole(manifest, precision).extend(TEXT, num_logits=3).copy()
    monkeypatch.setattr(FusedSession, "chunk", chunk)
    session, told = split(manifest, precision), list[Rows]()
    session.on_exit = told.append
    session.prefill(TEXT, num_logits=3)
    assert session.length == chunk
    assert told == []
    same(session.extend(TEXT, num_logits=3), wanted)
    assert [rows.shape for rows in told] == [(3, tiny.HIDDEN)]
    assert session.on_exit == told.append


def test_the_exit_is_what_the_first_layers_leave(manifest: Manifest, tiny_gguf: Path) -> None:
    model = gguf_file.read(tiny_gguf).model
    *_, (after,), _ = reference.states_of_texts(model, [TEXT[:20].tolist()])
    session, told = split(manifest, "fp32"), list[Rows]()
    session.on_exit = told.append
    session.extend(TEXT[:20], num_logits=4)
    np.testing.assert_allclose(told[0], after[-4:], atol=1e-4)
    # The second branch goes on as the text does from its fifteenth token.
    tokens = [int(TEXT[3]), *TEXT[15:17].tolist()]
    session.extend(TEXT[:18], num_logits=2, branches=Branches(tuple(tokens), (4, 14, 19)))
    rows = np.concatenate([after[16:18], told[1][2:3], after[15:17]])
    assert told[1].shape == (5, tiny.HIDDEN)
    np.testing.assert_allclose(told[1], rows, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_exits_head_reads_its_rows(precision: str, manifest: Manifest, tiny_gguf: Path) -> None:
    graph = manifest.target.graphs[f"fused-{precision}"]
    head, told = open_exit_head(manifest.folder, graph, threads=1), list[Rows]()
    session = split(manifest, precision)
    session.on_exit = told.append
    session.extend(TEXT[:20], num_logits=4)
    tokens, shares = head.guesses(told[0], top=3)
    logits = reference.read_off(gguf_file.read(tiny_gguf).model, told[0])
    wanted = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    bound = 0.5 if precision in ("int4", "fp16") else 0.1
    np.testing.assert_allclose(np.take_along_axis(wanted, tokens, axis=1), shares, atol=bound)


def test_each_part_is_paced_and_told_in_turn(manifest: Manifest) -> None:
    session, seen = split(manifest, "int8"), list[object]()

    @contextmanager
    def pace(part: str, rows: int) -> Iterator[None]:
        seen.append((part, rows))
        yield
        seen.append("end")

    session.pace = pace
    session.on_exit = lambda rows: seen.append(len(rows))
    session.extend(TEXT[:6], num_logits=2, branches=Branches((1,), (4,)))
    assert seen == [("prefix", 7), "end", 3, ("suffix", 7), "end"]


def test_a_failing_exit_caches_nothing(manifest: Manifest) -> None:
    session = split(manifest, "int8")
    wanted = whole(manifest, "int8").extend(TEXT[:9], num_logits=4).copy()
    session.extend(TEXT[:5])

    def fail(_rows: Rows) -> None:
        raise ValueError("full")

    session.on_exit = fail
    with pytest.raises(ValueError, match="full"):
        session.extend(TEXT[:9], num_logits=4)
    assert session.length == 5
    session.on_exit = None
    same(session.extend(TEXT[:9], num_logits=4), wanted)


def test_a_cache_passes_between_the_whole_and_its_parts(manifest: Manifest) -> None:
    wanted = whole(manifest, "int8").extend(TEXT[:20], num_logits=4).copy()
    first = whole(manifest, "int8")
    first.extend(TEXT[:9])
    second = split(manifest, "int8", cache=first.cache)
    second.extend(TEXT[:16])
    first.use(second.cache)
    assert isinstance(first.cache, Buffers)
    assert first.length == 16
    same(first.extend(TEXT[:20], num_logits=4), wanted)


def test_stop_ends_the_part_that_comes_next(manifest: Manifest) -> None:
    session = split(manifest, "int8")
    session.on_exit = lambda _rows: session.stop()
    with pytest.raises(BundleError, match="terminate"):
        session.extend(TEXT[:5])
    assert session.length == 0


@pytest.mark.parametrize("part", ["prefix", "suffix", "both"])
def test_parts_that_do_not_fit_are_named(part: str, manifest: Manifest) -> None:
    graph = manifest.target.graphs["fused-int8"]
    assert graph.early_exit
    prefix, suffix = graph.early_exit.prefix, graph.early_exit.suffix
    files = {"prefix": (graph.file, suffix), "suffix": (prefix, prefix), "both": (suffix, prefix)}
    first, second = (manifest.folder / file for file in files[part])
    with pytest.raises(BundleError, match="build the bundle again"):
        SplitSession(first, second, manifest.target.geometry, layer=1, threads=1).extend(TEXT[:3])


def test_a_bundle_without_an_exit_is_named(tiny_bundle: Path) -> None:
    found = Manifest.load(tiny_bundle)
    graph = found.target.graphs["fused-int8"]
    with pytest.raises(BundleError, match="no early exit: build the bundle with --early-exit"):
        open_graph(found.folder, graph, found.target.geometry, exit_layer=1, threads=1)
    with pytest.raises(BundleError, match=r"fused\.onnx has no early exit"):
        open_exit_head(found.folder, graph, threads=1)


# The reference model.


@pytest.mark.real_model
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_reference_model_is_the_same_in_two_parts(
    precision: str, threads: int, smollm: Path
) -> None:
    manifest = Manifest.load(smollm)
    text = (np.arange(150) * 7919 + 11) % 49152
    one = whole(manifest, precision, threads=threads, context=200)
    other = split(manifest, precision, threads=threads, context=200)
    same(other.extend(text, num_logits=5), one.extend(text, num_logits=5))
    compare_calls(one, other, text)
