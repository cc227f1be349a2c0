"""Graphs for neural processors: few kinds of operators, and logits as near as their precision."""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from export import reference
from export.calibrate import Bounds, bounds_of
from export.graph import NO_BOUNDS, PORTABLE_ROWS, WEIGHTS_FILE, build_graphs, portable_context
from export.model import Model
from export.npu import FAR, LARGEST, Levels, build_npu
from export.writer import GraphWriter, WeightFile
from runtime.errors import BuildError
from runtime.manifest import Flavour, Precision
from runtime.portable import PortableSession
from tests import tiny
from tests.graphs import TEXT, Array, as_stored, logits, tiny_model

PRODUCTS = 4 * tiny.LAYERS + 1
TEXTS = [TEXT.tolist()]
# Of the logits' range, beside the model with its weights as they are stored: float16 costs about
# this much, and rows in 65,536 levels less.
BOUND = 0.02


@dataclass(frozen=True)
class Built:
    model: Model
    precision: Precision
    folder: Path

    def session(self) -> PortableSession:
        graphs = {rows: self.folder / f"npu-{rows}-rows.onnx" for rows in PORTABLE_ROWS}
        slots = portable_context(self.model)
        return PortableSession(graphs, self.model.geometry, slots=slots, threads=1)

    def graph(self, rows: int = 8) -> onnx.ModelProto:
        return onnx.load(self.folder / f"npu-{rows}-rows.onnx", load_external_data=False)


def build(folder: Path, precision: Precision, *flavours: Flavour, tied: bool = False) -> Built:
    model = tiny_model(folder, tied=tied)
    folder = folder / "graphs"
    folder.mkdir()
    bounds = bounds_of(model, TEXTS)
    build_graphs(model, precision, folder, flavours=["npu", *flavours], bounds=bounds)
    return Built(model, precision, folder)


@pytest.fixture(scope="module", params=["int8", "int4"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("npu"), request.param)


def test_the_operators_are_those_of_the_docs(built: Built) -> None:
    kinds = Counter((node.domain, node.op_type) for node in built.graph().graph.node)
    own = {kind: count for (domain, kind), count in kinds.items() if domain}
    if built.precision == "int8":
        wanted = {"QuantizeLinear": 2 * PRODUCTS, "DequantizeLinear": 3 * PRODUCTS}
    else:
        wanted = {"MatMulNBits": PRODUCTS}
    assert own == wanted
    assert not {"MatMulInteger", "BitShift"} & {kind for _, kind in kinds}


def test_only_operators_that_every_runtime_reads(built: Built) -> None:
    for rows in PORTABLE_ROWS:
        model = built.graph(rows)
        assert model.ir_version == 8
        assert {entry.domain: entry.version for entry in model.opset_import} == {
            "": 17,
            "com.microsoft": 1,
        }
        assert {node.domain for node in model.graph.node} == {"", "com.microsoft"}
        assert not model.functions


def test_its_real_numbers_are_float16(built: Built) -> None:
    types = {item.name: item.type.tensor_type.elem_type for item in built.graph().graph.input}
    assert {types[name] for name in ("mask", "keys.0", "values.1")} == {TensorProto.FLOAT16}


def test_its_logits_are_those_of_the_model_as_it_is_stored(built: Built) -> None:
    stored = as_stored(built.model, built.precision)
    # The embedding is read in float16, whatever the products are stored in.
    weights = {**stored.weights, "embedding": built.model.weights["embedding"]}
    wanted = reference.logits(Model(stored.geometry, weights), TEXT.tolist())
    found = logits(built.session(), TEXT)
    assert np.abs(found - wanted).max() < BOUND * np.ptp(wanted)


def test_calls_of_any_width_agree(built: Built) -> None:
    session = built.session()
    whole = logits(session, TEXT[:40])
    session.crop(0)
    parts = [session.extend(TEXT[:end]).copy()[0] for end in (1, 3, 10, 40)]
    for row, part in zip((0, 2, 9, 39), parts, strict=True):
        assert np.abs(part - whole[row]).max() < BOUND * np.ptp(whole)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("precision", "more"), [("int8", "portable"), ("int4", "fused")])
