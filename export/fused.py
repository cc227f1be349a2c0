"""The fused flavour: a decoder around GroupQueryAttention, whose cache grows in place.

Inputs, for `lanes` sequences that each feed the same number of tokens S (one lane, except in the
graph that decodes many sequences together):

    tokens [lanes * S] int64           lane by lane
    attention_rows [lanes * max(S, 2)] int64   the rows that attention sees; a lone row goes twice
    attention_shape [3] int64          (1, max(S, 2), -1), how one lane's rows are laid out there
    attention_keep [S] int64           the rows of a lane that come back from attention
    logits_rows [R] int64              the rows whose logits are wanted
    key_lengths.{lane} [1] int32       keys in the lane's cache after this call, less one
    total_lengths.{lane} [] int32      the same keys, counted in full
    past.{lane}.{layer}.{key|value}    [1, kv_heads, capacity, head_size] real

and, in a graph of one lane, whose rows may be a tree, for T keys in the cache after the call:

    position_ids [1, max(S, 2)] int64  where each row stands in the text
    attention_bias [1, 1, max(S, 2), T] real   added to the scores; a row sees no later one anyway

real is float32, or float16 in fp16.

Outputs: logits [R, model.logits] float32 and present.{lane}.{layer}.{key|value}, which the caller
binds to the buffers of past: the cache is updated in place.

A graph may hold the first of the model's layers only, or the last. The first part has no
logits_rows and no logits; it gives hidden and skip [n, 1, hidden] real instead, n being all rows,
and the last part takes these in place of tokens. Each has the caches of its own layers.

Why a lone row is doubled: the attention kernel adds in another order for one row than for two or
more, so a token's logits would depend on how many rows were asked for at once. The second copy
writes its keys one place further, where the next token's belong; nothing ever reads them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from export.decoder import HANDED_OVER, decode
from export.linear import Linear, linear_for
from export.model import Model
from export.rotary import rotary_tables
from export.writer import GraphWriter

TREE = ("position_ids", "attention_bias")


def build_fused(
    writer: GraphWriter,
    model: Model,
    precision: str,
    *,
    lanes: int = 1,
    layers: range | None = None,
    inexact: bool = False,
) -> onnx.ModelProto:
    """`model` as a fused graph of `lanes` sequences, its weights through `writer`.

    layers: those that the graph is to hold, where it is a part. inexact: a draft, as for
    `linear_for`. Raises BuildError for a precision that does not exist.
    """
    linear = linear_for(precision, writer, model, inexact=inexact)
    layers = layers or range(model.geometry.layers)
    decode(Fused(writer, model, linear, lanes), model, layers=layers)
    return writer.model(*_signature(writer, model, lanes, layers))


class Fused:
    """Operators of ONNX Runtime's own, one attention node for each lane; rows are [n, 1, width]."""

    integer: type[np.integer[Any]] = np.int64

    def __init__(self, writer: GraphWriter, model: Model, linear: Linear, lanes: int) -> None:
        self.writer, self.linear = writer, linear
        self._geometry = model.geometry
        self._lanes = lanes
        # One position more than the context holds: a doubled lone row stands one place further.
        tables = rotary_tables(model, model.geometry.context + 1)
        self._rotary = (writer.real("cosine", tables[0]), writer.real("sine", tables[1]))

    def lay_out(self, rows: str) -> str:
        """With the axis on which int8 lays two bytes of a row beside each other."""
        axis = self.writer.constant(np.array([1], np.int64))
        return self.writer.node("Unsqueeze", rows, axis)

    def norm(self, rows: str, weight: str) -> str:
        """One operator."""
        epsilon = self._geometry.norm_epsilon
        return self.writer.node(
            "SimplifiedLayerNormalization", rows, weight, epsilon=epsilon, axis=-1
        )

    def add_norm(self, rows: str, skip: str, weight: str) -> tuple[str, str]:
        """One operator."""
        normed, summed = self.writer.nodes(
            "SkipSimplifiedLayerNormalization",
            (rows, skip, weight),
            outputs=(0, 3),
            domain="com.microsoft",
            epsilon=self._geometry.norm_epsilon,
        )
        return normed, summed

    def shape(self, width: int) -> list[int]:
        """Any number of rows."""
        return [-1, 1, width]

    def attention(self, layer: int, qkv: str) -> str:
        """Attention of each lane over its own cache."""
        writer, geometry, lanes = self.writer, self._geometry, self._lanes
        rows = writer.node("Gather", qkv, "attention_rows", axis=0)
        lane_rows = (rows,) if lanes == 1 else writer.split(rows, lanes, axis=0)
        kept = []
        for lane, rows in enumerate(lane_rows):
            cache = f"{lane}.{layer}"
            packed = writer.node("Reshape", rows, "attention_shape")
            mixed = writer.attention(
                packed,
                past=(f"past.{cache}.key", f"past.{cache}.value"),
                lengths=(f"key_lengths.{lane}", f"total_lengths.{lane}"),
                rotary=self._rotary,
                tree=TREE if lanes == 1 else (),
                present=(f"present.{cache}.key", f"present.{cache}.value"),
                heads=geometry.heads,
                kv_heads=geometry.kv_heads,
            )
            kept.append(writer.node("Gather", mixed, "attention_keep", axis=1))
        joined = kept[0] if lanes == 1 else writer.node("Concat", *kept, axis=1)
        shape = np.array(self.shape(geometry.heads * geometry.head_size), np.int64)
        return writer.node("Reshape", joined, writer.constant(shape))

    def gated(self, gate: str, up: str) -> str:
        """SiLU as QuickGelu with a slope of 1."""
        activated = self.writer.node("QuickGelu", gate, domain="com.microsoft", alpha=1.0)
        return self.writer.node("Mul", activated, up)

    def wanted(self, rows: str) -> str:
        """Those that the caller names."""
        return self.writer.node("Gather", rows, "logits_rows", axis=0)


