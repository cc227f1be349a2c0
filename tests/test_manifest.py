"""The manifest is read strictly: whatever a bundle's folder does not bear out is refused."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.bundle_files import file_sha256
from runtime.errors import BundleError
from runtime.manifest import (
    MOST,
    EarlyExit,
    FileEntry,
    Geometry,
    Graph,
    Manifest,
    Parity,
    Role,
    Source,
)

GRAPH = "target/int8/fused.onnx"
PROBE = "target/int8/integer-probe.onnx"
FILES = (GRAPH, PROBE, "target/int8/weights.data", "tokenizer.json", "tokenizer_config.json")
GEOMETRY = Geometry(
    layers=2,
    hidden=8,
    intermediate=16,
    heads=4,
    kv_heads=2,
    head_size=2,
    vocabulary=10,
    context=32,
    rope_base=10000.0,
    norm_epsilon=1e-5,
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder with files of five bytes each, one of them a graph, and their manifest."""
    path = tmp_path / GRAPH
    path.parent.mkdir(parents=True)
    for name in FILES:
        (tmp_path / name).write_bytes(b"graph")
    graph = Graph(
        file=GRAPH, flavour="fused", precision="int8", parity=Parity(0.25, 0.97, 100, 0.0, 0.5)
    )
    manifest = Manifest(
        name="tiny",
        source=Source(kind="gguf", file="tiny.gguf", sha256="0" * 64, licence="Apache-2.0"),
        files={name: FileEntry(sha256=file_sha256(path), bytes=5) for name in FILES},
        target=Role(geometry=GEOMETRY, graphs={"fused-int8": graph}, end_tokens=[2]),
    )
    manifest.save(tmp_path)
    return tmp_path


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply `change` to the manifest as parsed JSON."""
    path = bundle / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def test_load_returns_what_was_saved(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    manifest.verify()
    assert manifest.target.geometry == GEOMETRY
    assert manifest.target.graphs["fused-int8"].parity == Parity(0.25, 0.97, 100, 0.0, 0.5)
    assert manifest.draft is None
    assert manifest.folder == bundle
    assert manifest.graph_path("target", "int8") == bundle / GRAPH
    before = (bundle / "manifest.json").read_bytes()
    manifest.save(bundle)
    assert (bundle / "manifest.json").read_bytes() == before


def test_graph_path_names_what_there_is(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    with pytest.raises(BundleError, match=r"no fused-fp32 graph.*it has fused-int8"):
        manifest.graph_path("target", "fp32")
    with pytest.raises(BundleError, match="no draft"):
        manifest.graph_path("draft", "int4")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format_version=3), "format version 3"),
        (lambda d: d.pop("format_version"), "format version None"),
        (
            lambda d: d["target"]["graphs"]["fused-int8"].update(rows={"4": GRAPH}),
            "if, and only if, its shapes are static",
        ),
        (
            lambda d: d["target"]["graphs"]["fused-int8"].update(context=64),
            "if, and only if, its shapes are static",
        ),
        (
            lambda d: d["target"]["graphs"]["fused-int8"].update(rows={"0": GRAPH}, context=64),
            "no number of rows",
        ),
        (
            lambda d: d["target"]["graphs"]["fused-int8"].update(lanes={"1": GRAPH}),
            "no number of lanes",
        ),
        (
            lambda d: d["target"]["graphs"]["fused-int8"].update(rows={"4": "gone"}, context=64),
            "not among",
        ),
        (lambda d: d.update(colour="red"), "unknown key 'colour'"),
        (lambda d: d.update(folder="/"), "folder"),
        (lambda d: d["target"].update(colour="red"), "target has the unknown key 'colour'"),
        (lambda d: d.pop("source"), "lacks the key 'source'"),
        (lambda d: d["target"]["geometry"].pop("heads"), "geometry lacks the key 'heads'"),
        (lambda d: d["target"]["geometry"].update(heads=True), "geometry.heads is True"),
        (lambda d: d["target"]["geometry"].update(heads=4.0), "geometry.heads is 4.0"),
        (lambda d: d["target"]["geometry"].update(heads=3), "cannot share"),
        (lambda d: d["target"]["geometry"].update(layers=0), "layers is 0"),
        (lambda d: d["target"]["geometry"].update(head_size=3), "head_size is 3"),
        (lambda d: d["target"].update(end_tokens=[10]), "end token 10"),
        (lambda d: d["target"].update(end_tokens=["2"]), r"end_tokens\[0\] is '2'"),
        (lambda d: d["target"].update(tokens_per_pass=0), "tokens_per_pass is 0"),
        (lambda d: d["target"].update(early_exit_layer=2), "early_exit_layer 2"),
        (lambda d: d["target"]["graphs"]["fused-int8"].update(precision="int4"), "is fused-int4"),
        (lambda d: d["target"]["graphs"]["fused-int8"].update(precision="int3"), "'int3'"),
        (lambda d: d["target"]["graphs"]["fused-int8"].update(file="x"), "not among"),
        (lambda d: d.update(draft=[]), "draft is \\[\\]"),
        (lambda d: d["files"].update({"../x": d["files"][GRAPH]}), "outside the bundle"),
        (lambda d: d["files"].update({"/etc/passwd": d["files"][GRAPH]}), "outside the bundle"),
        (lambda d: d["files"].update({"a\\..\\x": d["files"][GRAPH]}), "outside the bundle"),
        (lambda d: d["files"].update({"C:x": d["files"][GRAPH]}), "outside the bundle"),
        (lambda d: d["files"].update({"absent": d["files"][GRAPH]}), "absent is missing"),
        (lambda d: d["files"][GRAPH].update(bytes=6), "has 5 bytes where the manifest says 6"),
        (lambda d: d["files"][GRAPH].update(bytes=-1), "-1 is no size"),
        (lambda d: d["files"][GRAPH].update(bytes=1 << 64), "is no size"),
        (lambda d: d["files"][GRAPH].update(sha256="0"), "'0' is no sha256"),
        (lambda d: d["source"].update(sha256="G" * 64), "is no sha256"),
        (lambda d: d.update(draft_source={**d["source"], "sha256": "0"}), "'0' is no sha256"),
        (lambda d: d.update(lenses_source={**d["source"], "sha256": ""}), "'' is no sha256"),
        (lambda d: d.update(draft_source={**d["source"], "kind": "web"}), "draft_source.kind is"),
        (lambda d: d.update(lenses_source={}), "lenses_source lacks the key"),
        (lambda d: d["target"].update(tokens_per_pass=10**9), "tokens_per_pass is 1000000000"),
        (lambda d: d["target"].update(early_exit_layer=-1), "early_exit_layer -1"),
        (lambda d: d["target"].update(end_tokens=[-1]), "end token -1"),
        (
            lambda d: d["target"]["graphs"]["fused-int8"].update(lanes={"9" * 7: GRAPH}),
            "'9999999' is no number of lanes",
        ),
        (
            lambda d: d["target"]["graphs"]["fused-int8"].update(lanes={"9999": GRAPH}),
            "no number of lanes from 2 to 4096",
        ),
        (
            lambda d: d["target"]["graphs"]["fused-int8"]["parity"].update(tree_difference=-1.0),
            "a parity that nothing can have measured",
        ),
        (
            lambda d: d["target"]["graphs"]["fused-int8"]["parity"].pop("tree_difference"),
            "lacks the key 'tree_difference'",
        ),
        (
            lambda d: d["target"]["graphs"]["fused-int8"]["parity"].update(equal_greedy_share=1.5),
            "nothing can have measured",
        ),
    ],
)
def test_load_refuses(
    bundle: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(bundle, change)
    with pytest.raises(BundleError, match=message):
        Manifest.load(bundle)


def test_what_lies_beside_the_graphs_is_named(bundle: Path) -> None:
    edit(bundle, lambda d: d["target"].update(lenses={"1": PROBE}))
    edit(bundle, lambda d: d.update(draft={**d["target"], "lenses": {}, "head_tokens": GRAPH}))
    manifest = Manifest.load(bundle)
    assert manifest.target.lenses == {"1": PROBE}
    assert manifest.draft is not None
    assert manifest.draft.head_tokens == GRAPH


@pytest.mark.parametrize(
    ("role", "values", "message"),
    [
        ("target", {"head_tokens": GRAPH}, "target has head_tokens, which only the draft may have"),
        ("target", {"head_tokens": 3}, "head_tokens is 3 where str is needed"),
        ("draft", {"head_tokens": "x.npy"}, "head_tokens names 'x.npy', which is not among"),
        ("draft", {"head_tokens": "../x"}, "not among"),
        ("draft", {"lenses": {"1": GRAPH}}, "draft has lenses, which only the target may have"),
        ("target", {"lenses": {"1": "x.npy"}}, "lenses names 'x.npy', which is not among"),
        ("target", {"lenses": {"1": None}}, r"lenses\.1 is None where str is needed"),
        ("target", {"lenses": {"0": GRAPH}}, "the lens '0' is not between two layers"),
        ("target", {"lenses": {"2": GRAPH}}, "the lens '2' is not between two layers"),
        ("target", {"lenses": {"01": GRAPH}}, "the lens '01' is not"),
        ("target", {"lenses": {"+1": GRAPH}}, r"the lens '\+1' is not"),
        ("target", {"lenses": {"\u0661": GRAPH}}, "the lens '\u0661' is not"),
        ("target", {"lenses": {"9" * 5000: GRAPH}}, "the lens '9999"),
        ("target", {"lenses": [GRAPH]}, "lenses is"),
    ],
)
def test_what_lies_beside_the_graphs_is_checked(
    bundle: Path, role: str, values: dict[str, Any], message: str
) -> None:
    edit(bundle, lambda d: d.update(draft=dict(d["target"])))
    edit(bundle, lambda d: d[role].update(values))
    with pytest.raises(BundleError, match=message):
        Manifest.load(bundle)


def cut(bundle: Path, role: str, layer: int | None, **files: str) -> None:
    """Say that a role's graph is there in two parts."""
    parts = {"prefix": GRAPH, "suffix": GRAPH, "head": GRAPH} | files
    edit(bundle, lambda d: d.update(draft=json.loads(json.dumps(d["target"]))))
    edit(bundle, lambda d: d[role].update(early_exit_layer=layer))
    edit(bundle, lambda d: d[role]["graphs"]["fused-int8"].update(early_exit=parts))


