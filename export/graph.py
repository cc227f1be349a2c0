"""The fused flavour: a llama-family decoder as one ONNX graph around GroupQueryAttention.

Inputs, for `lanes` sequences that each feed the same number of tokens S (one lane, except in the
graph that decodes many sequences together):

    tokens [lanes * S] int64           lane by lane
    attention_rows [lanes * max(S, 2)] int64   the rows that attention sees; a lone row goes twice
    attention_shape [3] int64          (1, max(S, 2), -1), how one lane's rows are laid out there
    attention_keep [S] int64           the rows of a lane that come back from attention
    logits_rows [R] int64              the rows whose logits are wanted
    key_lengths.{lane} [1] int32       keys in the lane's cache after this call, less one
    total_lengths.{lane} [] int32      the same keys, counted in full
    past.{lane}.{layer}.{key|value}    [1, kv_heads, capacity, head_size] float32

Outputs: logits [R, vocabulary] float32 and present.{lane}.{layer}.{key|value}, which the caller
binds to the buffers of past: the cache is updated in place.

Why a lone row is doubled: the attention kernel adds in another order for one row than for two or
more, so a token's logits would depend on how many rows were asked for at once. The second copy
writes its keys one place further, where the next token's belong; nothing ever reads them.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.linear import linear_for
from export.model import Model
from export.rotate import rotated
from export.writer import GraphWriter, close_model

GRAPH_FILE = "model.onnx"
WEIGHTS_FILE = "model.data"


def lanes_file(lanes: int) -> str:
    """The name of the graph of several lanes, beside GRAPH_FILE."""
    return f"model-{lanes}-lanes.onnx"


def build_fused(model: Model, precision: str, folder: Path, *, lanes: Sequence[int] = ()) -> Path:
    """Write `model` as a fused graph; return its path, the weights lie beside it.

    precision: fp32, int8 (exact for any number of rows) or int4 (MatMulNBits, fast alone).
    lanes: how many sequences further graphs decode together; they read the same weights.
    Raises BuildError for a precision that does not exist.
    """
    if precision == "int8":
        model = rotated(model)
    for count in (1, *lanes):
        path = folder / (GRAPH_FILE if count == 1 else lanes_file(count))
        with closing(GraphWriter(folder / WEIGHTS_FILE, reuse=count > 1)) as writer:
            _decoder(writer, model, precision, count)
            onnx.save(writer.model(*_signature(model, count)), path)
    return folder / GRAPH_FILE


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


def rotary_tables(model: Model) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosine and sine of every position's rotary angles, each [context + 1, head_size / 2] float32.

    One position more than the context holds: a doubled lone row stands one place further.
    """
    geometry = model.geometry
    steps = np.arange(0, geometry.head_size, 2, dtype=np.float64) / geometry.head_size
    angles = np.outer(np.arange(geometry.context + 1, dtype=np.float64), geometry.rope_base**-steps)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _decoder(writer: GraphWriter, model: Model, precision: str, lanes: int) -> None:
    """Add the nodes and weights of the whole model, from tokens to logits."""
    geometry = model.geometry
    linear = linear_for(precision, writer, model)
    hidden = linear.embed("tokens")
    hidden = writer.node("Unsqueeze", hidden, writer.constant(np.array([1], np.int64)))
    cosine, sine = (
        writer.weight(name, table)
        for name, table in zip(("cosine", "sine"), rotary_tables(model), strict=True)
    )
    skip = None
    for layer in range(geometry.layers):
        name = f"layers.{layer}"
        normed, hidden = _norm(writer, model, f"{name}.attention_norm", hidden, skip)
        qkv = linear.project(f"{name}.qkv", normed)
        mixed = _attention(writer, model, layer, qkv, (cosine, sine), lanes)
        skip = linear.project(f"{name}.o", mixed)
        normed, hidden = _norm(writer, model, f"{name}.feed_forward_norm", hidden, skip)
        skip = linear.project(
            f"{name}.down", _gated(writer, linear.project(f"{name}.gate_up", normed))
        )
    normed, _ = _norm(writer, model, "norm", hidden, skip)
    rows = writer.node("Gather", normed, "logits_rows", axis=0)
    logits = linear.project("head", rows)
    writer.node(
        "Reshape",
        logits,
        writer.constant(np.array([-1, geometry.vocabulary], np.int64)),
        output="logits",
    )


def _norm(
    writer: GraphWriter, model: Model, name: str, hidden: str, skip: str | None
) -> tuple[str, str]:
    """RMS norm of hidden + skip; returns the normed rows and the sum they were made from."""
    weight = writer.weight(name, model.weights[name])
    epsilon = model.geometry.norm_epsilon
    if skip is None:
        normed = writer.node(
            "SimplifiedLayerNormalization", hidden, weight, epsilon=epsilon, axis=-1
        )
        return normed, hidden
    normed, summed = writer.nodes(
        "SkipSimplifiedLayerNormalization",
        (hidden, skip, weight),
        outputs=(0, 3),
        domain="com.microsoft",
        epsilon=epsilon,
    )
    return normed, summed


def _attention(
    writer: GraphWriter, model: Model, layer: int, qkv: str, rotary: tuple[str, str], lanes: int
) -> str:
    """Causal attention of each lane over its own cache: [n, 1, qkv] → [n, 1, heads * head_size]."""
    geometry = model.geometry
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
            rotary=rotary,
            present=(f"present.{cache}.key", f"present.{cache}.value"),
            heads=geometry.heads,
            kv_heads=geometry.kv_heads,
        )
        kept.append(writer.node("Gather", mixed, "attention_keep", axis=1))
    joined = kept[0] if lanes == 1 else writer.node("Concat", *kept, axis=1)
    shape = np.array([-1, 1, geometry.heads * geometry.head_size], np.int64)
    return writer.node("Reshape", joined, writer.constant(shape))


def _gated(writer: GraphWriter, gate_up: str) -> str:
    """SiLU(gate) * up, of the two halves of each row."""
    gate, up = writer.split(gate_up, 2, axis=-1)
    activated = writer.node("QuickGelu", gate, domain="com.microsoft", alpha=1.0)
    return writer.node("Mul", activated, up)


def _signature(
    model: Model, lanes: int
) -> tuple[Sequence[onnx.ValueInfoProto], Sequence[onnx.ValueInfoProto]]:
    """The graph's inputs and outputs, in the order in which the module's docstring names them."""
    geometry = model.geometry
    info = helper.make_tensor_value_info
    cache_shape: list[str | int | None] = [1, geometry.kv_heads, "capacity", geometry.head_size]
    inputs = [
        info("tokens", TensorProto.INT64, ["tokens"]),
        info("attention_rows", TensorProto.INT64, ["attention_rows"]),
        info("attention_shape", TensorProto.INT64, [3]),
        info("attention_keep", TensorProto.INT64, ["width"]),
        info("logits_rows", TensorProto.INT64, ["rows"]),
    ]
    for lane in range(lanes):
        inputs.append(info(f"key_lengths.{lane}", TensorProto.INT32, [1]))
        inputs.append(info(f"total_lengths.{lane}", TensorProto.INT32, []))
    caches = [
        f"{lane}.{layer}.{part}"
        for lane in range(lanes)
        for layer in range(geometry.layers)
        for part in ("key", "value")
    ]
    inputs += [info(f"past.{name}", TensorProto.FLOAT, cache_shape) for name in caches]
    outputs = [info("logits", TensorProto.FLOAT, ["rows", geometry.vocabulary])]
    outputs += [info(f"present.{name}", TensorProto.FLOAT, cache_shape) for name in caches]
    return inputs, outputs
