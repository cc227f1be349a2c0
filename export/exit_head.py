"""The head of an early exit: what the target, part-way through, takes for the next token.

Input: hidden [n, hidden] float32, what some of the target's layers leave. Outputs, for the `TOP`
likeliest of the tokens that the head is about (all of them where these are fewer), best first:

    tokens [n, TOP] int64
    log_probabilities [n, TOP] float32   of the tokens that the head is about, summing to 1

A tuned lens comes first where there is one (Belrose et al. 2023, 2303.08112), then the model's own
norm and head. The head may be about few tokens, such as a draft's: they come of the same table.
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from export.linear import linear_for
from export.model import Model
from export.writer import GraphWriter

TOP = 16


@dataclass(frozen=True, slots=True)
class Exit:
    """Where a target is left early: after `layer` of its layers.

    lens [hidden, hidden] float16: y = x @ lens.T. tokens [n], ascending: what its head is about;
    None: the whole vocabulary.
    """

    layer: int
    lens: NDArray[np.float16] | None = None
    tokens: NDArray[np.int64] | None = None


def build_exit_head(
    writer: GraphWriter, model: Model, precision: str, left: Exit
) -> onnx.ModelProto:
    """The head of a target's exit, its weights through `writer`.

    Raises BuildError for a precision that does not exist.
    """
    read = replace(model, head_tokens=left.tokens)
    rows = writer.node("Unsqueeze", "hidden", writer.constant(np.array([1], np.int64)))
    if writer.real_type != TensorProto.FLOAT:
        rows = writer.node("Cast", rows, to=writer.real_type)
    if left.lens is not None:
        rows = writer.node("MatMul", rows, writer.real(f"lens.{left.layer}", left.lens.T))
    norm = writer.real("norm", model.weights["norm"])
    epsilon = model.geometry.norm_epsilon
    rows = writer.node("SimplifiedLayerNormalization", rows, norm, epsilon=epsilon, axis=-1)
    logits = linear_for(precision, writer, read).project("head", rows)
    shape = writer.constant(np.array([-1, read.logits], np.int64))
    logits = writer.node("Reshape", logits, shape)
    logits = writer.node("Cast", logits, to=TensorProto.FLOAT)
    top = min(TOP, read.logits)
    count = writer.constant(np.array([top], np.int64))
    shares = writer.node("LogSoftmax", logits, axis=-1)
    best, columns = writer.nodes("TopK", (shares, count), (0, 1), axis=-1)
    writer.node("Identity", best, output="log_probabilities")
    if left.tokens is not None:
        listed = writer.weight("head_tokens", left.tokens.astype(np.int32))
        columns = writer.node("Gather", listed, columns, axis=0)
    writer.node("Cast", columns, output="tokens", to=TensorProto.INT64)
    info = helper.make_tensor_value_info
    return writer.model(
        [info("hidden", TensorProto.FLOAT, ["rows", model.geometry.hidden])],
        [
            info("tokens", TensorProto.INT64, ["rows", top]),
            info("log_probabilities", TensorProto.FLOAT, ["rows", top]),
        ],
    )
