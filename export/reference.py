"""The forward pass that every graph is measured against: plain numpy in float32, nothing fused."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from export.model import Model

Array = NDArray[np.float32]
Watch = Callable[[str, Array, Array], None]  # a product's name, its rows, and what it makes of them


def unwatched(_name: str, _rows: Array, _product: Array) -> None:
    """Look at nothing."""


def logits(model: Model, tokens: Sequence[int]) -> Array:
    """The logits [len(tokens), model.logits] of a whole text; row i speaks for position i + 1.

    `tokens` are ids of the vocabulary, and of mask tokens where the model has such.
    """
    return logits_of_texts(model, [tokens])[0]


def logits_of_texts(model: Model, texts: Sequence[Sequence[int]]) -> list[Array]:
    """The logits of several texts that do not see each other, [len(text), model.logits] each.

    All rows share every product, so that the weights are read once. The largest things held are
    the result and one layer's products.
    """
    last = deque(states_of_texts(model, texts), maxlen=1).pop()
    return [read_off(model, rows) for rows in last]


def states_of_texts(
    model: Model, texts: Sequence[Sequence[int]], watch: Watch = unwatched
) -> Iterator[list[Array]]:
    """What the embedding and then each layer leaves of every text, [len(text), hidden] each.

    The texts do not see each other. watch: is shown every product, by the names that
    `export.linear` gives them. Architecture: Touvron et al. 2023, LLaMA.
    """
    weights, geometry = model.weights, model.geometry
    ends = np.cumsum([len(text) for text in texts])
    spans = [slice(end - len(text), end) for text, end in zip(texts, ends, strict=True)]
    hidden = _embed(model, np.concatenate(texts).astype(np.int64))
    rotary = _rotary(model, np.concatenate([np.arange(len(text)) for text in texts]))
    yield [hidden[span] for span in spans]
    for layer in range(geometry.layers):
        name = f"layers.{layer}"
        normed = _norm(hidden, weights[f"{name}.attention_norm"], geometry.norm_epsilon)
        hidden = hidden + _attention(model, name, normed, rotary, spans, watch)
        normed = _norm(hidden, weights[f"{name}.feed_forward_norm"], geometry.norm_epsilon)
        hidden = hidden + _feed_forward(model, name, normed, watch)
        yield [hidden[span] for span in spans]


def read_off(model: Model, hidden: Array, watch: Watch = unwatched) -> Array:
    """The logits [n, model.logits] that the final norm and the head make of rows [n, hidden]."""
    normed = _norm(hidden, model.weights["norm"], model.geometry.norm_epsilon)
    return _times(normed, model.head, "head", watch)


def _times(rows: Array, weight: Array, name: str, watch: Watch) -> Array:
    """A product, which is shown to `watch`."""
    product: Array = rows @ weight.T
    watch(name, rows, product)
    return product


def _embed(model: Model, tokens: NDArray[np.int64]) -> Array:
    """The rows [n, hidden] of real tokens and mask tokens."""
    vocabulary = model.geometry.vocabulary
    rows: Array = model.weights["embedding"][np.minimum(tokens, vocabulary - 1)]
    masked = tokens >= vocabulary
    if masked.any():
        rows[masked] = model.weights["masks"][tokens[masked] - vocabulary]
    return rows


def _attention(
    model: Model,
    name: str,
    normed: Array,
    rotary: tuple[Array, Array],
    spans: Sequence[slice],
    watch: Watch,
) -> Array:
    """Causal attention of one layer within each span of rows, output projection included."""
    geometry = model.geometry
    query, key, value = (
        _heads(model, name, part, normed, watch).reshape(-1, count, geometry.head_size)
        for part, count in (
            ("q", geometry.heads),
            ("k", geometry.kv_heads),
            ("v", geometry.kv_heads),
        )
    )
    if f"{name}.q_norm" in model.weights:
        query = _norm(query, model.weights[f"{name}.q_norm"], geometry.norm_epsilon)
        key = _norm(key, model.weights[f"{name}.k_norm"], geometry.norm_epsilon)
    query, key = _turn(query, rotary), _turn(key, rotary)
    scale = np.float32(geometry.head_size**-0.5)
    mixed = np.empty_like(query)
    for span in spans:
        count = span.stop - span.start
        hidden_from_sight = np.triu(np.full((count, count), -np.inf, np.float32), 1)
        for head in range(geometry.heads):
            shared = head * geometry.kv_heads // geometry.heads
            scores = query[span, head] @ key[span, shared].T * scale + hidden_from_sight
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
            mixed[span, head] = scores @ value[span, shared]
    weight = model.weights[f"{name}.o"]
    return _times(mixed.reshape(len(normed), -1), weight, f"{name}.o", watch)


def _heads(model: Model, name: str, part: str, normed: Array, watch: Watch) -> Array:
    """The heads of q, k or v side by side, with the bias that the model may have."""
    rows = _times(normed, model.weights[f"{name}.{part}"], f"{name}.qkv", watch)
    bias = model.weights.get(f"{name}.{part}_bias")
    return rows if bias is None else rows + bias


def _norm(hidden: Array, weight: Array, epsilon: float) -> Array:
    mean = np.mean(hidden * hidden, axis=-1, keepdims=True)
    normed: Array = hidden / np.sqrt(mean + np.float32(epsilon)) * weight
    return normed


def _feed_forward(model: Model, name: str, normed: Array, watch: Watch) -> Array:
    """The gated feed-forward part of one layer, [n, hidden]."""
    gate, up = (
        _times(normed, model.weights[f"{name}.{part}"], f"{name}.gate_up", watch)
        for part in ("gate", "up")
    )
    # silu(x) = x / (1 + exp(-x)), written with tanh because that cannot overflow.
    opened = gate * np.float32(0.5) * (np.float32(1) + np.tanh(gate * np.float32(0.5)))
    return _times(opened * up, model.weights[f"{name}.down"], f"{name}.down", watch)


def _rotary(model: Model, positions: NDArray[np.int64]) -> tuple[Array, Array]:
    """Cosines and sines of the rotary angles, each [n, 1, head_size / 2] (Su et al. 2021)."""
    half = model.geometry.head_size // 2
    frequencies = model.geometry.rope_base ** (-np.arange(half) / half)
    frequencies = frequencies / model.weights.get("rope_factors", np.ones(half, np.float32))
    angles = np.outer(positions, frequencies)[:, None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _turn(heads: Array, rotary: tuple[Array, Array]) -> Array:
    cosine, sine = rotary
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1)
