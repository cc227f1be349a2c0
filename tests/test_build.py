"""A bundle holds what its plan says, and the figures in its manifest are measured ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from export import gguf_file, reference
from runtime.bundle_files import file_sha256
from runtime.fused import FusedSession
from runtime.manifest import Manifest, Source
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
