"""The one description of a decoder, from tokens to logits, that every flavour of a graph shares."""

from typing import Any, Protocol

import numpy as np

from export.linear import Linear
from export.model import Model
from export.writer import GraphWriter


class Flavour(Protocol):
    """What differs from one kind of device to another; rows are whatever shape it gives them."""

    writer: GraphWriter
    linear: Linear

    @property
    def integer(self) -> type[np.integer[Any]]:
        """The type of the input `tokens`."""

    def lay_out(self, rows: str) -> str:
        """Rows [n, hidden] in the shape that this flavour gives them."""

    def norm(self, rows: str, weight: str) -> str:
        """RMS norm over the last axis, times `weight`."""

    def add_norm(self, rows: str, skip: str, weight: str) -> tuple[str, str]:
        """The normed sum of two, and the sum."""

    def shape(self, width: int) -> list[int]:
        """How rows of `width` are laid out."""

    def attention(self, layer: int, qkv: str) -> str:
        """Causal attention over cache and rows: [n, q + k + v] → [n, heads * head_size]."""

    def gated(self, gate: str, up: str) -> str:
        """SiLU(gate) * up."""

    def wanted(self, rows: str) -> str:
        """The rows whose logits are asked for."""


HANDED_OVER = ("hidden", "skip")


def decode(flavour: Flavour, model: Model, *, layers: range | None = None) -> None:
    """Add the nodes and weights of the whole model (Touvron et al. 2023, LLaMA).

    layers: those to compute, where the model is cut in parts. What one part gives and the next one
    takes is named in HANDED_OVER: two rows that the next norm adds up itself, so that every
    operator works on what it has in the whole model.
    """
    writer, linear = flavour.writer, flavour.linear
    layers = layers or range(model.geometry.layers)
    hidden: str
    skip: str | None
    if layers.start:
        hidden, skip = HANDED_OVER
    else:
        hidden, skip = flavour.lay_out(_embedded(flavour, model)), None

    def norm(name: str) -> tuple[str, str]:
        weight = writer.real(name, model.weights[name])
        if skip is None:
            return flavour.norm(hidden, weight), hidden
        return flavour.add_norm(hidden, skip, weight)

    for layer in layers:
        name = f"layers.{layer}"
        normed, hidden = norm(f"{name}.attention_norm")
        qkv = _qkv(flavour, model, name, normed)
        skip = linear.project(f"{name}.o", flavour.attention(layer, qkv))
        normed, hidden = norm(f"{name}.feed_forward_norm")
        gate, up = writer.split(linear.project(f"{name}.gate_up", normed), 2, axis=-1)
        skip = linear.project(f"{name}.down", flavour.gated(gate, up))
    if layers.stop < model.geometry.layers:
        for value, output in zip((hidden, str(skip)), HANDED_OVER, strict=True):
            writer.node("Identity", value, output=output)
        return
    normed, _ = norm("norm")
    logits = linear.project("head", flavour.wanted(normed))
    shape = writer.constant(np.array([-1, model.logits], np.int64))
    writer.float32(writer.node("Reshape", logits, shape), output="logits")


def _embedded(flavour: Flavour, model: Model) -> str:
    """The rows [n, hidden] of the call's tokens, of mask tokens too where the model has such."""
    if model.tokens_per_pass == 1:
        return flavour.linear.embed("tokens")
    writer, vocabulary = flavour.writer, model.geometry.vocabulary

    def number(value: int) -> str:
        return writer.constant(np.array(value, flavour.integer))

    # Both tables are asked for every token, so each must be asked for one that it has.
    rows = flavour.linear.embed(writer.node("Min", "tokens", number(vocabulary - 1)))
    places = writer.node("Max", writer.node("Sub", "tokens", number(vocabulary)), number(0))
    masks = writer.real("masks", model.weights["masks"])
    masked = writer.node("Gather", masks, places, axis=0)
    is_real = writer.node("Less", "tokens", number(vocabulary))
    axis = writer.constant(np.array([1], np.int64))
    return writer.node("Where", writer.node("Unsqueeze", is_real, axis), rows, masked)


def _qkv(flavour: Flavour, model: Model, name: str, normed: str) -> str:
    """Query, key and value side by side, with the biases and head norms that the model has."""
    writer, geometry = flavour.writer, model.geometry
    qkv = flavour.linear.project(f"{name}.qkv", normed)
    if f"{name}.q_bias" in model.weights:
        bias = np.concatenate([model.weights[f"{name}.{part}_bias"] for part in "qkv"])
        qkv = writer.node("Add", qkv, writer.real(f"{name}.qkv_bias", bias))
    if f"{name}.q_norm" not in model.weights:
        return qkv
    counts = (geometry.heads, geometry.kv_heads, geometry.kv_heads)
    parts = writer.split_sizes(qkv, [count * geometry.head_size for count in counts], axis=-1)
    for place, part in enumerate("qk"):
        weight = writer.real(f"{name}.{part}_norm", model.weights[f"{name}.{part}_norm"])
        by_head = np.array([-1, counts[place], geometry.head_size], np.int64)
        heads = writer.node("Reshape", parts[place], writer.constant(by_head))
        shape = np.array(flavour.shape(counts[place] * geometry.head_size), np.int64)
        rows = flavour.norm(heads, weight)
        parts[place] = writer.node("Reshape", rows, writer.constant(shape))
    return writer.node("Concat", *parts, axis=-1)