def test_a_graph_may_be_there_in_two_parts(bundle: Path) -> None:
    cut(bundle, "target", 1)
    graph = Manifest.load(bundle).target.graphs["fused-int8"]
    assert graph.early_exit == EarlyExit(GRAPH, GRAPH, GRAPH)


@pytest.mark.parametrize(
    ("role", "layer", "files", "message"),
    [
        ("target", None, {}, "'fused-int8' has an early exit, which only a target's fused graphs"),
        ("draft", 1, {}, "'fused-int8' has an early exit, which only"),
        ("target", 2, {}, "early_exit_layer 2 is not between"),
        ("target", 1, {"prefix": "gone.onnx"}, r"names 'gone\.onnx', which is not among"),
        ("target", 1, {"suffix": "gone.onnx"}, r"names 'gone\.onnx', which is not among"),
        ("target", 1, {"head": "gone.onnx"}, r"names 'gone\.onnx', which is not among"),
        ("target", 1, {"middle": GRAPH}, "unknown key 'middle'"),
    ],
)
def test_parts_that_a_bundle_does_not_bear_out_are_refused(
    bundle: Path, role: str, layer: int | None, files: dict[str, str], message: str
) -> None:
    cut(bundle, role, layer, **files)
    with pytest.raises(BundleError, match=message):
        Manifest.load(bundle)


