"""The graphs that places ask for: by hand for every kind of place, and what an export can write."""

import dataclasses
from pathlib import Path
from typing import Any, get_args

import pytest

from export.__main__ import main as export_main
from export.plan import KNOWN_GRAPHS
from runtime import api, open_session
from runtime.bench import main as bench_main
from runtime.errors import BundleError, UsageError
from runtime.flavours import choose_graph
from runtime.graph_names import split_key
from runtime.manifest import Manifest, RoleName, Source
from runtime.providers import PROVIDERS, Place
from runtime.wanted import best_first, best_graph, build_command, for_draft, for_target
from tests.fake_devices import Machine, hardware

CPU, WEBGPU, QNN = Place("CPU"), Place("WebGPU", "GPU"), Place("QNN", "NPU")
OPENVINO = {kind: Place("OpenVINO", kind) for kind in PROVIDERS["OpenVINO"].devices}


def test_every_place_has_a_graph_that_can_be_built() -> None:
    for key, provider in PROVIDERS.items():
        for kind in provider.devices:
            by_role = {role: best_first(role, Place(key, kind)) for role in get_args(RoleName)}
            assert set(by_role["target"]) == set(by_role["draft"])
            names = {f"{role}/{each}" for role, keys in by_role.items() for each in keys}
            assert names
            assert names <= set(KNOWN_GRAPHS)


def test_a_target_takes_the_better_precision_and_a_draft_the_quicker_flavour() -> None:
    assert best_first("target", QNN) == ["portable-fp16", "npu-int8", "npu-int4"]
    assert best_first("draft", QNN) == ["npu-int8", "npu-int4", "portable-fp16"]


@pytest.mark.parametrize(
    ("target", "draft", "precision", "wanted"),
    [
        (CPU, CPU, "int8", {}),
        (CPU, CPU, "int4", {}),
        (CPU, None, "int8", {}),
        (WEBGPU, CPU, None, {"target": "gpu-fp16"}),
        (WEBGPU, None, None, {"target": "gpu-fp16"}),
        (WEBGPU, QNN, None, {"target": "gpu-fp16", "draft": "npu-int8"}),
        (WEBGPU, QNN, "int4", {"target": "gpu-int4", "draft": "npu-int8"}),
        (QNN, WEBGPU, None, {"target": "portable-fp16", "draft": "gpu-fp16"}),
        (QNN, WEBGPU, "int8", {"target": "npu-int8", "draft": "gpu-fp16"}),
        (CPU, QNN, "int8", {"draft": "npu-int8"}),
        (OPENVINO["GPU"], CPU, "int8", {"target": "npu-int8"}),
        (CPU, OPENVINO["CPU"], "int8", {"draft": "portable-fp32"}),
        (
            OPENVINO["CPU"],
            OPENVINO["NPU"],
            "int8",
            {"target": "portable-int8"} | {"draft": "portable-fp16"},
        ),
        (Place("CUDA", "GPU"), CPU, None, {"target": "portable-fp16"}),
    ],
)
def test_the_graphs_of_two_places(
    target: Place, draft: Place | None, precision: str | None, wanted: dict[RoleName, str]
) -> None:
    assert for_target(target, draft, precision) == wanted


def test_a_bundle_that_only_drafts_has_one_graph_for_both_roles() -> None:
    assert for_draft(CPU) == {}
    assert for_draft(QNN) == {"target": "npu-int8", "draft": "npu-int8"}


def test_a_precision_that_is_not_taken_is_refused_before_anything_is_built() -> None:
    with pytest.raises(
        UsageError, match="in int8 on WebGPU on GPU, which takes gpu-fp16, portable-fp16, gpu"
    ):
        for_target(WEBGPU, QNN, "int8")


def test_what_is_built_is_what_is_chosen(tiny_bundle: Path) -> None:
    """For every place, of a bundle that has every graph."""
    manifest = Manifest.load(tiny_bundle)
    some = manifest.target.graphs["fused-int8"]
    graphs = {}
    for name in KNOWN_GRAPHS:
        flavour, precision = split_key(name.partition("/")[2])
        graphs[f"{flavour}-{precision}"] = dataclasses.replace(
            some, flavour=flavour, precision=precision
        )
    full = dataclasses.replace(manifest, target=dataclasses.replace(manifest.target, graphs=graphs))
    for key, provider in PROVIDERS.items():
        for kind in provider.devices:
            graph = choose_graph(full, "target", Place(key, kind))
            assert f"{graph.flavour}-{graph.precision}" == best_graph("target", Place(key, kind))


def test_the_command_that_is_named_builds_the_graph(
    tiny_gguf: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest = dataclasses.replace(Manifest.load(tiny_bundle), folder=tmp_path / "a b")
    with pytest.raises(BundleError) as caught:
        choose_graph(manifest, "target", WEBGPU, "fp16")
    command = build_command(manifest, {"target": "gpu-fp16"})
    assert str(caught.value).endswith(f"Build one: {command}")
    monkeypatch.chdir(tiny_gguf.parent)
    words = command.replace("'", "").replace("a b", "a\0b").split()
    assert export_main([word.replace("\0", " ") for word in words[3:]]) == 0
    built = Manifest.load(tmp_path / "a b-gpu-fp16")
    assert list(built.target.graphs) == ["gpu-fp16"]
    assert built.draft is not None
    assert manifest.draft is not None
    assert set(built.draft.graphs) == set(manifest.draft.graphs)


def test_a_recipes_bundle_and_a_drafts_file_are_named(tiny_bundle: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    held = "target/fused-fp32,target/fused-int8,target/portable-fp32,target/portable-int8"
    wheel = Source("python-wheel", "llm==1: a.gguf", "0" * 64, "MIT")
    recipe = dataclasses.replace(manifest, name="smollm", source=wheel, draft_source=wheel)
    assert build_command(recipe, {"draft": "npu-int8"}).startswith(
        f"python -m export recipe smollm --graphs {held},draft/npu-int8 --out "
    )
    drafted = dataclasses.replace(manifest, draft_source=Source("safetensors", "d.s", "", "MIT"))
    assert " --draft d.s --out " in build_command(drafted, {"draft": "npu-int8"})


@pytest.mark.parametrize(
    ("settings", "graphs"),
    [
        ({}, [{}]),
        ({"device": "GPU"}, [{"target": "gpu-fp16"}]),
        (
            {"device": "GPU", "draft_device": "NPU", "precision": "fp32"},
            [{"target": "gpu-fp32", "draft": "npu-int8"}],
        ),
        (
            {"device": "GPU", "draft_device": "NPU", "draft_model": "small.gguf"},
            [{"target": "gpu-fp16"}, {"target": "npu-int8", "draft": "npu-int8"}],
        ),
    ],
)
def test_a_session_and_the_bench_ask_for_the_graphs_of_their_places(
    settings: dict[str, Any],
    graphs: list[dict[RoleName, str]],
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Machine(monkeypatch, libraries={"QNN": [hardware("NPU")], "WebGPU": [hardware("GPU")]})
    asked: list[dict[RoleName, str]] = []

    def locate(_name: Any, **given: Any) -> Path:
        asked.append(dict(given["graphs"]))
        if len(asked) == len(graphs):
            raise BundleError("That is all.")
        return tiny_bundle

    monkeypatch.setattr(api, "locate_bundle", locate)
    with pytest.raises(BundleError, match="That is all"):
        open_session("a.gguf", cache_dir=tmp_path, **settings)
    assert asked == graphs
    asked.clear()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    assert bench_main(["-m", "a.gguf", *flags], locate=locate, open_session=open_session) == 1
    assert asked == graphs
