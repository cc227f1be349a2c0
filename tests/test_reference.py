"""The reference agrees with a token-by-token pass written another way, from the file's own rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from export import gguf_file, reference
from tests import tiny

Row = NDArray[np.float64]
Weights = dict[str, NDArray[np.float32]]


def norm(row: Row, weight: NDArray[np.float32]) -> Row:
    """Over the last axis: of a row, or of each of its heads."""
    normed: Row = row * weight / np.sqrt((row**2).mean(axis=-1, keepdims=True) + 1e-5)
    return normed


def turn(heads: Row, position: int, factors: Row, *, interleaved: bool) -> Row:
    """Rotate pairs as complex numbers; [heads, size] → [heads, size] in the same layout."""
    half = heads.shape[1] // 2
    angles = position * 10000.0 ** (-np.arange(half) / half) / factors
    first = (slice(None), slice(0, None, 2) if interleaved else slice(0, half))
    second = (slice(None), slice(1, None, 2) if interleaved else slice(half, None))
    turned = (heads[first] + 1j * heads[second]) * np.exp(1j * angles)
    found = np.empty_like(heads)
    found[first], found[second] = turned.real, turned.imag
    return found


def heads_of(weights: Weights, name: str, row: Row, size: int) -> Row:
    """The heads of q, k or v in the file's own order, [heads, size]."""
    heads = weights[f"{name}.weight"] @ row + weights.get(f"{name}.bias", 0.0)
    heads = heads.reshape(-1, size)
    return (
        norm(heads, weights[f"{name}_norm.weight"]) if f"{name}_norm.weight" in weights else heads
    )


def attend(query: Row, keys: list[Row], values: list[Row]) -> Row:
    """One token's four heads over two heads of keys and values of all tokens so far."""
    mixed = []
    for head in range(4):
        scores = np.array([key[head // 2] @ query[head] for key in keys])
        shares = np.exp(scores / len(query[head]) ** 0.5)
        rows = np.array([value[head // 2] for value in values])
        mixed.append(shares / shares.sum() @ rows)
    return np.concatenate(mixed)


def step_by_step(
    weights: Weights, tokens: list[int], *, size: int = 16, interleaved: bool = True
) -> list[Row]:
    """Logits by position in float64, one token at a time over growing lists of keys and values."""
    factors = weights.get("rope_freqs.weight", np.ones(size // 2)).astype(np.float64)
    keys: list[list[Row]] = [[], []]
    values: list[list[Row]] = [[], []]
    rows = []
    for position, token in enumerate(tokens):
        hidden = weights["token_embd.weight"][token].astype(np.float64)
        for layer in range(2):
            name = f"blk.{layer}"
            row = norm(hidden, weights[f"{name}.attn_norm.weight"])
            query, key = (
                turn(
                    heads_of(weights, f"{name}.attn_{part}", row, size),
                    position,
                    factors,
                    interleaved=interleaved,
                )
                for part in "qk"
            )
            keys[layer].append(key)
            values[layer].append(heads_of(weights, f"{name}.attn_v", row, size))
            mixed = attend(query, keys[layer], values[layer])
            hidden = hidden + weights[f"{name}.attn_output.weight"] @ mixed
            row = norm(hidden, weights[f"{name}.ffn_norm.weight"])
            gate = weights[f"{name}.ffn_gate.weight"] @ row
            opened = gate / (1 + np.exp(-gate)) * (weights[f"{name}.ffn_up.weight"] @ row)
            hidden = hidden + weights[f"{name}.ffn_down.weight"] @ opened
        head_matrix = weights.get("output.weight", weights["token_embd.weight"])
        rows.append(head_matrix @ norm(hidden, weights["output_norm.weight"]))
    return rows


TOKENS = [1, 200, 3, 3, 77, 150, 2, 260, 9]


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_a_pass_token_by_token(tmp_path: Path, *, tied: bool) -> None:
    weights = tiny.tensors(seed=3, tied=tied)
    model = gguf_file.read(tiny.write_gguf(tmp_path / "tiny.gguf", weights=weights)).model
    found = reference.logits(model, TOKENS)
    assert found.dtype == np.float32
    assert found.shape == (9, len(tiny.vocabulary()))
    np.testing.assert_allclose(found, np.stack(step_by_step(weights, TOKENS)), atol=2e-4)


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_every_family_equals_a_pass_token_by_token(tmp_path: Path, name: str) -> None:
    family = tiny.FAMILIES[name]
    weights = family.weights(seed=3)
    path = tiny.write_gguf(tmp_path / "tiny.gguf", weights=weights, pairs=family.pairs())
    found = reference.logits(gguf_file.read(path).model, TOKENS)
    interleaved = family.architecture in ("llama", "mistral3")
    wanted = step_by_step(weights, TOKENS, size=family.head_size, interleaved=interleaved)
    np.testing.assert_allclose(found, np.stack(wanted), atol=2e-4)
    other = step_by_step(weights, TOKENS, size=family.head_size, interleaved=not interleaved)
    assert np.abs(found - np.stack(other)).max() > 0.1, "the order of the rows is not seen"


@pytest.mark.parametrize("tied", [False, True])
def test_mask_tokens_stand_behind_the_vocabulary_and_the_head_is_cut(
    tmp_path: Path, *, tied: bool
) -> None:
    weights = tiny.tensors(seed=3, tied=tied)
    model = gguf_file.read(tiny.write_gguf(tmp_path / "tiny.gguf", weights=weights)).model
    masks = np.random.default_rng(1).standard_normal((2, tiny.HIDDEN)).astype(np.float32)
    kept = np.array([0, 4, 77, 270])
    model = replace(model, weights={**model.weights, "masks": masks}, head_tokens=kept)
    table = weights["token_embd.weight"]
    weights |= {"token_embd.weight": np.concatenate([table, masks])}
    weights.setdefault("output.weight", table)
    texts = [[*TOKENS, *model.mask_tokens], [5, 271, 6], [3]]
    for text, found in zip(texts, reference.logits_of_texts(model, texts), strict=True):
        wanted = np.stack(step_by_step(weights, text))[:, kept]
        np.testing.assert_allclose(found, wanted, atol=2e-4)


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