def test_what_was_trained_has_sources_of_its_own(bundle: Path) -> None:
    assert Manifest.load(bundle).draft_source is None
    trained = {"kind": "safetensors", "file": "draft", "sha256": "1" * 64, "licence": "MIT"}
    edit(bundle, lambda d: d.update(draft_source=trained))
    assert Manifest.load(bundle).draft_source == Source("safetensors", "draft", "1" * 64, "MIT")
    assert Manifest.load(bundle).lenses_source is None


@pytest.mark.parametrize("name", [name for name in FILES if name != GRAPH])
def test_what_is_read_must_be_listed(bundle: Path, name: str) -> None:
    edit(bundle, lambda d: d["files"].pop(name))
    with pytest.raises(BundleError, match=f"does not list {name}|{name} is not among the files"):
        Manifest.load(bundle)


def test_nothing_else_lies_beside_a_graph(bundle: Path, tmp_path: Path) -> None:
    (bundle / "notes.txt").write_text("kept for later", encoding="utf-8")
    (bundle / "target" / "int8" / "empty").mkdir()
    for litter in (".DS_Store", "._fused.onnx"):  # by file managers, and no graph's weights
        (bundle / "target" / "int8" / litter).write_bytes(b"")
    Manifest.load(bundle)
    (bundle / "target" / "int8" / "empty" / "other.data").write_bytes(b"graph")
    with pytest.raises(BundleError, match=r"other\.data is not among the files .* remove it"):
        Manifest.load(bundle)
    shutil.rmtree(bundle / "target" / "int8" / "empty")
    (bundle / "target" / "int8" / "elsewhere").symlink_to(tmp_path.parent)
    with pytest.raises(BundleError, match="elsewhere is not among the files"):
        Manifest.load(bundle)


