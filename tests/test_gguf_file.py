"""A GGUF file is read to the letter, and what the graphs would not compute is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from export import gguf_file
from runtime.errors import BuildError
from runtime.manifest import Geometry
from tests import blocks, tiny


def test_half_split_rows_of_two_heads() -> None:
    interleaved = np.array([[0], [10], [1], [11], [2], [12], [3], [13]], np.float32)
    split = gguf_file.half_split_rows(interleaved, 4)
    assert split[:, 0].tolist() == [0, 1, 10, 11, 2, 3, 12, 13]


def test_read_gives_geometry_and_weights(tmp_path: Path) -> None:
    weights = tiny.tensors()
    found = gguf_file.read(tiny.write_gguf(tmp_path / "tiny.gguf", weights=weights))
    assert found.model.geometry == Geometry(
        layers=2,
        hidden=64,
        intermediate=96,
        heads=4,
        kv_heads=2,
        head_size=16,
        vocabulary=len(tiny.vocabulary()),
        context=256,
        rope_base=10000.0,
        norm_epsilon=float(np.float32(1e-5)),
    )
    assert found.licence == "apache-2.0"
    assert len(found.model.weights) == len(weights)
    for name, stored in (
        ("embedding", "token_embd"),
        ("head", "output"),
        ("norm", "output_norm"),
        ("layers.1.attention_norm", "blk.1.attn_norm"),
        ("layers.1.v", "blk.1.attn_v"),
        ("layers.1.o", "blk.1.attn_output"),
        ("layers.0.feed_forward_norm", "blk.0.ffn_norm"),
        ("layers.0.gate", "blk.0.ffn_gate"),
        ("layers.0.up", "blk.0.ffn_up"),
        ("layers.0.down", "blk.0.ffn_down"),
    ):
        assert np.array_equal(found.model.weights[name], weights[f"{stored}.weight"]), name
    second_head = weights["blk.1.attn_k.weight"][16:]
    assert np.array_equal(found.model.weights["layers.1.k"][16:24], second_head[0::2])
    assert np.array_equal(found.model.weights["layers.1.k"][24:], second_head[1::2])


def test_tied_head_is_the_embedding(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "tied.gguf", weights=tiny.tensors(tied=True))
    model = gguf_file.read(path).model
    assert "head" not in model.weights
    assert model.head is model.weights["embedding"]


def test_blocks_are_unpacked(tmp_path: Path) -> None:
    weights = tiny.tensors()
    path = tiny.write_gguf(tmp_path / "q8.gguf", weights=weights, quantized=True)
    up = gguf_file.read(path).model.weights["layers.0.up"]
    wanted = weights["blk.0.ffn_up.weight"]
    assert up.dtype == np.float32
    assert not np.array_equal(up, wanted)
    # Half a step of the block, and the rounding of its scale to float16 over 127 steps.
    steps = np.abs(wanted).reshape(-1, 32).max(axis=1) / 127
    assert (np.abs(up - wanted).reshape(-1, 32).max(axis=1) <= 0.57 * steps).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type to 'yarn'"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type to 'longrope'"),
        ({"llama.rope.scaling.factor": 0.0}, "scaling.factor to 0.0"),
        ({"llama.rope.scaling.factor": float("nan")}, "scaling.factor to nan"),
        ({"llama.rope.scaling.attn_factor": 1.5}, "attn_factor to 1.5"),
        ({"llama.rope.scale_linear": -2.0}, "scale_linear to -2.0"),
        ({"llama.attention.scale": 0.1}, "attention.scale to 0.1"),
        ({"llama.attention.temperature_scale": 0.1}, "temperature_scale"),
        ({"llama.final_logit_softcapping": 30.0}, "softcapping to 30.0"),
        ({"llama.pooling_type": 3}, "pooling_type to 3"),
        ({"llama.expert_count": 8}, "expert_count to 8"),
        ({"llama.logit_scale": 0.5}, "logit_scale"),
        ({"llama.attention.sliding_window": 64}, "sliding_window to 64"),
        ({"llama.rope.dimension_count": 8}, "dimension_count is 8 where the head size is 16"),
        ({"llama.attention.value_length": 8}, "value_length is 8"),
        ({"llama.attention.head_count": [4, 4]}, "one whole number"),
        ({"llama.attention.head_count": 0}, "0 heads"),
        ({"llama.attention.head_count_kv": 0}, "kv_heads is 0"),
        ({"llama.attention.head_count": 8, "llama.rope.dimension_count": 8}, "head size is 8"),
        ({"llama.attention.key_length": 0}, "where the head size is 0"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "norm_epsilon is nan"),
        ({"llama.rope.freq_base": float("inf")}, "rope_base is inf"),
        ({"llama.context_length": 1}, "context_length is 1; from 2 to 1048576"),
        ({"llama.context_length": 2_000_000}, "context_length is 2000000"),
        ({"llama.vocab_size": 300}, "vocab_size is 300 where the number of tokens is 271"),
        ({"split.count": 3}, "one part of a split model"),
        ({"llama.attention.head_count_kv": 3}, "cannot share"),
        ({"llama.embedding_length": None}, "has no llama.embedding_length"),
        ({"llama.block_count": 4_000_000_000}, "layers is 4000000000"),
        ({"llama.block_count": 1000}, r"lacks the tensor blk\.2\.attn_norm"),
        ({"llama.block_count": 3}, r"lacks the tensor blk\.2\.attn_norm"),
        ({"llama.block_count": 1}, r"holds the tensor blk\.1\.attn_k"),
        ({"llama.feed_forward_length": 128}, r"ffn_gate\.weight has the shape \(96, 64\)"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tiny.write_gguf(tmp_path / "odd.gguf", pairs=tiny.metadata(changes))
    with pytest.raises(BuildError, match=message):
        gguf_file.read(path)


def test_settings_that_change_nothing_are_accepted(tmp_path: Path) -> None:
    changes = {
        "llama.rope.scaling.type": "none",
        "llama.rope.scale_linear": 1.0,
        "llama.rope.scaling.factor": 8.0,
        "llama.rope.scaling.original_context_length": 64,
        "llama.expert_count": 0,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
    }
    path = tiny.write_gguf(tmp_path / "plain.gguf", pairs=tiny.metadata(changes))
    model = gguf_file.read(path).model
    assert model.geometry.head_size == 16
    assert "rope_factors" not in model.weights


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rope_factors_long.weight", "long.weight, which is not known"),
        ("blk.0.attn_output.bias", "is not known"),
        ("blk.1.attn_q.bias", "is not known"),
        ("blk.0.attn_q.bias", r"lacks the tensor blk\.0\.attn_k\.bias \(5 in all"),
        ("blk.0.attn_q_norm.weight", "is not known"),
        ("rope_freqs.weight", r"rope_freqs\.weight has the shape \(64,\), not \(8,\)"),
    ],
)
def test_extra_tensors_are_refused(tmp_path: Path, name: str, message: str) -> None:
    weights = tiny.tensors() | {name: np.ones(64, np.float32)}
    path = tiny.write_gguf(tmp_path / "extra.gguf", weights=weights)
    with pytest.raises(BuildError, match=message):
        gguf_file.read(path)


@pytest.mark.parametrize("name", ["rope.scale_linear", "rope.scaling.factor"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_linear_factor_becomes_rope_factors(tmp_path: Path, family: str, name: str) -> None:
    tested = tiny.FAMILIES[family]
    pairs = tested.pairs({name: 4.0})
    path = tiny.write_gguf(tmp_path / "far.gguf", weights=tested.weights(), pairs=pairs)
    stored = np.linspace(1, 8, 16, dtype=np.float32) if tested.rope_factors else np.ones(16)
    assert np.array_equal(gguf_file.read(path).model.weights["rope_factors"], stored * 4)


def test_mistral3_scales_attention_too_when_stretched(tmp_path: Path) -> None:
    tested = tiny.FAMILIES["mistral3"]
    pairs = tested.pairs({"rope.scaling.factor": 4.0})
    path = tiny.write_gguf(tmp_path / "far.gguf", weights=tested.weights(), pairs=pairs)
    with pytest.raises(BuildError, match=r"mistral3\.rope\.scaling\.factor to 4\.0"):
        gguf_file.read(path)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf")])
def test_rope_factors_must_be_positive(tmp_path: Path, value: float) -> None:
    tested = tiny.FAMILIES["llama"]
    weights = tested.weights()
    weights["rope_freqs.weight"][3] = value
    path = tiny.write_gguf(tmp_path / "zero.gguf", weights=weights, pairs=tested.pairs())
    with pytest.raises(BuildError, match=r"rope_freqs\.weight holds"):
        gguf_file.read(path)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_only_llamas_files_are_interleaved(tmp_path: Path, family: str) -> None:
    """The rows of q, k and their biases are reordered in them, and in no others."""
    tested = tiny.FAMILIES[family]
    stored = tested.weights()
    path = tiny.write_gguf(tmp_path / "rows.gguf", weights=stored, pairs=tested.pairs())
    weights = gguf_file.read(path).model.weights
    half, turned = tested.head_size // 2, 0
    for part in ("q", "k", "v"):
        for own, name in ((part, "weight"), (f"{part}_bias", "bias")):
            if f"layers.1.{own}" not in weights:
                assert not tested.biases
                continue
            found, rows = weights[f"layers.1.{own}"], stored[f"blk.1.attn_{part}.{name}"]
            if part == "v" or "llama" not in tested.architecture.replace("mistral3", "llama"):
                assert np.array_equal(found, rows)
            else:
                assert np.array_equal(found[:half], rows[: 2 * half : 2])
                assert np.array_equal(found[half : 2 * half], rows[1 : 2 * half : 2])
                turned += 1
    expected = {"llama": 4 if tested.biases else 2, "mistral3": 2}
    assert turned == expected.get(tested.architecture, 0)
    for part in "qk":
        assert (f"layers.1.{part}_norm" in weights) == tested.head_norms


@pytest.mark.parametrize(
    ("family", "name"), [("qwen2", "blk.1.attn_k.bias"), ("qwen3", "blk.0.attn_q_norm.weight")]
)
def test_what_a_family_always_has_may_not_be_missing(
    tmp_path: Path, family: str, name: str
) -> None:
    weights = tiny.FAMILIES[family].weights()
    del weights[name]
    pairs = tiny.FAMILIES[family].pairs()
    path = tiny.write_gguf(tmp_path / "less.gguf", weights=weights, pairs=pairs)
    with pytest.raises(BuildError, match=f"lacks the tensor {name}"):
        gguf_file.read(path)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    weights = tiny.tensors()
    weights["blk.0.ffn_up.weight"][3, 5] = np.nan
    path = tiny.write_gguf(tmp_path / "nan.gguf", weights=weights)
    with pytest.raises(BuildError, match=r"ffn_up\.weight holds numbers that are not finite"):
        gguf_file.read(path)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "gemma.gguf", architecture="gemma")
    with pytest.raises(BuildError, match="architecture 'gemma'"):
        gguf_file.read(path)


@pytest.mark.parametrize("kind", gguf_file.BLOCK_TYPES)
def test_every_block_type_is_decoded(tmp_path: Path, kind: str) -> None:
    """Each number equals that of a plain decoder, up to float32's rounding."""
    assert set(blocks.LAYOUTS) == set(gguf_file.BLOCK_TYPES)
    family = tiny.Family("llama", hidden=256, intermediate=8, head_size=64)
    rows = blocks.random_rows(kind, 8, 256, seed=4)
    stored = family.weights() | {"blk.1.ffn_up.weight": rows}
    path = tmp_path / "blocks.gguf"
    tiny.write_gguf(path, weights=stored, pairs=family.pairs(), kind=kind)
    found = gguf_file.read(path).model.weights["layers.1.up"]
    wanted = blocks.decode(kind, rows)
    assert found.shape == wanted.shape == (8, 256)
    assert 0.03 < wanted.std() < 0.3
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q8_K", "IQ4_NL", "TQ1_0", "F64"])
def test_other_block_types_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    family = tiny.Family("llama", hidden=256, intermediate=8, head_size=64)
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    stored = family.weights() | {
        "blk.1.ffn_up.weight": np.zeros((8, 256 // block * size), np.uint8)
    }
    path = tmp_path / "blocks.gguf"
    tiny.write_gguf(path, weights=stored, pairs=family.pairs(), kind=kind)
    with pytest.raises(BuildError, match=rf"blk\.1\.ffn_up\.weight has the block type {kind}"):
        gguf_file.read(path)


def test_integers_are_no_block_type(tmp_path: Path) -> None:
    weights: dict[str, Any] = tiny.tensors()
    weights["blk.0.ffn_up.weight"] = np.ones((96, 64), np.int8)
    path = tiny.write_gguf(tmp_path / "ints.gguf", weights=weights)
    with pytest.raises(BuildError, match=r"ffn_up\.weight has the block type I8"):
        gguf_file.read(path)
