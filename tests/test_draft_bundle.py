"""A bundle with a draft from a file: built by the command line, measured, told apart and used."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export import draft_file, gguf_file, reference
from export.__main__ import main
from export.model import Model
from runtime import Sampling, locate, open_session
from runtime.bundle_files import file_sha256
from runtime.flavours import open_exit_head
from runtime.fused import FusedSession
from runtime.manifest import EarlyExit, Manifest, Source
from tests import tiny
from tests.building import STEPS, names
from tests.drafts import HEADS, LAYERS, TOKENS_PER_PASS, tiny_draft, write_draft, write_lenses
from tests.toy_wheel import MEMBER, write_wheel

GRAPHS = "target/fused-int8,target/fused-int4,draft/fused-int8,draft/fused-int4,draft/portable-fp16"


@pytest.fixture(scope="module")
def target(tiny_gguf: Path) -> Model:
    return gguf_file.read(tiny_gguf).model


@pytest.fixture(scope="module")
def draft(tiny_gguf: Path, target: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draft") / "tiny-draft.safetensors"
    return write_draft(path, target, target_sha256=file_sha256(tiny_gguf))


@pytest.fixture(scope="module")
def bundle(tiny_gguf: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundles") / "with a draft"
    assert main(["gguf", str(tiny_gguf), "--out", str(out), "--draft", str(draft)]) == 0
    return out


def test_the_manifest_tells_the_draft_from_the_target(
    bundle: Path, draft: Path, target: Model
) -> None:
    manifest = Manifest.load(bundle)
    manifest.verify()
    sha256 = file_sha256(draft)
    assert manifest.draft_source == Source("safetensors", draft.name, sha256, "MIT")
    assert manifest.lenses_source is None
    found = manifest.role("draft")
    assert found.geometry == replace(target.geometry, layers=len(LAYERS))
    assert found.tokens_per_pass == TOKENS_PER_PASS
    assert manifest.target.tokens_per_pass == 1
    assert manifest.target.head_tokens is None
    assert found.end_tokens == manifest.target.end_tokens
    assert found.head_tokens == "draft/head-tokens.npy"
    tokens = np.load(bundle / found.head_tokens)
    np.testing.assert_array_equal(tokens, tiny_draft(target).head_tokens)
    assert tokens.dtype == np.int32
    fused, portable = found.graphs["fused-int8"], found.graphs["portable-fp32"]
    assert list(found.graphs) == ["fused-int8", "portable-fp32"]
    assert fused.file == "target/int8/draft-fused.onnx"
    assert fused.lanes == {}
    assert portable.rows == {
        n: f"target/fp32/draft-portable-{n}-rows.onnx" for n in ("16", "48", "64")
    }
    assert portable.file == portable.rows["16"]
    assert portable.context == tiny.CONTEXT
    assert not (bundle / "draft" / "fp32").exists()


def test_parity_is_with_the_drafts_own_pass_in_numpy(
    bundle: Path, draft: Path, target: Model, tiny_gguf: Path
) -> None:
    graphs = Manifest.load(bundle).role("draft").graphs
    exact, rounded = graphs["portable-fp32"].parity, graphs["fused-int8"].parity
    assert exact.tokens_compared == rounded.tokens_compared == 320
    assert exact.equal_greedy_share == 1.0
    assert 0 < exact.largest_logit_difference < 1e-3
    assert rounded.equal_greedy_share > 0.8
    assert rounded.largest_logit_difference > 1e-2
    model = draft_file.load(draft, target, target_sha256=file_sha256(tiny_gguf))
    text = [1, 50, 60, 270, 4, 4, 99, *model.mask_tokens]
    path = bundle / graphs["fused-int8"].file
    found = FusedSession(path, model.geometry, threads=1).extend(np.array(text), num_logits=9)
    wanted = reference.logits(model, text)
    assert found.shape == wanted.shape == (9, HEADS)
    assert np.abs(found - wanted).max() < 0.1 * np.ptp(wanted)


def test_every_step_is_told_and_a_second_build_has_nothing_to_do(
    tiny_gguf: Path, draft: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    arguments = ["gguf", str(tiny_gguf), "--out", str(out), "--draft", str(draft)]
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("  …")]
    head = "read tiny-draft.safetensors: 1 layers, 3 tokens in a pass, 40 in its head"
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        step.partition(":")[0]
        for step in (
            *(STEPS[0], head, *STEPS[1:4], *STEPS[5:11]),
            "compute the draft's logits in numpy: ",
            "measure the draft's fused-int8 graph: ",
            "measure the draft's portable-fp32 graph: ",
            STEPS[12],
        )
    ]
    assert lines[1].startswith(head)
    assert Manifest.load(out) == Manifest.load(bundle)
    assert main(arguments) == 0
    assert "already holds tiny, complete: nothing to do" in capsys.readouterr().err


def test_another_draft_is_in_the_way(
    bundle: Path,
    tiny_gguf: Path,
    target: Model,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "tiny-draft.safetensors"
    changed = tiny_draft(target, tokens_per_pass=4)
    draft_file.save(other, changed, target, LAYERS)
    before = (bundle / "manifest.json").read_bytes()
    for word in (str(other), "model", "none"):
        assert main(["gguf", str(tiny_gguf), "--out", str(bundle), "--draft", word]) == 2
        assert "holds another bundle" in capsys.readouterr().err
    assert (bundle / "manifest.json").read_bytes() == before


def test_the_graphs_that_are_named_are_built(
    tiny_gguf: Path, draft: Path, tmp_path: Path, target: Model
) -> None:
    out = tmp_path / "bundle"
    arguments = ["gguf", str(tiny_gguf), "--out", str(out), "--draft", str(draft)]
    assert main([*arguments, "--graphs", GRAPHS]) == 0
    found = Manifest.load(out)
    assert {key: graph.file for key, graph in found.role("draft").graphs.items()} == {
        "fused-int8": "target/int8/draft-fused.onnx",
        "fused-int4": "target/int4/draft-fused.onnx",
        "portable-fp16": "draft/fp16/draft-portable-16-rows.onnx",
    }
    assert "draft/fp16/weights.data" in found.files
    for graph in found.role("draft").graphs.values():
        assert graph.parity.equal_greedy_share > (0.4 if graph.precision == "int4" else 0.8)
    # Where the draft is alone its file has one table, and half of the layers.
    alone = (out / "draft" / "fp16" / "weights.data").stat().st_size
    assert alone < 1.2 * 2 * (2 * target.weights["embedding"].size + target.geometry.weights / 2)


def test_the_draft_changes_no_text(bundle: Path) -> None:
    texts: dict[str, list[str]] = {}
    for strategy in ("autoregressive", "speculative", "mirror"):
        with open_session(bundle, strategy=strategy, threads=1, draft_threads=1) as session:
            texts[strategy] = []
            for seed in range(2):
                sampling = Sampling(temperature=0.7 * seed, seed=seed)
                answer = session.generate("1 2 the", sampling, max_new_tokens=24)
                texts[strategy].append("".join(answer))
                assert answer.metrics.to_dict()["draft_error"] is None
    assert texts["speculative"] == texts["mirror"] == texts["autoregressive"]


def test_a_draft_that_does_not_fit_leaves_nothing(
    tiny_gguf: Path, target: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = write_draft(tmp_path / "draft", target, target_sha256="b" * 64)
    arguments = ["gguf", str(tiny_gguf), "--out", str(tmp_path / "bundle"), "--draft"]
    assert main([*arguments, str(draft)]) == 1
    assert "trained for another target" in capsys.readouterr().err.splitlines()[-1]
    draft.write_bytes(b"nothing")
    assert main([*arguments, str(draft)]) == 1
    assert "no safetensors file that can be read" in capsys.readouterr().err
    assert main([*arguments, "modle"]) == 2
    assert "model, none or a draft file; 'modle' is none" in capsys.readouterr().err
    assert names(tmp_path) == ["draft"]


def test_inspect_says_what_was_trained(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bundle), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["draft_source"]["file"] == "tiny-draft.safetensors"
    assert found["lenses_source"] is None
    assert found["roles"]["draft"]["tokens_per_pass"] == TOKENS_PER_PASS
    assert found["roles"]["draft"]["head_tokens"] == "draft/head-tokens.npy"
    assert main(["inspect", str(bundle)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "draft         tiny-draft.safetensors, licence MIT" in lines
    assert "  a pass      up to 3 tokens" in lines
    assert "  head        the tokens of draft/head-tokens.npy" in lines


@pytest.fixture
def recipe(
    tiny_gguf: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A recipe with a draft and lenses beside it, whose wheel lies where pip looks."""
    folder, links = tmp_path / "recipes", tmp_path / "links"
    folder.mkdir()
    links.mkdir()
    wheel = write_wheel(links, tiny_gguf.read_bytes())
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setattr(locate, "recipe_folder", lambda: folder)
    shutil.copy(draft, folder / "toy-draft.safetensors")
    lenses = write_lenses(folder / "toy-lenses.safetensors", 1)
    found = {
        "name": "toy",
        "source": {
            "kind": "python-wheel",
            "package": "mirror-sd-toy",
            "version": "1.0",
            "wheel_sha256": file_sha256(wheel),
            "wheel_bytes": wheel.stat().st_size,
            "member": MEMBER,
            "member_sha256": file_sha256(tiny_gguf),
        },
        "licence": "Apache-2.0",
        "generation": {},
        "graphs": ["target/fused-fp32", "draft/fused-fp32"],
        "draft": {"file": "toy-draft.safetensors", "sha256": file_sha256(draft)},
        "lenses": {"file": lenses.name, "sha256": file_sha256(lenses)},
    }
    (folder / "toy.json").write_text(json.dumps(found), encoding="utf-8")
    return found


