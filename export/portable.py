"""The portable flavour: primitive opset-17 operators, every shape static, the cache a slot arena.

Inputs, for W rows of which R give logits, and C slots:

    tokens [W] int32
    positions [W] int32          where each token stands in the text, below C
    mask [W, C + W] real         added to the scores: the C slots, then the rows of this call
    logits_rows [R] int32        the rows whose logits are wanted
    keys.{layer} [kv_heads, head_size, C] real     the arena: turned over, as the product needs them
    values.{layer} [kv_heads, C, head_size] real

Outputs: logits [R, model.logits] float32, and only what is new: new_keys.{layer}
[kv_heads, head_size, W] and new_values.{layer} [kv_heads, W, head_size]. The caller writes them
into slots of its choice; the mask alone says which slots a token sees, so a branch is committed
or forgotten without copying anything. real is float32, or float16 in fp16.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from export.decoder import decode
from export.linear import Linear, primitive_linear_for
from export.model import Model
from export.rotary import rotary_tables
from export.writer import GraphWriter

EIGHTH = 0.125
LEAST = 2.0**-14  # of float16, below which a device may take a number for nothing


def build_portable(
    writer: GraphWriter, model: Model, precision: str, *, rows: int, logits: int, context: int
) -> onnx.ModelProto:
    """`model` as a portable graph of `rows` rows, `logits` of them with logits, `context` slots.

    Weights go through `writer`. Raises BuildError for a precision that primitive operators do not
    have.
    """
    linear = primitive_linear_for(precision, writer, model)
    decode(Portable(writer, model, linear, rows, context), model)
    return writer.model(*signature(writer, model, rows, logits, context))


class Portable:
    """Primitive operators only, beside those of `linear`; rows are [W, width]."""

    integer = np.int32

    def __init__(
        self, writer: GraphWriter, model: Model, linear: Linear, rows: int, context: int
    ) -> None:
        self.writer = writer
        self.linear = linear
        self._geometry = model.geometry
        self._rows, self._context = rows, context
        # [W, 1, head_size / 2]: the same for every head.
        axis = writer.constant(np.array([1], np.int64))
        self._cosine, self._sine = (
            writer.node(
                "Unsqueeze",
                writer.node("Gather", writer.real(name, table), "positions", axis=0),
                axis,
            )
            for name, table in zip(
                (f"cosine.{context}", f"sine.{context}"), rotary_tables(model, context), strict=True
            )
        )

    def lay_out(self, rows: str) -> str:
        """As they are."""
        return rows

    def norm(self, rows: str, weight: str) -> str:
        """In float16 each row is divided by its largest value first: squares would overflow.

        Both are made an eighth before: QNN's HTP multiplies by the inverse, which must not be less
        than LEAST.
        """
        writer, epsilon = self.writer, self._geometry.norm_epsilon
        if writer.real_type == TensorProto.FLOAT16:
            rows = writer.node("Mul", rows, writer.scalar(EIGHTH))
            largest = writer.node("ReduceMax", writer.node("Abs", rows), axes=[-1])
            largest = writer.node("Max", largest, writer.scalar(LEAST))
            rows = writer.node("Div", rows, largest)
            root = writer.node("Div", writer.scalar(np.sqrt(epsilon) * EIGHTH), largest)
            added = writer.node("Mul", root, root)
        else:
            added = writer.scalar(epsilon)
        mean = writer.node("ReduceMean", writer.node("Mul", rows, rows), axes=[-1])
        length = writer.node("Sqrt", writer.node("Add", mean, added))
        return writer.node("Mul", writer.node("Div", rows, length), weight)

    def add_norm(self, rows: str, skip: str, weight: str) -> tuple[str, str]:
        """A sum, then the norm."""
        summed = self.writer.node("Add", rows, skip)
        return self.norm(summed, weight), summed

    def shape(self, width: int) -> list[int]:
        """Exactly the rows of the call."""
        return [self._rows, width]

    def attention(self, layer: int, qkv: str) -> str:
        """Each group of query heads over its arena and the new rows, which are not in it yet."""
        writer, geometry = self.writer, self._geometry
        rows, size = self._rows, geometry.head_size
        heads, kv_heads = geometry.heads, geometry.kv_heads
        group = heads // kv_heads
        turned, value = writer.split_sizes(
            qkv, [(heads + kv_heads) * size, kv_heads * size], axis=-1
        )
        query, key = writer.split_sizes(
            self._turn(self._shaped(turned, rows, heads + kv_heads, size)),
            [heads, kv_heads],
            axis=1,
        )
        query = self._shaped(query, rows, kv_heads, group, size)
        query = writer.node("Transpose", query, perm=(1, 2, 0, 3))
        query = self._shaped(query, kv_heads, group * rows, size)
        query = writer.node("Mul", query, writer.scalar(size**-0.5))
        keys = writer.node("Transpose", key, perm=(1, 2, 0), output=f"new_keys.{layer}")
        value = self._shaped(value, rows, kv_heads, size)
        values = writer.node("Transpose", value, perm=(1, 0, 2), output=f"new_values.{layer}")

        old_scores = writer.node("MatMul", query, f"keys.{layer}")
        scores = writer.node("Concat", old_scores, writer.node("MatMul", query, keys), axis=2)
        width = self._context + rows
        scores = self._shaped(scores, kv_heads, group, rows, width)
        shares = writer.node("Softmax", writer.node("Add", scores, "mask"), axis=-1)
        shares = self._shaped(shares, kv_heads, group * rows, width)
        old_shares, new_shares = writer.split_sizes(shares, [self._context, rows], axis=2)
        mixed = writer.node(
            "Add",
            writer.node("MatMul", old_shares, f"values.{layer}"),
            writer.node("MatMul", new_shares, values),
        )
        mixed = self._shaped(mixed, kv_heads, group, rows, size)
        mixed = writer.node("Transpose", mixed, perm=(2, 0, 1, 3))
        return self._shaped(mixed, rows, heads * size)

    def gated(self, gate: str, up: str) -> str:
        """SiLU from its definition."""
        activated = self.writer.node("Mul", gate, self.writer.node("Sigmoid", gate))
        return self.writer.node("Mul", activated, up)

    def wanted(self, rows: str) -> str:
        """Those that the caller names."""
        return self.writer.node("Gather", rows, "logits_rows", axis=0)

    def _turn(self, heads: str) -> str:
        """Rotate the two halves of every head [W, heads, head_size] by the row's position."""
        writer = self.writer
        first, second = writer.split(heads, 2, axis=-1)
        one = writer.node(
            "Sub",
            writer.node("Mul", first, self._cosine),
            writer.node("Mul", second, self._sine),
        )
        other = writer.node(
            "Add",
            writer.node("Mul", second, self._cosine),
            writer.node("Mul", first, self._sine),
        )
        return writer.node("Concat", one, other, axis=-1)

    def _shaped(self, value: str, *shape: int) -> str:
        return self.writer.node("Reshape", value, self.writer.constant(np.array(shape, np.int64)))


def signature(
    writer: GraphWriter, model: Model, rows: int, logits: int, context: int
) -> tuple[Sequence[onnx.ValueInfoProto], Sequence[onnx.ValueInfoProto]]:
    """The graph's inputs and outputs, in the order in which the module's docstring names them."""
    geometry, real = model.geometry, writer.real_type
    info = helper.make_tensor_value_info
    inputs = [
        info("tokens", TensorProto.INT32, [rows]),
        info("positions", TensorProto.INT32, [rows]),
        info("mask", real, [rows, context + rows]),
        info("logits_rows", TensorProto.INT32, [logits]),
    ]
    outputs = [info("logits", TensorProto.FLOAT, [logits, model.logits])]
    heads, size = geometry.kv_heads, geometry.head_size
    for layer in range(geometry.layers):
        inputs.append(info(f"keys.{layer}", real, [heads, size, context]))
        inputs.append(info(f"values.{layer}", real, [heads, context, size]))
        outputs.append(info(f"new_keys.{layer}", real, [heads, size, rows]))
        outputs.append(info(f"new_values.{layer}", real, [heads, rows, size]))
    return inputs, outputs
