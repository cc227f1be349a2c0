"""The gpu flavour: GroupQueryAttention over a cache that stays in a device's own buffers.

Inputs, for S rows of one text and T keys in the cache after the call:

    tokens [S] int32                   which WebGPU compares, as mask tokens need; int64 it does not
    logits_rows [R] int64              the rows whose logits are wanted
    key_lengths.0 [1] int32            T, less one
    total_lengths.0 [] int32           T
    places [T] int64                   where in the text each key stands; those of the rows last
    attention_bias [1, 1, S, T] real   added to the scores; a row sees no later one anyway
    past.0.{layer}.{key|value} [1, kv_heads, capacity, head_size] real

real is float32, or float16 in fp16. Outputs: logits [R, model.logits] float32 and
present.0.{layer}.{key|value}, bound to the buffers of past.

It differs from the fused flavour in three things, all for WebGPU. The operator takes a row's place
in the cache for its place in the text, whatever position_ids says; so the tables that it turns rows
by are put in the order of the cache first, once for all layers. A lone row is not doubled: there
sums depend on the number of rows anyway. And rows are [1, S, width], one product of many rows.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from export.decoder import decode
from export.fused import Fused, cache_names, cache_shape
from export.linear import Linear, linear_for
from export.model import Model
from export.writer import GraphWriter
from runtime import graph_names
from runtime.errors import BuildError

PRECISIONS = graph_names.PRECISIONS["gpu"]


def build_gpu(
    writer: GraphWriter, model: Model, precision: str, *, inexact: bool = False
) -> onnx.ModelProto:
    """`model` as a graph for GPUs, its weights through `writer`; settings as for `build_fused`.

    Raises BuildError for a precision that does not exist: WebGPU multiplies no bytes.
    """
    if precision not in PRECISIONS:
        raise BuildError(f"A gpu graph has no precision {precision!r}; it has fp32, fp16, int4.")
    decode(Gpu(writer, model, linear_for(precision, writer, model, inexact=inexact)), model)
    return writer.model(*_signature(writer, model))


class Gpu(Fused):
    """Operators of ONNX Runtime's own; rows are [1, n, width]."""

    integer = np.int32

    def __init__(self, writer: GraphWriter, model: Model, linear: Linear) -> None:
        super().__init__(writer, model, linear, lanes=1)
        cosine, sine = (writer.node("Gather", table, "places", axis=0) for table in self._rotary)
        self._rotary = (cosine, sine)

    def lay_out(self, rows: str) -> str:
        """As the rows of one text."""
        return self.writer.node("Unsqueeze", rows, self.writer.constant(np.array([0], np.int64)))

    def shape(self, width: int) -> list[int]:
        """Any number of rows."""
        return [1, -1, width]

    def attention(self, layer: int, qkv: str) -> str:
        """One operator."""
        key, value = f"0.{layer}.key", f"0.{layer}.value"
        return self.writer.attention(
            qkv,
            past=(f"past.{key}", f"past.{value}"),
            lengths=("key_lengths.0", "total_lengths.0"),
            rotary=self._rotary,
            tree=("", "attention_bias"),
            present=(f"present.{key}", f"present.{value}"),
            heads=self._geometry.heads,
            kv_heads=self._geometry.kv_heads,
        )

    def wanted(self, rows: str) -> str:
        """Those that the caller names."""
        return self.writer.node("Gather", rows, "logits_rows", axis=1)


def _signature(
    writer: GraphWriter, model: Model
) -> tuple[Sequence[onnx.ValueInfoProto], Sequence[onnx.ValueInfoProto]]:
    """The graph's inputs and outputs, in the order in which the module's docstring names them."""
    info = helper.make_tensor_value_info
    names, shape = cache_names(range(model.geometry.layers)), cache_shape(model)
    inputs = [
        info("tokens", TensorProto.INT32, ["tokens"]),
        info("logits_rows", TensorProto.INT64, ["rows"]),
        info("key_lengths.0", TensorProto.INT32, [1]),
        info("total_lengths.0", TensorProto.INT32, []),
        info("places", TensorProto.INT64, ["total"]),
        info("attention_bias", writer.real_type, [1, 1, "tokens", "total"]),
        *(info(f"past.{name}", writer.real_type, shape) for name in names),
    ]
    logits = info("logits", TensorProto.FLOAT, ["rows", model.logits])
    outputs = [logits, *(info(f"present.{name}", writer.real_type, shape) for name in names)]
    return inputs, outputs
