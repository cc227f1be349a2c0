"""The forward pass that every graph is measured against: plain numpy in float32, nothing fused."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from export.model import Model

Array = NDArray[np.float32]


def logits(model: Model, tokens: Sequence[int]) -> Array:
    """The logits [len(tokens), vocabulary] of a whole sequence; row i speaks for position i + 1.

    `tokens` are ids below the vocabulary. The scores of one head, [n, n], and one layer's products
    are the largest things held beside the result. Architecture: Touvron et al. 2023, LLaMA.
    """
    weights, geometry = model.weights, model.geometry
    hidden: Array = weights["embedding"][np.asarray(tokens, np.int64)]
    cosine, sine = _rotary(model, len(tokens))
    for layer in range(geometry.layers):
        name = f"layers.{layer}"
        normed = _norm(hidden, weights[f"{name}.attention_norm"], geometry.norm_epsilon)
        hidden = hidden + _attention(model, name, normed, cosine, sine)
        normed = _norm(hidden, weights[f"{name}.feed_forward_norm"], geometry.norm_epsilon)
        hidden = hidden + _feed_forward(model, name, normed)
    return _norm(hidden, weights["norm"], geometry.norm_epsilon) @ model.head.T


def _attention(model: Model, name: str, normed: Array, cosine: Array, sine: Array) -> Array:
    """Causal attention of one layer, output projection included, [n, hidden]."""
    geometry, count = model.geometry, len(normed)
    query, key, value = (
        (normed @ model.weights[f"{name}.{part}"].T).reshape(count, -1, geometry.head_size)
        for part in ("q", "k", "v")
    )
    query, key = _turn(query, cosine, sine), _turn(key, cosine, sine)
    hidden_from_sight = np.triu(np.full((count, count), -np.inf, np.float32), 1)
    scale = np.float32(geometry.head_size**-0.5)
    mixed = np.empty_like(query)
    for head in range(geometry.heads):
        shared = head * geometry.kv_heads // geometry.heads
        scores = query[:, head] @ key[:, shared].T * scale + hidden_from_sight
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        mixed[:, head] = scores @ value[:, shared]
    output: Array = mixed.reshape(count, -1) @ model.weights[f"{name}.o"].T
    return output


def _norm(hidden: Array, weight: Array, epsilon: float) -> Array:
    mean = np.mean(hidden * hidden, axis=-1, keepdims=True)
    normed: Array = hidden / np.sqrt(mean + np.float32(epsilon)) * weight
    return normed


def _feed_forward(model: Model, name: str, normed: Array) -> Array:
    """The gated feed-forward part of one layer, [n, hidden]."""
    gate, up = (normed @ model.weights[f"{name}.{part}"].T for part in ("gate", "up"))
    # silu(x) = x / (1 + exp(-x)), written with tanh because that cannot overflow.
    opened = gate * np.float32(0.5) * (np.float32(1) + np.tanh(gate * np.float32(0.5)))
    output: Array = (opened * up) @ model.weights[f"{name}.down"].T
    return output


def _rotary(model: Model, count: int) -> tuple[Array, Array]:
    """Cosines and sines of the rotary angles, each [count, 1, head_size / 2] (Su et al. 2021)."""
    half = model.geometry.head_size // 2
    frequencies = model.geometry.rope_base ** (-np.arange(half) / half)
    angles = np.outer(np.arange(count), frequencies)[:, None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _turn(heads: Array, cosine: Array, sine: Array) -> Array:
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1)