def test_a_recipe_brings_its_draft_and_lenses(
    recipe: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    arguments = ["recipe", "toy", "--offline", "--out", str(out)]
    assert main(arguments) == 0
    found = Manifest.load(out)
    for what, source in (("draft", found.draft_source), ("lenses", found.lenses_source)):
        named = recipe[what]
        assert source == Source("safetensors", named["file"], named["sha256"], "Apache-2.0")
    assert found.target.lenses == {"1": "target/lens-1.npy"}
    lens = np.load(out / "target" / "lens-1.npy")
    assert lens.shape == (tiny.HIDDEN, tiny.HIDDEN)
    assert lens.dtype == np.float16
    assert found.role("draft").lenses == {}
    assert found.role("draft").graphs["fused-fp32"].file == "target/fp32/draft-fused.onnx"
    capsys.readouterr()
    assert main(["inspect", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "lenses        toy-lenses.safetensors, licence Apache-2.0" in lines
    assert "  lenses      after 1 layers" in lines
    assert main(arguments) == 0
    assert main([*arguments, "--draft", "none"]) == 2
    assert main([*arguments[:-1], str(tmp_path / "alone"), "--draft", "none"]) == 0
    alone = Manifest.load(tmp_path / "alone")
    assert alone.draft is None
    assert alone.draft_source is None
    assert alone.target.lenses == {"1": "target/lens-1.npy"}


def test_an_exit_reads_through_its_lens_to_the_drafts_head(
    recipe: dict[str, Any], tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipes" / "toy.json"
    path.write_text(json.dumps(recipe | {"early_exit_layer": 1}), encoding="utf-8")
    out = tmp_path / "bundle"
    arguments = ["recipe", "toy", "--offline", "--out", str(out)]
    assert main(arguments) == 0
    found = Manifest.load(out)
    assert found.target.early_exit_layer == 1
    assert found.role("draft").early_exit_layer is None
    graph = found.target.graphs["fused-fp32"]
    assert graph.early_exit == EarlyExit(
        "target/fp32/prefix-1.onnx", "target/fp32/suffix-1.onnx", "target/fp32/exit-1.onnx"
    )
    rows = np.random.default_rng(2).standard_normal((3, tiny.HIDDEN)).astype(np.float32)
    tokens, _ = open_exit_head(out, graph, threads=1).guesses(rows, top=4)
    lens, known = np.load(out / "target" / "lens-1.npy"), np.load(out / "draft" / "head-tokens.npy")
    logits = reference.read_off(gguf_file.read(tiny_gguf).model, rows @ lens.T.astype(np.float32))
    wanted = known[np.argsort(-logits[:, known], axis=1)[:, :4]]
    np.testing.assert_array_equal(tokens, wanted)
    capsys.readouterr()
    assert main(["inspect", str(out)]) == 0
    assert "  exit        after layer 1" in capsys.readouterr().out.splitlines()
    assert main(arguments) == 0, "it is built already"
    assert main([*arguments[:-1], str(tmp_path / "other"), "--early-exit-layer", "2"]) == 1


def test_a_recipes_draft_must_be_the_one_that_it_pins(
    recipe: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lenses(tmp_path / "recipes" / recipe["lenses"]["file"], 1, seed=10)
    assert main(["recipe", "toy", "--offline", "--out", str(tmp_path / "bundle")]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "toy-lenses.safetensors is not the file that was asked for" in said
    (tmp_path / "recipes" / recipe["draft"]["file"]).unlink()
    assert main(["recipe", "toy", "--offline", "--out", str(tmp_path / "bundle")]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "toy-draft.safetensors is missing" in said
    assert names(tmp_path) == ["links", "recipes"]
