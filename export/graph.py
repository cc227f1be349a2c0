"""The graphs of one model in one precision: files in one folder that share one file of weights."""

from collections.abc import Collection, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.calibrate import Bounds
from export.exit_head import Exit, build_exit_head
from export.fused import build_fused
from export.gpu import build_gpu
from export.model import Model
from export.npu import build_npu
from export.portable import build_portable
from export.writer import GraphWriter, WeightFile, close_model
from runtime.errors import BuildError
from runtime.manifest import INTEGER_PROBE_FILE, STATIC, EarlyExit, Flavour, Precision

WEIGHTS_FILE = "weights.data"
LANES = (8, 32)  # how many sequences are decoded together, where speed per sequence is not all
# The rows of a portable graph, and how many of them give logits: a pass, and a chunk of a prompt.
PORTABLE_ROWS = {8: 8, 64: 1}
# Those of a distilled draft, whose pass is wider: what was written since the last one, and branches
# of masks. Every row may be a guess, so every row has logits: what fits in a graph is one run.
DRAFT_ROWS = {rows: rows for rows in (16, 48, 64)}
NO_BOUNDS: Mapping[str, Bounds] = MappingProxyType({})
PORTABLE_CONTEXT = 1024  # slots: every run of a portable graph reads the whole arena


def graph_file(
    flavour: Flavour, *, lanes: int = 1, rows: int = min(PORTABLE_ROWS), distilled: bool = False
) -> str:
    """The name of one graph's file, of so many lanes (fused) or rows (portable).

    distilled: of a draft that lies beside the graphs of its target.
    """
    whose = "draft-" if distilled else ""
    if flavour in STATIC:
        return f"{whose}{flavour}-{rows}-rows.onnx"
    if flavour == "gpu":
        return f"{whose}gpu.onnx"
    return f"{whose}fused.onnx" if lanes == 1 else f"{whose}fused-{lanes}-lanes.onnx"


def exit_files(layer: int, folder: str = ".") -> EarlyExit:
    """The graphs, in `folder`, of a target that is left after so many layers."""
    names = (f"{folder}/{part}-{layer}.onnx" for part in ("prefix", "suffix", "exit"))
    return EarlyExit(*names)


def portable_context(model: Model) -> int:
    """How many slots the portable graphs of `model` have."""
    return min(PORTABLE_CONTEXT, model.geometry.context)


def portable_rows(model: Model) -> dict[int, int]:
    """The rows of each portable graph of `model`, and how many of them give logits."""
    return DRAFT_ROWS if model.distilled else PORTABLE_ROWS


def build_graphs(
    model: Model,
    precision: Precision,
    folder: Path,
    *,
    flavours: Collection[Flavour],
    many: bool = False,
    inexact: bool = False,
    left: Exit | None = None,
    draft: Model | None = None,
    draft_flavours: Collection[Flavour] = (),
    bounds: Mapping[str, Bounds] = NO_BOUNDS,
    draft_bounds: Mapping[str, Bounds] = NO_BOUNDS,
) -> None:
    """Write the graphs of `model` in `precision` into the empty `folder`.

    many: fused graphs that decode several sequences together too. inexact: for a draft, whose int4
    products may round their rows to 8 bits. left: where the fused graph of one sequence is cut in
    two, once more beside the whole one. draft: one that was distilled for `model`, with graphs
    of `draft_flavours` beside it. bounds, draft_bounds: for npu graphs in int8.
    Raises BuildError for a flavour or precision that does not exist.
    """
    if precision == "int8":
        build_integer_probe(folder / INTEGER_PROBE_FILE)
    with closing(WeightFile(folder / WEIGHTS_FILE)) as weights:
        for flavour in flavours:
            lanes = LANES if many else ()
            _write(
                weights,
                model,
                precision,
                folder,
                flavour,
                lanes=lanes,
                inexact=inexact,
                bounds=bounds,
            )
        if left is not None and "fused" in flavours:
            _write_parts(weights, model, precision, folder, left)
        if draft is not None:
            for flavour in draft_flavours:
                _write(
                    weights, draft, precision, folder, flavour, inexact=True, bounds=draft_bounds
                )


def _write(
    weights: WeightFile,
    model: Model,
    precision: Precision,
    folder: Path,
    flavour: Flavour,
    *,
    lanes: Collection[int] = (),
    inexact: bool,
    bounds: Mapping[str, Bounds],
) -> None:
    """Write the graphs of one model and flavour; lanes: how many sequences together, beside one."""
    writer = partial(_writer, weights, model, precision, half=flavour == "npu")
    file = partial(graph_file, flavour, distilled=model.distilled)
    if flavour == "fused":
        for count in (1, *lanes):
            graph = build_fused(writer(), model, precision, lanes=count, inexact=inexact)
            onnx.save(graph, folder / file(lanes=count))
    elif flavour == "gpu":
        onnx.save(build_gpu(writer(), model, precision, inexact=inexact), folder / file())
    elif flavour == "portable":
        context = portable_context(model)
        for rows, logits in portable_rows(model).items():
            graph = build_portable(
                writer(), model, precision, rows=rows, logits=logits, context=context
            )
            onnx.save(graph, folder / file(rows=rows))
    elif flavour == "npu":
        context = portable_context(model)
        for rows, logits in portable_rows(model).items():
            graph = build_npu(
                writer(),
                model,
                precision,
                rows=rows,
                logits=logits,
                context=context,
                bounds=bounds,
            )
            onnx.save(graph, folder / file(rows=rows))
    else:
        raise BuildError(f"There is no flavour {flavour!r}; there is fused, gpu, portable and npu.")


def _write_parts(
    weights: WeightFile, model: Model, precision: Precision, folder: Path, left: Exit
) -> None:
    """Write a fused graph once more, cut in two, and what is read off between."""
    writer = partial(_writer, weights, model, precision)
    files, end = exit_files(left.layer), model.geometry.layers
    for file, layers in (
        (files.prefix, range(left.layer)),
        (files.suffix, range(left.layer, end)),
    ):
        onnx.save(build_fused(writer(), model, precision, layers=layers), folder / file)
    onnx.save(build_exit_head(writer(), model, precision, left), folder / files.head)


def _writer(
    weights: WeightFile, model: Model, precision: Precision, *, half: bool = False
) -> GraphWriter:
    real = TensorProto.FLOAT16 if half or precision == "fp16" else TensorProto.FLOAT
    return GraphWriter(
        weights,
        real_type=real,
        real_suffix=".half" if half else "",
        model="draft" if model.distilled else "",
    )


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
