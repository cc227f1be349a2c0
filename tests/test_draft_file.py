"""A draft file gives back the draft that training left, and for its own target only."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from export import gguf_file
from export.draft_file import MATRICES, NORMS, load, save
from export.model import Model
from export.trained import read_tensors
from runtime.errors import BuildError
from tests import tiny
from tests.drafts import HEADS, LAYERS, TOKENS_PER_PASS, tiny_draft, write_draft
from tests.graphs import tiny_model

SHA256 = "a" * 64


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def written(target: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    return write_draft(folder / "draft.safetensors", target, target_sha256=SHA256)


def test_a_draft_comes_back(target: Model, written: Path) -> None:
    draft, found = tiny_draft(target), load(written, target, target_sha256=SHA256)
    assert found.geometry == replace(target.geometry, layers=1)
    assert found.weights.keys() == draft.weights.keys()
    assert found.tokens_per_pass == TOKENS_PER_PASS
    assert found.mask_tokens == [len(tiny.vocabulary()), len(tiny.vocabulary()) + 1]
    assert found.logits == HEADS
    assert found.head_tokens is not None
    assert draft.head_tokens is not None
    np.testing.assert_array_equal(found.head_tokens, draft.head_tokens)
    np.testing.assert_array_equal(found.head, target.weights["head"][draft.head_tokens])
    for name in ("embedding", "head"):
        assert found.weights[name] is target.weights[name]
    for name in ("norm", "masks", *(f"layers.0.{part}" for part in NORMS)):
        np.testing.assert_array_equal(found.weights[name], draft.weights[name])
    for part in MATRICES:
        name, began_as = f"layers.0.{part}", target.weights[f"layers.{LAYERS[0]}.{part}"]
        change = draft.weights[name] - began_as
        lost = np.linalg.norm(found.weights[name] - draft.weights[name])
        assert 0 < lost < 0.085 * np.linalg.norm(change)
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    assert read_tensors(written)[1] == {
        "format": "mirror-draft-1",
        "layers": "1",
        "tokens_per_pass": "3",
        "target_sha256": SHA256,
        "licence": "MIT",
    }


def test_what_was_loaded_is_saved_with_hardly_a_loss(
    target: Model, written: Path, tmp_path: Path
) -> None:
    once = load(written, target, target_sha256=SHA256)
    save(tmp_path / "again", once, target, LAYERS)
    twice = load(tmp_path / "again", target, target_sha256="of any target")
    for name, weight in once.weights.items():
        np.testing.assert_allclose(twice.weights[name], weight, atol=1e-6)


def test_an_unchanged_draft_is_the_targets_layers(target: Model, tmp_path: Path) -> None:
    weights = {name: it for name, it in target.weights.items() if not name.startswith("layers.0.")}
    weights |= {
        name.replace("layers.1.", "layers.0."): it
        for name, it in target.weights.items()
        if name.startswith("layers.1.")
    }
    own = {name: weight for name, weight in weights.items() if not name.startswith("layers.1.")}
    draft = Model(replace(target.geometry, layers=1), own, np.arange(5))
    save(tmp_path / "draft", draft, target, [1])
    found = load(tmp_path / "draft", target, target_sha256=SHA256)
    assert found.tokens_per_pass == 1
    assert found.mask_tokens == []
    assert found.weights.keys() == own.keys()
    for name, weight in own.items():
        np.testing.assert_array_equal(found.weights[name], weight)


def test_all_layers_may_be_taken(target: Model, tmp_path: Path) -> None:
    draft = tiny_draft(target, (0, 1), tokens_per_pass=6)
    save(tmp_path / "draft", draft, target, (0, 1))
    found = load(tmp_path / "draft", target, target_sha256=SHA256)
    assert found.geometry == target.geometry
    assert found.tokens_per_pass == 6
    for name, weight in draft.weights.items():
        np.testing.assert_allclose(found.weights[name], weight, atol=0.1)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("qwen2", ("q_bias", "k_bias", "v_bias")), ("qwen3", ("q_norm", "k_norm"))],
)
def test_biases_and_head_norms_stay_the_targets(
    name: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    family = tiny.FAMILIES[name]
    path = tiny.write_gguf(tmp_path / "tiny.gguf", weights=family.weights(), pairs=family.pairs())
    target = gguf_file.read(path).model
    found = load(write_draft(tmp_path / "draft", target), target, target_sha256=SHA256)
    draft = tiny_draft(target)
    for part in parts:
        ours, kept = f"layers.0.{part}", target.weights[f"layers.1.{part}"]
        np.testing.assert_array_equal(found.weights[ours], kept)
        changed = replace(draft, weights={**draft.weights, ours: kept + 1})
        with pytest.raises(BuildError, match=rf"no change of layers\.0\.{part}: keep the target's"):
            save(tmp_path / "other", changed, target, LAYERS)


@pytest.mark.parametrize("layers", [(), (2,), (-1,), (1, 0), (0, 0), (0, 1)])
def test_layers_that_the_draft_cannot_have_are_not_saved(
    layers: tuple[int, ...], target: Model, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=r"The layers of|must have head_tokens and the sizes"):
        save(tmp_path / "draft", tiny_draft(target), target, layers)
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_finite_are_not_saved(target: Model, tmp_path: Path) -> None:
    for name in ("norm", "masks", "layers.0.q"):
        draft = tiny_draft(target)
        wrong = draft.weights[name].copy()
        wrong.flat[3] = np.inf
        draft = replace(draft, weights={**draft.weights, name: wrong})
        with pytest.raises(BuildError, match="not finite"):
            save(tmp_path / "draft", draft, target, LAYERS)
    assert not list(tmp_path.iterdir())


Change = Callable[[dict[str, Any], dict[str, str]], object]


def put(name: str, place: int | tuple[int, ...], value: float) -> Change:
    def change(tensors: dict[str, Any], _metadata: dict[str, str]) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _t, m: m.update(format="mirror-draft-2"), "format is 'mirror-draft-2', not"),
        (lambda _t, m: m.pop("format"), "format is None"),
        (lambda _t, m: m.update(target_sha256="b" * 64), "another target.* b{64}, not a{64}"),
        (lambda _t, m: m.pop("layers"), "names no layers"),
        (lambda _t, m: m.update(layers="1,"), "names no layers"),
        (lambda _t, m: m.update(layers="\u0661"), "names no layers"),
        (lambda _t, m: m.update(layers="2"), r"layers of .* are \[2\].*0 to 1, in ascending"),
        (lambda _t, m: m.update(layers="1,0"), "ascending"),
        (lambda _t, m: m.update(layers="1,1"), "ascending"),
        (lambda _t, m: m.update(layers="0,1"), r"lacks tensor 'layers\.1\..*16 in"),
        (lambda _t, m: m.pop("tokens_per_pass"), "tokens_per_pass is ''"),
        (lambda _t, m: m.update(tokens_per_pass="0"), "tokens_per_pass is '0'"),
        (lambda _t, m: m.update(tokens_per_pass="99999"), "tokens_per_pass is '99999'"),
        (lambda _t, m: m.update(tokens_per_pass="1"), "unknown tensor 'masks'"),
        (lambda _t, m: m.update(tokens_per_pass="4"), r"masks is float16 \[2, 64\] where float16"),
        (lambda t, _m: t.pop("head_tokens"), "lacks tensor 'head_tokens'"),
        (lambda t, _m: t.pop("masks"), "lacks tensor 'masks'"),
        (lambda t, _m: t.pop("layers.0.up.scale"), r"lacks tensor 'layers\.0\.up\.scale'"),
        (lambda t, _m: t.update(extra=t["norm"]), "unknown tensor 'extra'"),
        (lambda t, _m: t.update(norm=t["norm"][:-1]), r"norm is float32 \[63\] where"),
        (lambda t, _m: t.update(norm=t["norm"].astype(np.float16)), "norm is float16"),
        (lambda t, _m: t.update({"layers.0.q": t["layers.0.q"].T}), "another target"),
        (lambda t, _m: t.update(head_tokens=t["head_tokens"][:0]), "head_tokens must be ids"),
        (lambda t, _m: t.update(head_tokens=t["head_tokens"][::-1]), "head_tokens must be ids"),
        (lambda t, _m: t.update(head_tokens=t["head_tokens"][:, None]), "head_tokens is int32"),
        (put("head_tokens", -1, 271), "the target's 271 tokens in ascending order"),
        (put("head_tokens", 0, -1), "head_tokens must be ids"),
        (put("norm", 0, np.nan), "norm holds numbers that are not finite"),
        (put("layers.0.o.scale", (0, 0), np.inf), r"o\.scale holds numbers"),
    ],
)
def test_a_file_that_is_not_sound_is_refused(
    change: Change, message: str, target: Model, written: Path, tmp_path: Path
) -> None:
    tensors, metadata = read_tensors(written)
    change(tensors, metadata)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "draft", metadata)
    with pytest.raises(BuildError, match=message) as caught:
        load(tmp_path / "draft", target, target_sha256=SHA256)
    assert str(tmp_path / "draft") in str(caught.value)


def test_a_target_of_uneven_width_has_no_draft_file(written: Path, tmp_path: Path) -> None:
    uneven = replace(tiny.FAMILIES["llama"], intermediate=100)
    path = tiny.write_gguf(tmp_path / "tiny.gguf", weights=uneven.weights(), pairs=uneven.pairs())
    other = gguf_file.read(path).model
    with pytest.raises(BuildError, match="change of 100 columns"):
        write_draft(tmp_path / "draft", other)
    with pytest.raises(BuildError, match=r"no draft .* 100 columns"):
        load(written, other, target_sha256=SHA256)
