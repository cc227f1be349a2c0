"""A GGUF file is read to the letter, and what the graphs would not compute is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export import gguf_file
from runtime.errors import BuildError
from runtime.manifest import Geometry
from tests import tiny


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
        ({"llama.rope.scaling.type": "linear"}, "rope.scaling.type to 'linear'"),
        ({"llama.rope.scale_linear": 2.0}, "scale_linear to 2.0"),
        ({"llama.expert_count": 8}, "expert_count to 8"),
        ({"llama.logit_scale": 0.5}, "logit_scale"),
        ({"llama.attention.sliding_window": 64}, "sliding_window to 64"),
        ({"llama.rope.dimension_count": 8}, "dimension_count is 8 where the head size is 16"),
        ({"llama.attention.value_length": 8}, "value_length is 8"),
        ({"llama.attention.head_count": [4, 4]}, "one whole number"),
        ({"llama.attention.head_count": 0}, "0 heads"),
        ({"llama.attention.head_count_kv": 3}, "cannot share"),
        ({"llama.embedding_length": None}, "has no llama.embedding_length"),
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
        "llama.expert_count": 0,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
    }
    path = tiny.write_gguf(tmp_path / "plain.gguf", pairs=tiny.metadata(changes))
    assert gguf_file.read(path).model.geometry.head_size == 16


@pytest.mark.parametrize(
    ("name", "message"),
    [("rope_freqs.weight", "scales the rotary"), ("blk.0.attn_q.bias", "is not known")],
)
def test_extra_tensors_are_refused(tmp_path: Path, name: str, message: str) -> None:
    weights = tiny.tensors() | {name: np.ones(64, np.float32)}
    path = tiny.write_gguf(tmp_path / "extra.gguf", weights=weights)
    with pytest.raises(BuildError, match=message):
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


def test_integers_are_no_block_type(tmp_path: Path) -> None:
    weights: dict[str, Any] = tiny.tensors()
    weights["blk.0.ffn_up.weight"] = np.ones((96, 64), np.int8)
    path = tiny.write_gguf(tmp_path / "ints.gguf", weights=weights)
    with pytest.raises(BuildError, match=r"ffn_up\.weight has the block type I8"):
        gguf_file.read(path)


def test_a_tensor_named_twice_is_refused(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "twice.gguf")
    content = path.read_bytes()
    assert content.count(b"blk.1.attn_q.weight") == 1
    path.write_bytes(content.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"))
    with pytest.raises(BuildError, match=r"blk\.0\.attn_q\.weight"):
        gguf_file.read(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5, 0.99])
def test_a_file_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = tiny.write_gguf(tmp_path / "cut.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BuildError, match="not a GGUF file that can be read"):
        gguf_file.read(path)


def test_a_file_of_changed_bytes_is_read_or_refused(tmp_path: Path) -> None:
    """Whatever stands in the header, the outcome is a model or a sentence."""
    path = tiny.write_gguf(tmp_path / "changed.gguf")
    content = path.read_bytes()
    noise = np.random.default_rng(5)
    refused = 0
    for _ in range(80):
        changed = bytearray(content)
        changed[int(noise.integers(6200))] = int(noise.integers(256))
        path.write_bytes(changed)
        try:
            gguf_file.read(path)
        except BuildError:
            refused += 1
    assert 0 < refused < 80


def test_a_number_of_layers_beyond_the_tensors_is_refused(tmp_path: Path) -> None:
    pairs = tiny.metadata({"llama.block_count": 4_000_000_000})
    path = tiny.write_gguf(tmp_path / "deep.gguf", pairs=pairs)
    with pytest.raises(BuildError, match="4000000000 layers and holds 21 tensors"):
        gguf_file.read(path)


def test_what_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("once upon a time " * 100, encoding="utf-8")
    with pytest.raises(BuildError, match="not a GGUF file"):
        gguf_file.read(path)
    with pytest.raises(BuildError, match="is not a file"):
        gguf_file.read(tmp_path)
