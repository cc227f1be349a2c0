"""How a precision multiplies: the embedding, the projections of a layer, and the head.

Fused graphs give rows as [n, 1, width]: the middle axis is where int8 lays the two bytes of a row
beside each other. Portable ones give [n, width].
"""

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from export.model import Model
from export.writer import GraphWriter
from runtime.errors import BuildError

FUSED_PROJECTIONS = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}

INT4_BLOCK = 32
INT4_FLOAT = 1  # float32 activations, though a lone row is added up in another order
INT4_FASTEST = 4  # 8-bit activations: fastest for one row, and a draft may be inexact


class Linear(Protocol):
    """The matrix products of one precision."""

    def embed(self, tokens: str) -> str:
        """tokens [n] → rows [n, hidden]."""

    def project(self, name: str, rows: str) -> str:
        """rows [.., in] → [.., out] through the matrix `name` (layers.{i}.qkv, …, head)."""


def linear_for(
    precision: str, writer: GraphWriter, model: Model, *, inexact: bool = False
) -> Linear:
    """The products of `precision` in ONNX Runtime's own operators; rows are [n, 1, width].

    inexact: for a draft, whose int4 products may round their rows to 8 bits, and are faster.
    Raises BuildError for a precision that is none of fp32, fp16, int8, int4.
    """
    if precision in ("fp32", "fp16"):
        return Float(writer, model)
    if precision == "int8":
        return Int8(writer, model)
    if precision == "int4":
        return Int4(writer, model, accuracy_level=INT4_FASTEST if inexact else INT4_FLOAT)
    raise BuildError(
        f"A fused graph has no precision {precision!r}; it has fp32, fp16, int8, int4."
    )


def primitive_linear_for(precision: str, writer: GraphWriter, model: Model) -> Linear:
    """The products of `precision` in primitive operators; rows are [n, width].

    Raises BuildError for a precision that is none of fp32, fp16, int8.
    """
    if precision in ("fp32", "fp16"):
        return Float(writer, model)
    if precision == "int8":
        return PrimitiveInt8(writer, model)
    raise BuildError(f"A portable graph has no precision {precision!r}; it has fp32, fp16, int8.")


def matrix(model: Model, name: str) -> NDArray[np.float32]:
    """The matrix [out, in] behind the name of a layer's projection; fused ones are stacked."""
    parts = _parts(model, name)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def matrix_shape(model: Model, name: str) -> tuple[int, int]:
    """The shape (out, in) of `matrix`, or of the head."""
    if name == "head":
        return model.logits, model.weights[model.head_name].shape[1]
    parts = _parts(model, name)
    return sum(len(part) for part in parts), parts[0].shape[1]


def _parts(model: Model, name: str) -> list[NDArray[np.float32]]:
    layer, _, projection = name.rpartition(".")
    parts: Sequence[str] = FUSED_PROJECTIONS.get(projection, (projection,))
    return [model.weights[f"{layer}.{part}"] for part in parts]


def _of_head(writer: GraphWriter, model: Model, stored: str) -> str:
    """Of `stored`, [vocabulary, ..], the rows that the model's head has.

    Where these are few they are taken from the whole table when the graph is loaded: in the file
    there is one table for all graphs.
    """
    if model.head_tokens is None:
        return stored
    tokens = writer.weight("head_tokens", model.head_tokens.astype(np.int32))
    return writer.node("Gather", stored, tokens, axis=0)


class Float:
    """Plain float32, bit-equal for any number of rows on the CPU provider, or float16."""

    def __init__(self, writer: GraphWriter, model: Model) -> None:
        self._writer, self._model = writer, model

    def embed(self, tokens: str) -> str:
        """Look rows up in the table."""
        table = self._writer.real("embedding", self._model.weights["embedding"])
        return self._writer.node("Gather", table, tokens, axis=0)

    def project(self, name: str, rows: str) -> str:
        """Multiply; a tied head reads the embedding, turned over when the graph is loaded."""
        if name != "head":
            stored = self._writer.real(name, lambda: matrix(self._model, name).T)
            return self._writer.node("MatMul", rows, stored)
        whole = self._model.head_name
        stored = self._writer.real(whole, self._model.weights[whole])
        stored = _of_head(self._writer, self._model, stored)
        return self._writer.node(
            "MatMul", rows, self._writer.node("Transpose", stored, perm=(1, 0))
        )


