"""Graphs of one product each, with a look inside."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from export.linear import FUSED_PROJECTIONS, Linear, linear_for, primitive_linear_for
from export.model import Model
from export.writer import GraphWriter, WeightFile
from runtime import providers
from runtime.manifest import Geometry

Array = NDArray[np.float32]


def a_model(weights: dict[str, Array]) -> Model:
    geometry = Geometry(
        layers=1,
        hidden=4,
        intermediate=4,
        heads=1,
        kv_heads=1,
        head_size=4,
        vocabulary=4,
        context=4,
        rope_base=10000.0,
        norm_epsilon=1e-5,
    )
    return Model(geometry, weights)


def run(
    folder: Path,
    model: Model,
    precision: str,
    use: Callable[[Linear], str],
    *,
    watch: Sequence[str] = (),
    threads: int = 1,
    make: Callable[..., Linear] = linear_for,
    **feeds: NDArray[Any],
) -> list[NDArray[Any]]:
    """What `use` returns in a graph of its own, then all outputs of the operators in `watch`.

    make: what gives the products of a precision, `linear_for` or `primitive_linear_for`.
    """
    real = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    with closing(WeightFile(folder / "weights")) as weights:
        writer = GraphWriter(weights, real_type=real)
        result = use(make(precision, writer, model))
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None)
            for name, value in feeds.items()
        ]
        graph = writer.model(inputs, [])
    nodes = [node for kind in watch for node in graph.graph.node if node.op_type == kind]
    seen = [name for node in nodes for name in node.output]
    for name in (result, *seen):
        graph.graph.output.append(helper.make_empty_tensor_value_info(name))
    onnx.save(graph, folder / "graph")
    outputs: list[NDArray[Any]] = providers.load(folder / "graph", threads=threads).run(None, feeds)
    return outputs


def multiply(
    folder: Path,
    matrix: Array,
    rows: NDArray[Any],
    precision: str = "int8",
    *,
    name: str = "layers.0.o",
    watch: Sequence[str] = (),
    threads: int = 1,
    make: Callable[..., Linear] = linear_for,
) -> list[NDArray[Any]]:
    """rows [n, in] times matrix [out, in], and what was watched; fused rows have a middle axis."""
    layer, dot, projection = name.rpartition(".")
    parts = FUSED_PROJECTIONS.get(projection, (projection,))
    pieces = np.array_split(matrix, len(parts))
    weights = {f"{layer}{dot}{part}": piece for part, piece in zip(parts, pieces, strict=True)}
    return run(
        folder,
        a_model({"embedding": matrix[:1], **weights}),
        precision,
        lambda linear: linear.project(name, "rows"),
        watch=watch,
        threads=threads,
        make=make,
        rows=rows if make is primitive_linear_for else rows[:, None, :],
    )
