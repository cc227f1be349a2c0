"""A bundle holds what its plan says, and the figures in its manifest are measured ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export import gguf_file, reference
from export.__main__ import main as export_main
from runtime.bundle_files import file_sha256
from runtime.flavours import open_graph
from runtime.fused import FusedSession
from runtime.manifest import Geometry, Graph, Manifest, Source
from tests import tiny


def test_the_manifest_describes_the_bundle(tiny_bundle: Path, tiny_gguf: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    manifest.verify()
    assert manifest.name == "tiny"
    assert manifest.source == Source("gguf", "tiny.gguf", file_sha256(tiny_gguf), "apache-2.0")
    assert list(manifest.target.graphs) == [
        "fused-fp32",
        "fused-int8",
        "portable-fp32",
        "portable-int8",
    ]
    assert manifest.draft is not None
    assert list(manifest.draft.graphs) == ["fused-int4", "portable-fp32"]
    stored_once = manifest.target.graphs["portable-fp32"]
    assert manifest.draft.graphs["portable-fp32"] == stored_once
    assert manifest.target.end_tokens == [0, 2]
    assert manifest.target.geometry.vocabulary == len(tiny.vocabulary())
    held = {path.relative_to(tiny_bundle).as_posix() for path in tiny_bundle.rglob("*.*")}
    assert held - {"manifest.json"} == set(manifest.files)


def test_parity_is_measured(tiny_bundle: Path) -> None:
    graphs = Manifest.load(tiny_bundle).target.graphs
    assert graphs["fused-fp32"].parity.tokens_compared == 320
    assert graphs["fused-fp32"].parity.equal_greedy_share == 1.0
    assert 0 < graphs["fused-fp32"].parity.largest_logit_difference < 1e-3
    assert graphs["fused-int8"].parity.equal_greedy_share > 0.8
    assert graphs["fused-int8"].parity.largest_logit_difference > 1e-3


def test_every_flavour_is_measured_by_running_it_here(
    tiny_gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of target and draft, on the CPU provider; and all of it is shown."""
    keys = ["gpu-fp16", "portable-fp16", "npu-int8", "npu-int4"]
    names = [f"{role}/{key}" for role in ("target", "draft") for key in keys]
    opened: list[str] = []

    def spied(folder: Path, graph: Graph, geometry: Geometry, **settings: Any) -> Any:
        assert "provider" not in settings
        opened.append(graph.file)
        return open_graph(folder, graph, geometry, **settings)

    monkeypatch.setattr("export.build.open_graph", spied)
    out = tmp_path / "bundle"
    assert (
        export_main(["gguf", str(tiny_gguf), "--out", str(out), "--graphs", ",".join(names)]) == 0
    )
    manifest = Manifest.load(out)
    assert manifest.draft is not None
    for role in (manifest.target, manifest.draft):
        assert list(role.graphs) == keys
        for key, graph in role.graphs.items():
            assert graph.file in opened
            found = graph.parity
            assert found.tokens_compared == 320
            least, most = (0.5, 20.0) if key.endswith("int4") else (0.001, 3.0)
            assert least < found.largest_logit_difference < most, key
            assert found.equal_greedy_share > (0.2 if key.endswith("int4") else 0.9), key
    capsys.readouterr()
    assert export_main(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out.splitlines()
    for key in keys:
        places = [number for number, line in enumerate(shown) if line.strip() == key]
        assert len(places) == 2
        for place in places:
            assert any("greedy tokens" in line for line in shown[place : place + 4])


def test_the_fp32_graph_gives_the_reference_logits(tiny_bundle: Path, tiny_gguf: Path) -> None:
    model = gguf_file.read(tiny_gguf).model
    path = Manifest.load(tiny_bundle).graph_path("target", "fp32")
    tokens = np.array([1, 50, 60, 270, 4, 4, 99])
    found = FusedSession(path, model.geometry, threads=1).extend(tokens, num_logits=7)
    np.testing.assert_allclose(found, reference.logits(model, tokens.tolist()), atol=1e-3)


@pytest.mark.real_model
def test_the_reference_model_agrees_with_float32(smollm: Path) -> None:
    manifest = Manifest.load(smollm)
    assert manifest.source.licence == "Apache-2.0"
    assert manifest.target.graphs["fused-fp32"].parity.equal_greedy_share >= 0.99
    assert manifest.target.graphs["fused-int8"].parity.equal_greedy_share >= 0.96
    draft = manifest.role("draft")
    assert manifest.draft_source is not None
    assert manifest.draft_source.licence == "Apache-2.0"
    assert draft.tokens_per_pass == 5
    assert list(draft.graphs) == ["fused-int8", "portable-fp32"]
    assert draft.graphs["portable-fp32"].parity.equal_greedy_share >= 0.99
    assert draft.graphs["fused-int8"].parity.equal_greedy_share >= 0.9
    generation = json.loads((smollm / "generation_config.json").read_text(encoding="utf-8"))
    assert generation == {"eos_token_id": [0, 2], "temperature": 0.2, "top_p": 0.9}
