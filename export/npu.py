"""The form for neural processors: the portable graph, its products as such devices take them.

Inputs and outputs are the portable graph's, and real is float16: so are all operators but the
products by weights.

int8: rows go in 65,536 levels between bounds that were measured on text (`export/calibrate.py`),
weights in int8 with a scale for each column, the numbers of the other int8 graphs. A product stands
between QuantizeLinear and DequantizeLinear, which a provider joins to one of whole numbers. One
scale for a whole matrix is worse in 8 bits and useless in 4; see docs/npu.md.
int4: MatMulNBits in blocks of 32 on float16 rows, the numbers of the fused int4 graph.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from export.calibrate import Bounds
from export.decoder import decode
from export.linear import Float, Int4, Int8, Linear
from export.model import Model
from export.portable import Portable, signature
from export.writer import GraphWriter
from runtime.errors import BuildError

LEVELS = 65535
# Where a product's largest number is so many times the median, that has 16 to 32 levels.
FAR = 1000.0
LARGEST = 60000.0  # of a bound: float16 ends at 65,504


def build_npu(
    writer: GraphWriter,
    model: Model,
    precision: str,
    *,
    rows: int,
    logits: int,
    context: int,
    bounds: Mapping[str, Bounds],
) -> onnx.ModelProto:
    """`model` as a graph of `rows` rows, `logits` of them with logits, and `context` slots.

    bounds: of every product by its name; int4 needs none. Raises BuildError for a precision that
    is neither int8 nor int4.
    """
    linear: Linear
    if precision == "int8":
        linear = Levels(writer, model, bounds)
    elif precision == "int4":
        linear = Blocks(writer, model)
    else:
        raise BuildError(f"An npu graph has no precision {precision!r}; it has int8, int4.")
    decode(Portable(writer, model, linear, rows, context), model)
    return writer.model(*signature(writer, model, rows, logits, context))


class Levels(Int8):
    """Products of rows in 16 bits by weights in 8, between float16 and float16.

    Those with outliers beyond FAR are in float16 altogether.
    """

    def __init__(self, writer: GraphWriter, model: Model, bounds: Mapping[str, Bounds]) -> None:
        super().__init__(writer, model)
        self._bounds = bounds
        self._float = Float(writer, model)

    def embed(self, tokens: str) -> str:
        """From a table in float16: these devices look up no bytes."""
        return self._float.embed(tokens)

    def project(self, name: str, rows: str) -> str:
        """Multiply; rows [n, in] → [n, out]."""
        writer, bounds = self._writer, self._bounds[name]
        if bounds.spread > FAR:
            return self._float.project(name, rows)
        rows = self._in_levels(rows, bounds.low_in, bounds.high_in)
        stored, scales = self._columns(name)
        scales = writer.node("Cast", scales, to=TensorProto.FLOAT16)
        axis = 0 if name == "head" else 1
        weights = self._quantize("DequantizeLinear", stored, scales, axis=axis)
        if name == "head":
            product = writer.node("Gemm", rows, weights, transB=1)
        else:
            product = writer.node("MatMul", rows, weights)
        return self._in_levels(product, bounds.low_out, bounds.high_out)

    def _in_levels(self, value: str, low: float, high: float) -> str:
        """`value` rounded to the levels between two bounds; 0 is one of them."""
        low, high = max(min(low, 0.0), -LARGEST), min(max(high, 0.0), LARGEST)
        # Up, so that no bound is lost: a scale this small has few bits in float16.
        scale = np.nextafter(np.float16((high - low) / LEVELS), np.float16(np.inf))
        zero = np.uint16(round(-low / float(scale)))
        parameters = (self._writer.constant(np.array(scale)), self._writer.constant(np.array(zero)))
        levels = self._quantize("QuantizeLinear", value, *parameters)
        return self._quantize("DequantizeLinear", levels, *parameters)

    def _quantize(self, operator: str, *inputs: str, **attributes: Any) -> str:
        return self._writer.node(operator, *inputs, domain="com.microsoft", **attributes)


class Blocks(Int4):
    """Products of float16 rows by weights in blocks of four bits."""

    def __init__(self, writer: GraphWriter, model: Model) -> None:
        super().__init__(writer, model, accuracy_level=0)
        self._float = Float(writer, model)

    def embed(self, tokens: str) -> str:
        """From a table in float16."""
        return self._float.embed(tokens)

    def project(self, name: str, rows: str) -> str:
        """Multiply; rows [n, in] → [n, out], which the operator must have as [1, n, in]."""
        writer, axis = self._writer, self._writer.constant(np.array([0], np.int64))
        product = super().project(name, writer.node("Unsqueeze", rows, axis))
        return writer.node("Squeeze", product, axis)

    def _stored(self, name: str, make: Callable[[], NDArray[np.float32]]) -> tuple[str, str, str]:
        """The scales in float16, as the rows are."""
        packed, scales, zeros = super()._stored(name, make)
        return packed, self._writer.node("Cast", scales, to=TensorProto.FLOAT16), zeros