def test_load_refuses_a_link_that_leaves_the_bundle(bundle: Path, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside"
    outside.write_bytes(b"graph")
    (bundle / GRAPH).unlink()
    (bundle / GRAPH).symlink_to(outside)
    with pytest.raises(BundleError, match="outside the bundle"):
        Manifest.load(bundle)


@pytest.mark.parametrize("name", sorted(MOST))
@pytest.mark.parametrize("value", [0, -1, 10**9, 2**63, 10**400])
def test_sizes_that_no_model_has_are_refused(bundle: Path, name: str, value: int) -> None:
    if name == "rope_base" and value == 10**9:
        value = 10**13
    edit(bundle, lambda d: d["target"]["geometry"].update({name: value}))
    with pytest.raises(BundleError, match=f"{name} is"):
        Manifest.load(bundle)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"layers": 1024, "hidden": 1 << 17, "intermediate": 1 << 20}, "weights"),
        ({"layers": 1024, "kv_heads": 2048, "heads": 2048, "context": 1 << 24}, "keys and values"),
    ],
)
def test_products_that_no_model_has_are_refused(
    bundle: Path, changes: dict[str, int], what: str
) -> None:
    edit(bundle, lambda d: d["target"]["geometry"].update(changes))
    with pytest.raises(BundleError, match=rf"geometry: The geometry makes \d+ {what}"):
        Manifest.load(bundle)


def test_the_sizes_of_the_largest_models_are_not_refused() -> None:
    Geometry(126, 16384, 53248, 128, 8, 128, 128256, 131072, 5e5, 1e-5)
    Geometry(61, 7168, 18432, 128, 128, 192, 129280, 163840, 1e4, 1e-6)
    Geometry(28, 3584, 18944, 28, 4, 128, 152064, 1010000, 1e7, 1e-6)


def test_the_weights_are_counted() -> None:
    attention = 2 * (8 * 8) + 2 * (8 * 4)
    assert GEOMETRY.weights == 2 * (attention + 3 * 8 * 16) + 10 * 8
    assert GEOMETRY.cached_per_token == 2 * 2 * 2 * 2


def test_verify_sees_a_changed_byte(bundle: Path) -> None:
    (bundle / GRAPH).write_bytes(b"grapf")
    with pytest.raises(BundleError, match="damaged"):
        Manifest.load(bundle).verify()


@pytest.mark.parametrize("text", ["", "[1]", '{"format_version": NaN}', "{"])
def test_load_refuses_what_is_not_a_json_object(bundle: Path, text: str) -> None:
    (bundle / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Manifest.load(bundle)


def test_load_refuses_a_folder_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not a bundle"):
        Manifest.load(tmp_path)


def test_geometry_refuses_what_is_not_finite() -> None:
    with pytest.raises(BundleError, match="rope_base is inf"):
        dataclasses.replace(GEOMETRY, rope_base=float("inf"))