class Int8:
    """int8 weights per column, activations in two bytes: integer sums for any number of rows.

    Rows have outliers a thousand times the mean, and one byte does not hold both. A row of length
    sqrt(k) becomes q = round(x * LEVELS / sqrt(k)), stored as q + 32896, whose bytes are hi + 128
    and lo + 128 with q = 256 * hi + lo; other rows are brought to that length first. Both bytes run
    as two rows of one product, so the weights are read once. They are cut from a whole number by a
    shift: no rounding can make lo wrap.
    """

    LEVELS = 32512.0  # 127 * 256: hi stays in [-127, 127]
    OFFSET = 32896.0  # 128 * 256 + 128: both bytes unsigned with zero point 128
    EPSILON = 1e-12  # of a mean square: shorter rows are measured as longer than they are

    def __init__(self, writer: GraphWriter, model: Model) -> None:
        self._writer, self._model = writer, model

    def embed(self, tokens: str) -> str:
        """Look rows up in the table."""
        table, scales = self._stored("embedding", lambda: self._model.weights["embedding"])
        rows = self._writer.node(
            "Cast", self._writer.node("Gather", table, tokens, axis=0), to=TensorProto.FLOAT
        )
        columns = self._writer.node("Gather", scales, tokens, axis=0)
        axis = self._writer.constant(np.array([1], np.int64))
        return self._writer.node("Mul", rows, self._writer.node("Unsqueeze", columns, axis))

    def project(self, name: str, rows: str) -> str:
        """Multiply by both bytes of each row."""
        _, width = matrix_shape(self._model, name)
        stored, scales = self._columns(name)
        if name == "head":
            stored = self._writer.node("Transpose", stored, perm=(1, 0))
        return self._product(rows, width, stored, scales)

    def _columns(self, name: str) -> tuple[str, str]:
        """A matrix [in, out], of the head [out, in], in int8 with its scales [out]."""
        if name != "head":
            return self._stored(name, lambda: matrix(self._model, name), turned=True)
        whole = self._model.head_name
        stored, scales = self._stored(whole, lambda: self._model.weights[whole])
        return (
            _of_head(self._writer, self._model, stored),
            _of_head(self._writer, self._model, scales),
        )

    def _product(self, rows: str, width: int, stored: str, scales: str) -> str:
        """Rows of `width` by a matrix of int8 and its scales."""
        both, worth = self._split_bytes(rows, width)
        inputs = (both, stored, self._writer.scalar(1.0), scales, self._zero_point())
        product = self._writer.node("MatMulIntegerToFloat", *inputs, domain="com.microsoft")
        return self._writer.node("MatMul", worth, product)

    def _split_bytes(self, rows: str, width: int) -> tuple[str, str]:
        """rows [n, 1, k] float32 → bytes [n, 2, k] uint8 and the worth of their steps [n, 1, 2]."""
        writer = self._writer
        one = self.LEVELS / np.sqrt(width)  # what the mean length becomes
        normed, inverse_length = writer.nodes(
            "SimplifiedLayerNormalization",
            (rows, writer.weight(f"lengths.{width}", np.full(width, one, np.float32))),
            outputs=(0, 1),
            axis=-1,
            epsilon=self.EPSILON,
        )
        stored = writer.node("Add", normed, writer.scalar(self.OFFSET + 0.5))
        stored = writer.node("Cast", stored, to=TensorProto.UINT32)
        shifts = writer.constant(np.array([[8], [0]], np.uint32))
        high_low = writer.node("BitShift", stored, shifts, direction="RIGHT")
        both = writer.node("Cast", high_low, to=TensorProto.UINT8)
        worth = writer.constant(np.array([[[256 / one, 1 / one]]], np.float32))
        return both, writer.node("Div", worth, inverse_length)

    def _zero_point(self) -> str:
        return self._writer.constant(np.array(128, np.uint8))

    def _stored(
        self, name: str, make: Callable[[], NDArray[np.float32]], *, turned: bool = False
    ) -> tuple[str, str]:
        """A matrix [out, in] as int8 and its scales [out]; turned: stored as [in, out]."""
        quantised = functools.cache(lambda: quantise_columns(make()))
        return (
            self._writer.weight(name, lambda: quantised()[0].T if turned else quantised()[0]),
            self._writer.weight(f"{name}.scales", lambda: quantised()[1]),
        )


class PrimitiveInt8(Int8):
    """The same numbers in opset-17 operators, on rows [n, k]: the bytes lie one below the other."""

    def _product(self, rows: str, width: int, stored: str, scales: str) -> str:
        writer = self._writer
        one = self.LEVELS / np.sqrt(width)
        mean = writer.node("ReduceMean", writer.node("Mul", rows, rows), axes=[-1])
        length = writer.node("Sqrt", writer.node("Add", mean, writer.scalar(self.EPSILON)))
        unit = writer.node("Div", length, writer.scalar(one))
        levels = writer.node(
            "Add", writer.node("Div", rows, unit), writer.scalar(self.OFFSET + 0.5)
        )
        levels = writer.node("Cast", levels, to=TensorProto.UINT32)
        shift = writer.constant(np.array(8, np.uint32))
        high = writer.node("BitShift", levels, shift, direction="RIGHT")
        both = [writer.node("Cast", part, to=TensorProto.UINT8) for part in (high, levels)]
        joined = writer.node("Concat", *both, axis=0)
        sums = writer.node("MatMulInteger", joined, stored, self._zero_point())
        sums = writer.node("Mul", writer.node("Cast", sums, to=TensorProto.FLOAT), scales)
        high, low = writer.split(sums, 2, axis=0)
        summed = writer.node("Add", writer.node("Mul", high, writer.scalar(256.0)), low)
        return writer.node("Mul", summed, unit)


