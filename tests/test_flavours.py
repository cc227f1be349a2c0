"""Which graph a provider gets, and that what opens it is the flavour's own session."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import BundleError
from runtime.flavours import choose_graph, open_graph
from runtime.fused import FusedSession
from runtime.graph_names import PRECISIONS
from runtime.manifest import Manifest
from runtime.portable import PortableSession

TEXT = np.arange(30, dtype=np.int64) * 7


@pytest.fixture
def manifest(tiny_bundle: Path) -> Manifest:
    return Manifest.load(tiny_bundle)


def with_targets(manifest: Manifest, *keys: str) -> Manifest:
    """The manifest with these target graphs; what they are is of no matter here."""
    own = manifest.target.graphs
    graphs = {}
    for key in keys:
        flavour, precision = key.split("-")
        changes: dict[str, Any] = {"flavour": flavour, "precision": precision}
        graphs[key] = dataclasses.replace(own["fused-fp32"], **changes)
    return dataclasses.replace(manifest, target=dataclasses.replace(manifest.target, graphs=graphs))


ALL = [
    f"{flavour}-{precision}"
    for flavour in ("fused", "portable")
    for precision in PRECISIONS[flavour]
]


@pytest.mark.parametrize(
    ("provider", "best_first"),
    [
        (
            "CPU",
            [
                *("fused-int4", "fused-int8", "portable-int8", "fused-fp32"),
                *("portable-fp32", "fused-fp16", "portable-fp16"),
            ],
        ),
        ("OpenVINO", ["portable-fp32", "portable-fp16", "portable-int8"]),
    ],
)
def test_the_best_of_any_two_graphs_is_chosen(
    provider: str, best_first: list[str], manifest: Manifest
) -> None:
    for keys in itertools.permutations(ALL, 2):
        bundle = with_targets(manifest, *keys)
        taken = [key for key in best_first if key in keys]
        if taken:
            graph = choose_graph(bundle, "target", provider)
            assert f"{graph.flavour}-{graph.precision}" == taken[0]
        else:
            with pytest.raises(BundleError):
                choose_graph(bundle, "target", provider)


def test_a_precision_that_is_asked_for_is_given_or_refused(manifest: Manifest) -> None:
    for key, provider, precision in itertools.product(
        ALL, ("CPU", "OpenVINO"), ("fp32", "fp16", "int8", "int4")
    ):
        bundle = with_targets(manifest, key)
        flavour, own = key.split("-")
        if own == precision and (
            provider == "CPU" or (flavour == "portable" and precision != "int4")
        ):
            assert choose_graph(bundle, "target", provider, precision).precision == precision
        else:
            with pytest.raises(BundleError, match=f"no target graph in {precision} for {provider}"):
                choose_graph(bundle, "target", provider, precision)


@pytest.mark.parametrize(
    ("keys", "provider", "precision", "sentence"),
    [
        (
            ("fused-int8", "fused-fp32"),
            "OpenVINO",
            "int8",
            "has no target graph in int8 for OpenVINO, which takes portable-fp32, portable-fp16, "
            "portable-int8; it has fused-fp32, fused-int8. Build one: python -m export "
            "gguf tiny.gguf --graphs target/portable-int8,draft/fused-int4,draft/portable-fp32 --o",
        ),
        (
            ("fused-int4",),
            "OpenVINO",
            None,
            "which takes portable-fp32, portable-fp16, portable-int8; it has fused-int4.",
        ),
        ((), "CPU", "fp16", "has no target graph in fp16 for CPU, which takes fused-int4, "),
    ],
)
def test_a_bundle_without_a_graph_says_what_there_is(
    keys: tuple[str, ...],
    provider: str,
    precision: str | None,
    sentence: str,
    manifest: Manifest,
) -> None:
    with pytest.raises(BundleError) as caught:
        choose_graph(with_targets(manifest, *keys), "target", provider, precision)
    assert str(caught.value).startswith(f"The bundle {manifest.folder} ")
    assert sentence in str(caught.value)


def test_a_bundle_without_a_draft_says_so(manifest: Manifest) -> None:
    with pytest.raises(BundleError, match="no draft model"):
        choose_graph(dataclasses.replace(manifest, draft=None), "draft", "CPU")


def test_the_bundles_own_graphs_are_found(manifest: Manifest) -> None:
    """The default bundle serves a pair on the processor, and a draft on OpenVINO beside it."""
    found = {
        (role, provider): choose_graph(manifest, role, provider)
        for role in ("target", "draft")
        for provider in ("CPU", "OpenVINO")
    }
    assert {place: f"{graph.flavour}-{graph.precision}" for place, graph in found.items()} == {
        ("target", "CPU"): "fused-int8",
        ("target", "OpenVINO"): "portable-fp32",
        ("draft", "CPU"): "fused-int4",
        ("draft", "OpenVINO"): "portable-fp32",
    }


@pytest.mark.parametrize("key", ["fused-fp32", "portable-fp32", "fused-int8", "portable-int8"])
def test_a_graph_opens_as_its_flavours_session(key: str, manifest: Manifest) -> None:
    graph, geometry = manifest.target.graphs[key], manifest.target.geometry
    session = open_graph(manifest.folder, graph, geometry, threads=1, context=40)
    assert isinstance(session, FusedSession if graph.flavour == "fused" else PortableSession)
    assert session.context == 40
    assert session.extend(TEXT, num_logits=3).shape == (3, geometry.vocabulary)
    if isinstance(session, PortableSession):
        assert session.chunk == max(map(int, graph.rows))


@pytest.mark.parametrize("key", ["fused-fp32", "portable-fp32"])
def test_logits_of_another_width_than_is_due_are_named(key: str, manifest: Manifest) -> None:
    graph, geometry = manifest.target.graphs[key], manifest.target.geometry
    size = geometry.vocabulary
    larger = dataclasses.replace(geometry, vocabulary=size + 1)
    for given, columns in ((geometry, size - 1), (larger, None), (larger, size + 1)):
        said = rf"onnx does not fit .*: its logits have {size} columns where {columns or size + 1}"
        with pytest.raises(BundleError, match=said):
            open_graph(manifest.folder, graph, given, columns=columns, threads=1)
    assert open_graph(manifest.folder, graph, larger, columns=size, threads=1).context


def test_a_graph_without_its_file_is_named(manifest: Manifest, tmp_path: Path) -> None:
    for graph in manifest.target.graphs.values():
        with pytest.raises(BundleError, match=r"onnx cannot be loaded on CPU: .*build the bundle"):
            open_graph(tmp_path, graph, manifest.target.geometry, threads=1)
