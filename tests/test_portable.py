"""Portable graphs: the standard's own operators, every shape known, the model's own logits."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from export import graph, reference
from export.graph import PORTABLE_ROWS, build_graphs, graph_file, portable_context
from export.linear import primitive_linear_for
from export.model import Model
from export.portable import Portable, build_portable
from export.writer import GraphWriter, WeightFile
from runtime import providers
from runtime.errors import BuildError, ContextError
from runtime.manifest import Precision
from runtime.portable import PortableSession
from tests import tiny
from tests.graphs import BOUNDS, FP16_BOUND, TEXT, as_stored, logits, portable, tiny_model

Array = NDArray[np.float32]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
PLAIN = {
    *("Add", "Cast", "Concat", "Div", "Gather", "MatMul", "Mul", "ReduceMean", "Reshape"),
    *("Sigmoid", "Softmax", "Split", "Sqrt", "Sub", "Transpose", "Unsqueeze"),
}
KINDS: Mapping[Precision, set[str]] = {
    "fp32": PLAIN,
    "fp16": PLAIN | {"Abs", "Max", "ReduceMax"},
    "int8": PLAIN | {"BitShift", "MatMulInteger"},
}


@dataclass(frozen=True, slots=True)
class Built:
    model: Model
    folder: Path
    precision: Precision

    def session(self, *rows: int) -> PortableSession:
        """A session on the graphs of `rows`, or on all of them."""
        graphs = {n: self.folder / graph_file("portable", rows=n) for n in rows or PORTABLE_ROWS}
        slots = portable_context(self.model)
        return PortableSession(graphs, self.model.geometry, slots=slots, threads=1)


@pytest.fixture(
    scope="module",
    params=[(precision, tied) for precision in PRECISIONS for tied in (True, False)],
    ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}",
)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    precision, tied = request.param
    folder = tmp_path_factory.mktemp("graph")
    model = tiny_model(tmp_path_factory.mktemp("gguf"), tied=tied)
    build_graphs(model, precision, folder, flavours=["portable"])
    return Built(model, folder, precision)


@pytest.mark.parametrize("rows", PORTABLE_ROWS)
def test_only_the_standards_own_operators(built: Built, rows: int) -> None:
    path = built.folder / graph_file("portable", rows=rows)
    model = onnx.load(path, load_external_data=False)
    assert model.ir_version == 8
    assert {entry.version for entry in model.opset_import if not entry.domain} == {17}
    assert {node.domain for node in model.graph.node} == {""}
    assert {node.op_type for node in model.graph.node} == KINDS[built.precision]
    assert not model.functions
    assert not model.graph.sparse_initializer
    assert not any(
        attribute.HasField("g") for node in model.graph.node for attribute in node.attribute
    )
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    onnx.checker.check_model(path, full_check=True)


@pytest.mark.parametrize("rows", PORTABLE_ROWS)
def test_every_shape_is_known(built: Built, rows: int) -> None:
    path = built.folder / graph_file("portable", rows=rows)
    model = onnx.shape_inference.infer_shapes(
        onnx.load(path, load_external_data=False), strict_mode=True, data_prop=True
    )
    known = {info.name: info for info in [*model.graph.value_info, *model.graph.output]}
    made = {name for node in model.graph.node for name in node.output}
    assert made == known.keys()
    for info in [*known.values(), *model.graph.input]:
        dims = info.type.tensor_type.shape.dim
        assert all(dim.dim_value > 0 and not dim.dim_param for dim in dims), info.name
    session = providers.load(path, threads=1)
    for item in [*session.get_inputs(), *session.get_outputs()]:
        assert all(isinstance(size, int) for size in item.shape), item.name


@pytest.mark.parametrize(("rows", "count"), PORTABLE_ROWS.items())
def test_the_signature_is_the_one_described(built: Built, rows: int, count: int) -> None:
    path = built.folder / graph_file("portable", rows=rows)
    session = providers.load(path, threads=1)
    slots, size = tiny.CONTEXT, tiny.HIDDEN // tiny.HEADS
    real = "tensor(float16)" if built.precision == "fp16" else "tensor(float)"
    wanted: dict[str, tuple[str, list[int]]] = {
        "tokens": ("tensor(int32)", [rows]),
        "positions": ("tensor(int32)", [rows]),
        "mask": (real, [rows, slots + rows]),
        "logits_rows": ("tensor(int32)", [count]),
    }
    for layer in range(tiny.LAYERS):
        wanted[f"keys.{layer}"] = (real, [tiny.KV_HEADS, size, slots])
        wanted[f"values.{layer}"] = (real, [tiny.KV_HEADS, slots, size])
    assert {item.name: (item.type, item.shape) for item in session.get_inputs()} == wanted
    results = {"logits": ("tensor(float)", [count, len(tiny.vocabulary())])}
    for layer in range(tiny.LAYERS):
        results[f"new_keys.{layer}"] = (real, [tiny.KV_HEADS, size, rows])
        results[f"new_values.{layer}"] = (real, [tiny.KV_HEADS, rows, size])
    assert {item.name: (item.type, item.shape) for item in session.get_outputs()} == results


@pytest.mark.parametrize("rows", [(8,), (64,), (8, 64)])
def test_graphs_of_any_rows_compute_what_the_reference_does(
    built: Built, rows: tuple[int, ...]
) -> None:
    stored = as_stored(built.model, built.precision)
    wanted = reference.logits(stored, TEXT.tolist())
    lost = np.abs(logits(built.session(*rows), TEXT) - wanted)
    assert lost.max() < BOUNDS[built.precision] * np.ptp(wanted)


def test_keys_are_the_same_for_any_rows(built: Built) -> None:
    """What one graph writes in the arena the other reads."""
    sessions = [built.session(rows) for rows in PORTABLE_ROWS]
    for session in sessions:
        session.extend(TEXT[:20])
    one, other = (session.cache for session in sessions)
    bound = {"fp32": 1e-5, "fp16": 2e-2, "int8": 1e-2}[built.precision]
    np.testing.assert_allclose(one.keys[..., :20], other.keys[..., :20], atol=bound)
    np.testing.assert_allclose(one.values[..., :20, :], other.values[..., :20, :], atol=bound)
    assert np.abs(one.keys[..., :20]).max() > 1


NORM_ROWS = np.stack(
    [
        np.full(tiny.HIDDEN, 20_000.0),
        np.where(np.arange(tiny.HIDDEN) % 2, -20_000.0, 20_000.0),
        np.r_[np.full(tiny.HIDDEN - 1, 20_000.0), -65_000.0],
        np.r_[np.zeros(tiny.HIDDEN - 1), 65_000.0],
        np.random.default_rng(1).standard_normal(tiny.HIDDEN) * 5_000,
        np.random.default_rng(2).standard_normal(tiny.HIDDEN),
        np.random.default_rng(3).standard_normal(tiny.HIDDEN) * 1e-3,  # epsilon is most of it
        np.r_[np.zeros(tiny.HIDDEN - 1), 3e-5],
        np.zeros(tiny.HIDDEN),
    ]
)


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-6), ("fp16", 4e-3)])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_a_norm_of_large_rows_does_not_overflow(
    precision: str, bound: float, epsilon: float, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path)
    model = replace(model, geometry=replace(model.geometry, norm_epsilon=epsilon))
    kind, real = (
        (TensorProto.FLOAT16, np.float16)
        if precision == "fp16"
        else (TensorProto.FLOAT, np.float32)
    )
    rows, weight = NORM_ROWS.astype(real), np.linspace(0.5, 2, tiny.HIDDEN)
    with closing(WeightFile(tmp_path / "weights")) as weights:
        writer = GraphWriter(weights, real_type=kind)
        linear = primitive_linear_for(precision, writer, model)
        flavour = Portable(writer, model, linear, len(rows), 4)
        found_name = flavour.norm("rows", writer.real("weight", weight))
        inputs = [
            helper.make_tensor_value_info("rows", kind, rows.shape),
            helper.make_tensor_value_info("positions", TensorProto.INT32, [len(rows)]),
        ]
        output = helper.make_tensor_value_info(found_name, kind, rows.shape)
        onnx.save(writer.model(inputs, [output]), tmp_path / "graph")
    session = providers.load(tmp_path / "graph", threads=1)
    (found,) = session.run(None, {"rows": rows, "positions": np.zeros(len(rows), np.int32)})
    exact = rows.astype(np.float64)
    wanted = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + epsilon) * weight
    assert np.isfinite(found).all()
    assert np.abs(found - wanted).max() < bound * np.abs(wanted).max()
    for own, due in zip(found, wanted, strict=True):  # each row by its own size
        assert np.abs(own - due).max() <= bound * np.abs(due).max() + 1e-7


def test_a_stream_of_large_numbers_keeps_its_logits_in_fp16(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    embedding = model.weights["embedding"]
    large = embedding * (20_000 / np.abs(embedding).max())
    model = replace(model, weights={**model.weights, "embedding": large})
    build_graphs(model, "fp16", tmp_path, flavours=["portable"])
    wanted = reference.logits(model, TEXT[:20].tolist())
    found = logits(portable(tmp_path, model), TEXT[:20])
    assert np.abs(found - wanted).max() < FP16_BOUND * np.ptp(wanted)


def test_fewer_slots_than_positions_hold_a_shorter_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "PORTABLE_CONTEXT", 32)
    model = tiny_model(tmp_path)
    assert portable_context(model) == 32
    build_graphs(model, "fp32", tmp_path, flavours=["portable"])
    session = portable(tmp_path, model)
    assert session.context == 32 < model.geometry.context
    wanted = reference.logits(model, TEXT[:32].tolist())
    np.testing.assert_allclose(logits(session, TEXT[:32]), wanted, atol=1e-4)
    with pytest.raises(ContextError, match="33 tokens does not fit in the context of 32"):
        session.extend(TEXT[:33])


@pytest.mark.parametrize("precision", ["int4", "fp64"])
def test_another_precision_is_refused(precision: str, tmp_path: Path) -> None:
    with closing(WeightFile(tmp_path / "weights")) as weights:
        writer = GraphWriter(weights)
        with pytest.raises(BuildError, match=f"A portable graph has no precision '{precision}'"):
            build_portable(writer, tiny_model(tmp_path), precision, rows=4, logits=4, context=8)
