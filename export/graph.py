"""The graphs of one model in one precision: files in one folder that share one file of weights."""

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.fused import build_fused
from export.model import Model
from export.portable import build_portable
from export.writer import GraphWriter, WeightFile, close_model
from runtime.errors import BuildError
from runtime.manifest import INTEGER_PROBE_FILE, Flavour, Precision

WEIGHTS_FILE = "weights.data"
LANES = (8, 32)  # how many sequences are decoded together, where speed per sequence is not all
# The rows of a portable graph, and how many of them give logits: a pass, and a chunk of a prompt.
PORTABLE_ROWS = {4: 4, 64: 1}
PORTABLE_CONTEXT = 1024  # slots: every run of a portable graph reads the whole arena


def graph_file(flavour: Flavour, *, lanes: int = 1, rows: int = min(PORTABLE_ROWS)) -> str:
    """The name of one graph's file, of so many lanes (fused) or rows (portable)."""
    if flavour == "portable":
        return f"portable-{rows}-rows.onnx"
    return "fused.onnx" if lanes == 1 else f"fused-{lanes}-lanes.onnx"


def portable_context(model: Model) -> int:
    """How many slots the portable graphs of `model` have."""
    return min(PORTABLE_CONTEXT, model.geometry.context)


def build_graphs(
    model: Model,
    precision: Precision,
    folder: Path,
    *,
    flavours: Collection[Flavour],
    many: bool = False,
    inexact: bool = False,
) -> None:
    """Write the graphs of `model` in `precision` into the empty `folder`.

    many: fused graphs that decode several sequences together too. inexact: for a draft, whose int4
    products may round their rows to 8 bits. Raises BuildError for a flavour or precision
    that does not exist.
    """
    if precision == "int8":
        build_integer_probe(folder / INTEGER_PROBE_FILE)
    real = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    with closing(WeightFile(folder / WEIGHTS_FILE)) as weights:
        for flavour in flavours:
            if flavour == "fused":
                for lanes in (1, *LANES) if many else (1,):
                    writer = GraphWriter(weights, real_type=real)
                    graph = build_fused(writer, model, precision, lanes=lanes, inexact=inexact)
                    onnx.save(graph, folder / graph_file(flavour, lanes=lanes))
            elif flavour == "portable":
                for rows, logits in PORTABLE_ROWS.items():
                    writer = GraphWriter(weights, real_type=real)
                    context = portable_context(model)
                    graph = build_portable(
                        writer, model, precision, rows=rows, logits=logits, context=context
                    )
                    onnx.save(graph, folder / graph_file(flavour, rows=rows))
            else:
                raise BuildError(f"There is no flavour {flavour!r}; there is fused and portable.")


def build_integer_probe(path: Path) -> None:
    """Write a product of bytes with extreme weights, by which a machine's arithmetic is tried.

    bytes [rows, 256] uint8 → product [rows, 64] float32, less zero point 128, in the operator of
    the int8 graphs, and the weights [256, 64] int8 that it was made with.
    """
    noise = np.random.default_rng(0)
    weights = noise.choice(np.array([-127, -1, 126, 127], np.int8), (256, 64))
    weights[:, 0], weights[:, 1] = 127, -127
    stored = numpy_helper.from_array(weights, "stored")
    constants = [
        stored,
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.array(128, np.uint8), "zero_point"),
    ]
    product = helper.make_node(
        "MatMulIntegerToFloat",
        ["bytes", "stored", "one", "one", "zero_point"],
        ["product"],
        domain="com.microsoft",
    )
    graph = helper.make_graph(
        [product, helper.make_node("Identity", ["stored"], ["weights"])],
        "integer probe",
        [helper.make_tensor_value_info("bytes", TensorProto.UINT8, ["rows", 256])],
        [
            helper.make_tensor_value_info("product", TensorProto.FLOAT, ["rows", 64]),
            helper.make_tensor_value_info("weights", TensorProto.INT8, [256, 64]),
        ],
        constants,
    )
    onnx.save(close_model(graph), path)