class Int4:
    """Four-bit weights in blocks with a zero point (MatMulNBits)."""

    def __init__(self, writer: GraphWriter, model: Model, *, accuracy_level: int) -> None:
        self._writer, self._model = writer, model
        self._accuracy_level = accuracy_level

    def embed(self, tokens: str) -> str:
        """Look rows up in the table."""
        table = self._model.weights["embedding"]
        packed, scales, zeros = (
            self._by_row(part, len(table)) for part in self._stored("embedding", lambda: table)
        )
        return self._writer.node(
            "GatherBlockQuantized",
            packed,
            tokens,
            scales,
            zeros,
            domain="com.microsoft",
            bits=4,
            block_size=INT4_BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )

    def project(self, name: str, rows: str) -> str:
        """Multiply block by block."""
        out, width = matrix_shape(self._model, name)
        packed, scales, zeros = (
            self._head()
            if name == "head"
            else self._stored(name, lambda: matrix(self._model, name))
        )
        return self._writer.node(
            "MatMulNBits",
            rows,
            packed,
            scales,
            zeros,
            domain="com.microsoft",
            N=out,
            K=width,
            bits=4,
            block_size=INT4_BLOCK,
            accuracy_level=self._accuracy_level,
        )

    def _head(self) -> tuple[str, str, str]:
        whole = self._model.head_name
        table = self._model.weights[whole]
        packed, scales, zeros = self._stored(whole, lambda: table)
        if self._model.head_tokens is None:
            return packed, scales, zeros
        flat = self._writer.constant(np.array([-1], np.int64))
        chosen = (
            _of_head(self._writer, self._model, self._by_row(part, len(table)))
            for part in (scales, zeros)
        )
        scales, zeros = (self._writer.node("Reshape", part, flat) for part in chosen)
        return _of_head(self._writer, self._model, packed), scales, zeros

    def _by_row(self, part: str, rows: int) -> str:
        """Numbers of a matrix of so many rows, [rows, ..]."""
        shape = self._writer.constant(np.array([rows, -1], np.int64))
        return self._writer.node("Reshape", part, shape)

    def _stored(self, name: str, make: Callable[[], NDArray[np.float32]]) -> tuple[str, str, str]:
        quantised = functools.cache(lambda: quantise_blocks(make()))
        return (
            self._writer.weight(name, lambda: quantised()[0]),
            self._writer.weight(f"{name}.scales", lambda: quantised()[1]),
            self._writer.weight(f"{name}.zeros", lambda: quantised()[2]),
        )


def quantise_columns(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric 8-bit weights: [out, in] → int8 [out, in] in [-127, 127] and scales [out]."""
    scales = _usable(np.abs(weight).max(axis=1) / 127)
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


def quantise_blocks(
    weight: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """Asymmetric 4-bit weights in blocks along `in`, in the layout of MatMulNBits.

    [out, in] → packed uint8 [out, blocks, 16] (the even place in the low half of a byte), scales
    float32 [out * blocks], zero points uint8 [out * ceil(blocks / 2)] (two to a byte).
    """
    out, width = weight.shape
    if width % INT4_BLOCK:
        raise BuildError(
            f"an int4 matrix of {width} columns: they must be a multiple of {INT4_BLOCK}"
        )
    blocks = weight.reshape(out, -1, INT4_BLOCK)
    low = np.minimum(blocks.min(axis=2), 0)
    high = np.maximum(blocks.max(axis=2), 0)
    scales = _usable((high - low) / 15)
    zeros = np.clip(np.rint(-low / scales), 0, 15).astype(np.uint8)
    levels = np.rint(blocks / scales[:, :, None]) + zeros[:, :, None]
    quantised = np.clip(levels, 0, 15).astype(np.uint8)
    packed = quantised[..., 0::2] | (quantised[..., 1::2] << 4)
    if zeros.shape[1] % 2:
        zeros = np.pad(zeros, ((0, 0), (0, 1)))
    return packed, scales.reshape(-1), (zeros[:, 0::2] | (zeros[:, 1::2] << 4)).reshape(-1)


def _usable(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scales, 1 where one is no normal number: what they would measure becomes zeros.

    A denormal scale has lost bits, so that quotients by it leave the range of a level.
    """
    return np.where(scales >= np.finfo(np.float32).tiny, scales, 1).astype(np.float32)
