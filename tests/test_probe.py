"""What a machine's arithmetic keeps: found out, remembered, asked again where it may differ."""

import dataclasses
import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from runtime import providers
from runtime.branches import Rows
from runtime.cache import Cache
from runtime.errors import ProviderError
from runtime.flavours import open_graph
from runtime.fused import FusedSession
from runtime.manifest import FILE_NAME, INTEGER_PROBE_FILE, Manifest, Precision
from runtime.probe import (
    WIDTHS,
    Exactness,
    check_integer_products,
    compare_widths,
    exactness,
)
from runtime.providers import as_place
from runtime.session import GraphSession

BITWISE = Exactness("bitwise", 0.0)


class ByWidth(GraphSession[Cache]):
    """A session whose logits are off by `error(width)`, `width` the text's rows of the call.

    They are off by `beside` where branches are in the call; `nodes` says how many, of each such.
    """

    chunk = 64

    def __init__(
        self,
        bundle: Path,
        error: Callable[[int], float],
        *,
        context: int = 64,
        beside: float = 0.0,
    ) -> None:
        geometry = Manifest.load(bundle).target.geometry
        super().__init__(geometry, Cache(context), logits_width=geometry.vocabulary)
        self.widths: list[int] = []
        self.nodes: list[int] = []
        self._error, self._beside = error, beside

    def new_cache(self, context: int) -> Cache:
        return Cache(context)

    def _feed(self, tokens: NDArray[np.int64], num_logits: int, nodes: Rows) -> NDArray[np.float32]:
        self.widths.append(len(tokens))
        self.cache.append(tokens)
        rows = np.outer(np.append(tokens[-num_logits:], nodes.tokens), np.ones(self.vocabulary))
        if nodes:
            self.nodes.append(len(nodes))
            rows[:num_logits] += self._beside
        return (rows + self._error(len(tokens))).astype(np.float32)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the tiny bundle, to change."""
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    return tmp_path / "bundle"


def ask(
    bundle: Path,
    folder: Path,
    session: GraphSession[Any],
    *,
    precision: str = "fp32",
    provider: str = "CPU",
    threads: int = 1,
    say: Callable[[str], None] = lambda _line: None,
) -> Exactness:
    graph = bundle / "target" / precision / "fused.onnx"
    return exactness(
        session,
        bundle=bundle,
        graph=graph,
        place=as_place(provider),
        threads=threads,
        folder=folder,
        say=say,
    )


def steady(_width: int) -> float:
    return 0.0


def test_widths_that_agree_are_bitwise(tiny_bundle: Path) -> None:
    session = ByWidth(tiny_bundle, steady)
    assert compare_widths(session) == BITWISE
    assert WIDTHS == (1, 2, 3, 8, 16)
    assert set(session.widths) >= set(WIDTHS)
    # Each width goes over the same sixteen rows.
    for width in WIDTHS:
        assert session.widths.count(width) >= 16 // width


@pytest.mark.parametrize("odd", WIDTHS)
def test_one_width_that_differs_is_a_near_tie_with_the_difference(
    odd: int, tiny_bundle: Path
) -> None:
    session = ByWidth(tiny_bundle, lambda width: 0.25 * (width == odd))
    assert compare_widths(session) == Exactness("near-tie", 0.25)
    session = ByWidth(tiny_bundle, lambda width: -0.5 * (width == odd) + 0.25 * (width == 2))
    assert compare_widths(session).largest_difference == (0.25 if odd == 2 else 0.5)


def test_branches_that_change_the_text_are_a_near_tie(tiny_bundle: Path) -> None:
    session = ByWidth(tiny_bundle, steady, beside=0.25)
    assert compare_widths(session) == Exactness("near-tie", 0.25)
    assert session.nodes == [5] * len(WIDTHS)


def test_branches_of_a_short_context_are_as_many_as_fit(tiny_bundle: Path) -> None:
    session = ByWidth(tiny_bundle, steady, beside=0.25)
    session.geometry = dataclasses.replace(session.geometry, context=7)
    assert compare_widths(session) == Exactness("near-tie", 0.25)
    assert session.nodes == [3, 2, 1]


def test_the_text_that_was_cached_stays(tiny_bundle: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    session = FusedSession(
        manifest.graph_path("target", "fp32"), manifest.target.geometry, threads=1
    )
    text = np.arange(20)
    wanted = session.extend(text).copy()
    assert compare_widths(session) == BITWISE
    assert (session.length, session.cache.shared_with(text)) == (20, 20)
    np.testing.assert_array_equal(session.extend(text), wanted)

    class Failing(ByWidth):
        def extend(self, tokens: NDArray[np.int64], **_asked: Any) -> NDArray[np.float32]:
            raise KeyboardInterrupt

    failing = Failing(tiny_bundle, steady)
    own = failing.cache
    with pytest.raises(KeyboardInterrupt):
        compare_widths(failing)
    assert failing.cache is own


@pytest.mark.parametrize("context", [2, 3, 17, 64])
def test_a_short_context_asks_no_less(context: int, tiny_bundle: Path) -> None:
    session = ByWidth(tiny_bundle, lambda width: 0.5 * (width == 16), context=context)
    assert compare_widths(session) == Exactness("near-tie", 0.5)
    assert session.context == context


def test_the_answer_is_remembered(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "probes"
    said: list[str] = []
    one_off = ByWidth(bundle, lambda width: 0.5 * (width == 1))
    first = ask(bundle, folder, one_off, say=said.append)
    assert first == Exactness("near-tie", 0.5)
    assert len(said) == 1
    later = ByWidth(bundle, steady)
    assert ask(bundle, folder, later, say=said.append) == first
    assert later.widths == []
    assert len(said) == 1
    (file,) = folder.iterdir()
    assert json.loads(file.read_text()) == dataclasses.asdict(first)


@pytest.mark.parametrize(
    "change", ["manifest", "threads", "graph", "provider", "driver", "onnxruntime", "processor"]
)
def test_it_is_asked_again_when_something_changed(
    change: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, changed = tmp_path / "probes", dict[str, Any]()
    assert ask(bundle, folder, ByWidth(bundle, steady)) == BITWISE
    later = ByWidth(bundle, lambda width: 0.5 * (width == 3))
    if change == "manifest":
        path = bundle / FILE_NAME
        path.write_text(path.read_text() + "\n")
    elif change == "threads":
        changed = {"threads": 2}
    elif change == "graph":
        changed = {"precision": "int8"}
    elif change == "provider":
        changed = {"provider": "OpenVINO"}
    elif change == "driver":
        monkeypatch.setattr(providers, "identity", lambda _place: "another driver")
    elif change == "onnxruntime":
        monkeypatch.setattr(ort, "__version__", "1.99.0")
    elif change == "processor":
        monkeypatch.setattr(platform, "machine", lambda: "abacus")
    assert ask(bundle, folder, later, **changed) == Exactness("near-tie", 0.5)
    assert len(list(folder.iterdir())) == 2


def test_the_same_bundle_elsewhere_is_not_asked_again(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "probes"
    ask(bundle, folder, ByWidth(bundle, steady))
    moved = bundle.rename(tmp_path / "moved")
    later = ByWidth(moved, steady)
    assert ask(moved, folder, later) == BITWISE
    assert later.widths == []


def test_a_folder_that_cannot_be_written_only_costs_time(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        session = ByWidth(bundle, steady)
        assert ask(bundle, tmp_path / "file" / "probes", session) == BITWISE
        assert session.widths
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'{"kind": "bitwise"}',
        b'{"kind": "bitwise", "largest_difference": null}',
        b'{"kind": "bitwise", "largest_difference": "much"}',
        b'{"kind": "bitwise", "largest_difference": [0]}',
    ],
)
def test_a_damaged_answer_is_asked_for_again(content: bytes, bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "probes"
    ask(bundle, folder, ByWidth(bundle, steady))
    (file,) = folder.iterdir()
    file.write_bytes(content)
    session = ByWidth(bundle, lambda width: 0.5 * (width == 8))
    assert ask(bundle, folder, session) == Exactness("near-tie", 0.5)
    assert session.widths
    assert ask(bundle, folder, ByWidth(bundle, steady)) == Exactness("near-tie", 0.5)
    assert list(folder.iterdir()) == [file]


def test_exact_integer_products_pass(tiny_bundle: Path) -> None:
    check_integer_products(tiny_bundle / "target" / "int8" / INTEGER_PROBE_FILE)


def doctored(path: Path) -> None:
    """Have a probe state other weights than those it multiplies with, in one place."""
    model = onnx.load(path)
    stored = next(tensor for tensor in model.graph.initializer if tensor.name == "stored")
    stated = numpy_helper.to_array(stored).copy()
    stated[200, 63] += 1 if stated[200, 63] < 127 else -1
    model.graph.initializer.append(numpy_helper.from_array(stated, "stated"))
    next(node for node in model.graph.node if node.op_type == "Identity").input[0] = "stated"
    onnx.save(model, path)


def test_inexact_integer_products_are_refused_and_not_remembered(
    bundle: Path, tmp_path: Path
) -> None:
    session = ByWidth(bundle, steady)
    doctored(bundle / "target" / "int8" / INTEGER_PROBE_FILE)
    folder = tmp_path / "probes"
    for _ in range(2):
        with pytest.raises(ProviderError, match=r"inexact \(the largest error is \d+\).*fp32"):
            ask(bundle, folder, session, precision="int8")
    assert not folder.exists()
    # A graph that multiplies no integers lies in a folder without the probe, and another provider
    # multiplies in its own way.
    assert ask(bundle, folder, session) == BITWISE
    assert ask(bundle, folder, session, precision="int8", provider="OpenVINO") == BITWISE


def test_saturated_products_are_found(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of two neighbouring products cut at 16 bits, as processors without VNNI make them."""

    class Saturating:
        def __init__(self, real: ort.InferenceSession) -> None:
            self._real = real
            self.get_inputs = real.get_inputs

        def run(self, _names: None, feeds: dict[str, NDArray[np.uint8]]) -> list[NDArray[np.int64]]:
            rows = feeds["bytes"].astype(np.int64)
            weights = self._real.run(None, feeds)[1].astype(np.int64)
            pairs = np.einsum(
                "rpk,pkn->rpn", rows.reshape(len(rows), -1, 2), weights.reshape(-1, 2, 64)
            )
            product = pairs.clip(-(2**15), 2**15 - 1).sum(axis=1) - 128 * weights.sum(axis=0)
            return [product, weights]

    load = providers.load
    monkeypatch.setattr(
        providers, "load", lambda path, threads: Saturating(load(path, threads=threads))
    )
    with pytest.raises(ProviderError, match="use --precision fp32"):
        check_integer_products(tiny_bundle / "target" / "int8" / INTEGER_PROBE_FILE)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_tiny_graphs_are_asked_in_full(
    precision: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    manifest = Manifest.load(tiny_bundle)
    graph = manifest.graph_path("target", precision)
    session = FusedSession(graph, manifest.target.geometry, threads=2, context=8)
    assert ask(tiny_bundle, tmp_path, session, precision=precision, threads=2) == BITWISE
    assert session.length == 0


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_portable_graphs_agree_but_for_rounding(precision: Precision, tiny_bundle: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    graph = manifest.graph("target", precision, flavour="portable")
    session = open_graph(tiny_bundle, graph, manifest.target.geometry, threads=1)
    text = np.arange(20)
    session.extend(text)
    for found in (compare_widths(session).largest_difference, graph.parity.width_difference):
        assert 0 <= found < (1e-4 if precision == "fp32" else 0.02)
    assert (session.length, session.cache.shared_with(text)) == (20, 20)
