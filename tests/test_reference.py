"""The reference agrees with a token-by-token pass written another way, from the file's own rows."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from export import gguf_file, reference
from tests import tiny

Row = NDArray[np.float64]
ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
FEED_FORWARD = ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


def norm(row: Row, weight: NDArray[np.float32]) -> Row:
    normed: Row = row * weight / np.sqrt((row**2).mean() + 1e-5)
    return normed


def turn(row: Row, position: int) -> Row:
    """Rotate interleaved pairs as complex numbers; [heads, 16] → [heads, 16]."""
    angles = position * 10000.0 ** (-np.arange(8) / 8)
    turned = row.reshape(-1, 16)[:, 0::2] + 1j * row.reshape(-1, 16)[:, 1::2]
    turned = turned * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(-1, 16)


def step_by_step(weights: dict[str, NDArray[np.float32]], tokens: list[int]) -> list[Row]:
    """Logits by position in float64, one token at a time over growing lists of keys and values."""
    keys: list[list[Row]] = [[], []]
    values: list[list[Row]] = [[], []]
    rows = []
    for position, token in enumerate(tokens):
        hidden = weights["token_embd.weight"][token].astype(np.float64)
        for layer in range(2):
            block = {
                name: weights[f"blk.{layer}.{name}.weight"] for name in ATTENTION + FEED_FORWARD
            }
            row = norm(hidden, block["attn_norm"])
            query = turn(block["attn_q"] @ row, position)
            keys[layer].append(turn(block["attn_k"] @ row, position))
            values[layer].append((block["attn_v"] @ row).reshape(-1, 16))
            mixed = []
            for head in range(4):
                scores = np.array([key[head // 2] @ query[head] / 4.0 for key in keys[layer]])
                shares = np.exp(scores) / np.exp(scores).sum()
                mixed.append(
                    sum(s * v[head // 2] for s, v in zip(shares, values[layer], strict=True))
                )
            hidden = hidden + block["attn_output"] @ np.concatenate(mixed)
            row = norm(hidden, block["ffn_norm"])
            gate = block["ffn_gate"] @ row
            hidden = hidden + block["ffn_down"] @ (
                gate / (1 + np.exp(-gate)) * (block["ffn_up"] @ row)
            )
        head_matrix = weights.get("output.weight", weights["token_embd.weight"])
        rows.append(head_matrix @ norm(hidden, weights["output_norm.weight"]))
    return rows


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_a_pass_token_by_token(tmp_path: Path, *, tied: bool) -> None:
    weights = tiny.tensors(seed=3, tied=tied)
    model = gguf_file.read(tiny.write_gguf(tmp_path / "tiny.gguf", weights=weights)).model
    tokens = [1, 200, 3, 3, 77, 150, 2, 260, 9]
    found = reference.logits(model, tokens)
    assert found.dtype == np.float32
    assert found.shape == (9, len(tiny.vocabulary()))
    np.testing.assert_allclose(found, np.stack(step_by_step(weights, tokens)), atol=2e-4)


def test_texts_do_not_see_each_other(tmp_path: Path) -> None:
    model = gguf_file.read(tiny.write_gguf(tmp_path / "tiny.gguf")).model
    texts = [[1, 9, 200], [4], [7, 7, 7, 8, 100]]
    together = reference.logits_of_texts(model, texts)
    for text, rows in zip(texts, together, strict=True):
        np.testing.assert_allclose(rows, reference.logits(model, text), atol=1e-4)


def test_later_tokens_do_not_change_earlier_rows(tmp_path: Path) -> None:
    model = gguf_file.read(tiny.write_gguf(tmp_path / "tiny.gguf")).model
    first = reference.logits(model, [5, 6, 7])
    longer = reference.logits(model, [5, 6, 7, 8])
    np.testing.assert_allclose(longer[:3], first, atol=1e-4)
    assert np.abs(longer[3] - longer[2]).max() > 0.1