def _signature(
    writer: GraphWriter, model: Model, lanes: int, layers: range
) -> tuple[Sequence[onnx.ValueInfoProto], Sequence[onnx.ValueInfoProto]]:
    """The graph's inputs and outputs, in the order in which the module's docstring names them."""
    geometry = model.geometry
    info = helper.make_tensor_value_info
    shape = cache_shape(model)
    handed = [info(name, writer.real_type, ["tokens", 1, geometry.hidden]) for name in HANDED_OVER]
    is_last = layers.stop == geometry.layers
    inputs = handed if layers.start else [info("tokens", TensorProto.INT64, ["tokens"])]
    inputs += [
        info("attention_rows", TensorProto.INT64, ["attention_rows"]),
        info("attention_shape", TensorProto.INT64, [3]),
        info("attention_keep", TensorProto.INT64, ["width"]),
    ]
    if is_last:
        inputs.append(info("logits_rows", TensorProto.INT64, ["rows"]))
    for lane in range(lanes):
        inputs.append(info(f"key_lengths.{lane}", TensorProto.INT32, [1]))
        inputs.append(info(f"total_lengths.{lane}", TensorProto.INT32, []))
    if lanes == 1:
        inputs.append(info("position_ids", TensorProto.INT64, [1, "attended"]))
        bias: list[str | int | None] = [1, 1, "attended", "total"]
        inputs.append(info("attention_bias", writer.real_type, bias))
    caches = cache_names(layers, lanes=lanes)
    inputs += [info(f"past.{name}", writer.real_type, shape) for name in caches]
    logits = info("logits", TensorProto.FLOAT, ["rows", model.logits])
    outputs = [logits] if is_last else handed
    outputs = outputs + [info(f"present.{name}", writer.real_type, shape) for name in caches]
    return inputs, outputs


def cache_names(layers: range, *, lanes: int = 1) -> list[str]:
    """What past and present are called, in their order."""
    return [
        f"{lane}.{layer}.{part}"
        for lane in range(lanes)
        for layer in layers
        for part in ("key", "value")
    ]


def cache_shape(model: Model) -> list[str | int | None]:
    """The shape of each of them."""
    return [1, model.geometry.kv_heads, "capacity", model.geometry.head_size]