def test_matrices_are_stored_once_for_all_graphs(
    precision: Precision,
    more: Flavour,
    tied: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    built = build(tmp_path, precision, more, tied=tied)
    held = [
        {each.name for each in onnx.load(path, load_external_data=False).graph.initializer}
        for path in built.folder.glob("*rows.onnx")
    ]
    assert all("layers.1.down" in names for names in held)
    alone = tmp_path / "alone"
    alone.mkdir()
    build_graphs(built.model, precision, alone, flavours=[more])
    added = (built.folder / WEIGHTS_FILE).stat().st_size - (alone / WEIGHTS_FILE).stat().st_size
    # A table and the rotary angles in float16, and what rounding to pages adds.
    table = built.model.weights["embedding"].size * 2
    assert table <= added < table + 24 * 4096


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 3.0), (0.0, 5.0), (-7.0, 0.0), (-2e-3, 1e-3), (-9e4, 7e4), (0.0, 0.0)]
)
def test_levels_reach_both_bounds_and_hold_zero(low: float, high: float, tmp_path: Path) -> None:
    with closing(WeightFile(tmp_path / "weights")) as weights:
        writer = GraphWriter(weights, real_type=TensorProto.FLOAT16)
        levels = Levels(writer, tiny_model(tmp_path), NO_BOUNDS)
        levels._in_levels("value", low, high)
        graph = writer.model([], []).graph
    stored = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    scale, zero = (stored[name] for name in graph.node[0].input[1:])
    assert (scale.dtype.name, zero.dtype.name) == ("float16", "uint16")
    assert float(scale) > 0
    reached = (np.array([0, 65535]) - float(zero)) * float(scale)
    assert reached[0] <= max(low, -LARGEST) + float(scale)
    assert reached[1] >= min(high, LARGEST) - float(scale)
    assert [node.input[1:] for node in graph.node] == [graph.node[0].input[1:]] * 2


def test_a_value_beyond_the_bounds_is_cut(tmp_path: Path) -> None:
    """So bounds are measured with room: half as much, and answers are others."""
    model = tiny_model(tmp_path)
    narrow = {
        name: replace(found, low_in=found.low_in / 8, high_in=found.high_in / 8)
        for name, found in bounds_of(model, TEXTS).items()
    }
    folder = tmp_path / "graphs"
    folder.mkdir()
    build_graphs(model, "int8", folder, flavours=["npu"], bounds=narrow)
    wanted = reference.logits(model, TEXT.tolist())
    found: Array = logits(Built(model, "int8", folder).session(), TEXT)
    assert np.abs(found - wanted).max() > 10 * BOUND * np.ptp(wanted)


def test_a_product_with_outliers_is_in_float16(tmp_path: Path) -> None:
    """Bounds as an outlier somewhere makes them leave the other numbers few levels."""
    model = tiny_model(tmp_path)
    usual = bounds_of(model, TEXTS)
    assert max(each.spread for each in usual.values()) < FAR
    name = "layers.0.down"
    four = {it: 1e3 * getattr(usual[name], it) for it in Bounds.__slots__ if it != "spread"}
    wanted = reference.logits(model, TEXT.tolist())
    lost, products = [], []
    for spread in (FAR, FAR + 1):
        folder = tmp_path / str(spread)
        folder.mkdir()
        bounds = usual | {name: replace(usual[name], **four, spread=spread)}
        build_graphs(model, "int8", folder, flavours=["npu"], bounds=bounds)
        built = Built(model, "int8", folder)
        lost.append(float(np.abs(logits(built.session(), TEXT) - wanted).max()))
        kinds = Counter(node.op_type for node in built.graph().graph.node)
        products.append(kinds["DequantizeLinear"] // 3)
    assert products == [PRODUCTS, PRODUCTS - 1]
    assert 2 * lost[1] < lost[0]


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_another_precision_is_refused(precision: str, tmp_path: Path) -> None:
    with closing(WeightFile(tmp_path / "weights")) as weights:
        writer, model = GraphWriter(weights), tiny_model(tmp_path)
        sizes = {"rows": 4, "logits": 4, "context": 8}
        with pytest.raises(BuildError, match=f"An npu graph has no precision '{precision}'"):
            build_npu(writer, model, precision, **sizes, bounds=NO_BOUNDS)
