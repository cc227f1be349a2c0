"""A fused graph computes the model it was built from, and is made of what every runtime reads."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from export import reference
from export.fused import build_fused
from export.graph import WEIGHTS_FILE, graph_file
from export.model import Model
from export.writer import GraphWriter, WeightFile
from runtime import providers
from runtime.batch import LaneSession
from runtime.cache import Buffers
from runtime.errors import BuildError
from runtime.manifest import Precision
from tests import tiny
from tests.graphs import BOUNDS, FP16_BOUND, TEXT, as_stored, fused, logits, tiny_model

Array = NDArray[np.float32]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8", "int4")
LANES = (2, 5)
KINDS: dict[Precision, set[str]] = {
    "fp32": {"Gather", "MatMul", "Transpose"},
    "fp16": {"Gather", "MatMul", "Transpose"},
    "int8": {"MatMulIntegerToFloat", "BitShift"},
    "int4": {"MatMulNBits", "GatherBlockQuantized"},
}


@dataclass(frozen=True, slots=True)
class Built:
    model: Model
    folder: Path
    precision: Precision
    inexact: bool = False

    def path(self, lanes: int = 1) -> Path:
        return self.folder / graph_file("fused", lanes=lanes)

    def logits(self, text: NDArray[np.int64]) -> Array:
        return logits(fused(self.folder, self.model), text)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Model]:
    """The tiny model, with a tied head (True) and with one of its own (False)."""
    return {tied: tiny_model(tmp_path_factory.mktemp("gguf"), tied=tied) for tied in (True, False)}


def build(
    model: Model, precision: Precision, folder: Path, *, inexact: bool = False, many: bool = True
) -> Built:
    real = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    built = Built(model, folder, precision, inexact)
    with closing(WeightFile(folder / WEIGHTS_FILE)) as weights:
        for lanes in (1, *LANES) if many else (1,):
            writer = GraphWriter(weights, real_type=real)
            graph = build_fused(writer, model, precision, lanes=lanes, inexact=inexact)
            onnx.save(graph, built.path(lanes))
    return built


@pytest.fixture(
    scope="module",
    params=[(precision, tied) for precision in PRECISIONS for tied in (True, False)],
    ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}",
)
def built(
    request: pytest.FixtureRequest,
    models: dict[bool, Model],
    tmp_path_factory: pytest.TempPathFactory,
) -> Built:
    precision, tied = request.param
    return build(models[tied], precision, tmp_path_factory.mktemp("graph"))


def test_a_graph_computes_what_the_reference_does_with_the_stored_weights(
    built: Built,
) -> None:
    stored = as_stored(built.model, built.precision)
    wanted = reference.logits(stored, TEXT.tolist())
    lost = np.abs(built.logits(TEXT) - wanted)
    assert lost.max() < BOUNDS[built.precision] * np.ptp(wanted)


def test_rounded_weights_keep_near_the_exact_model(built: Built) -> None:
    wanted = reference.logits(built.model, TEXT.tolist())
    found = built.logits(TEXT)
    lost = np.abs(found - wanted).max() / np.ptp(wanted)
    assert lost < {"fp32": 1e-5, "fp16": FP16_BOUND, "int8": 0.12, "int4": 0.6}[built.precision]
    if built.precision == "int8":
        assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.8
    if built.precision != "fp32":
        assert lost > 1e-4, "nothing was rounded"


@pytest.mark.parametrize("tied", [True, False])
def test_a_draft_in_int4_rounds_its_rows_and_keeps_near(
    tied: bool,  # noqa: FBT001
    models: dict[bool, Model],
    tmp_path: Path,
) -> None:
    draft = build(models[tied], "int4", tmp_path, inexact=True, many=False)
    wanted = reference.logits(as_stored(models[tied], "int4"), TEXT.tolist())
    found = draft.logits(TEXT)
    lost = np.abs(found - wanted).max()
    assert 1e-3 < lost < 0.1 * np.ptp(wanted)
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.8


def test_int8_cuts_every_row_in_two_bytes_for_one_product(built: Built) -> None:
    model = onnx.load(built.path(), load_external_data=False)
    kinds = [node.op_type for node in model.graph.node]
    products = 4 * built.model.geometry.layers + 1 if built.precision == "int8" else 0
    assert kinds.count("BitShift") == products
    assert kinds.count("MatMulIntegerToFloat") == products


@pytest.mark.parametrize("lanes", [1, *LANES])
def test_only_operators_that_every_runtime_reads(built: Built, lanes: int) -> None:
    model = onnx.load(built.path(lanes), load_external_data=False)
    assert model.ir_version == 8
    assert {(entry.domain, entry.version) for entry in model.opset_import} == {
        ("", 17),
        ("com.microsoft", 1),
    }
    assert {node.domain for node in model.graph.node} == {"", "com.microsoft"}
    assert not model.functions
    assert not model.graph.sparse_initializer
    kinds = [node.op_type for node in model.graph.node]
    assert set(kinds) >= KINDS[built.precision]
    assert kinds.count("GroupQueryAttention") == lanes * built.model.geometry.layers
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    providers.load(built.path(lanes), threads=1)


def test_the_signature_is_the_one_described(built: Built) -> None:
    session = providers.load(built.path(), threads=1)
    kinds = {info.name: (info.type, info.shape) for info in session.get_inputs()}
    real = "tensor(float16)" if built.precision == "fp16" else "tensor(float)"
    cache = (real, [1, 2, "capacity", 16])
    assert kinds == {
        "tokens": ("tensor(int64)", ["tokens"]),
        "attention_rows": ("tensor(int64)", ["attention_rows"]),
        "attention_shape": ("tensor(int64)", [3]),
        "attention_keep": ("tensor(int64)", ["width"]),
        "logits_rows": ("tensor(int64)", ["rows"]),
        "key_lengths.0": ("tensor(int32)", [1]),
        "total_lengths.0": ("tensor(int32)", []),
        "position_ids": ("tensor(int64)", [1, "attended"]),
        "attention_bias": (real, [1, 1, "attended", "total"]),
        **{f"past.0.{layer}.{part}": cache for layer in (0, 1) for part in ("key", "value")},
    }
    results = {info.name: (info.type, info.shape) for info in session.get_outputs()}
    vocabulary = len(tiny.vocabulary())
    assert results == {
        "logits": ("tensor(float)", ["rows", vocabulary]),
        **{f"present.0.{layer}.{part}": cache for layer in (0, 1) for part in ("key", "value")},
    }


@pytest.mark.parametrize("lanes", LANES)
def test_every_lane_computes_what_the_graph_of_one_lane_does(built: Built, lanes: int) -> None:
    texts = TEXT[: 3 * lanes].reshape(lanes, 3)
    geometry = built.model.geometry
    session = LaneSession(built.path(lanes), geometry, lanes=lanes, threads=1)
    real = np.float16 if built.precision == "fp16" else np.float32
    for lane in range(lanes):
        session.seat(lane, Buffers(geometry, 8, real))
    steps = [session.step(dict(enumerate(column.tolist()))).copy() for column in texts.T]
    found = np.stack(steps, axis=1)
    wanted = np.stack([built.logits(text) for text in texts])
    if built.precision in ("fp32", "int8"):
        np.testing.assert_array_equal(found, wanted)
    else:  # sums come out in another order for another number of rows
        bound = FP16_BOUND if built.precision == "fp16" else 1e-5
        np.testing.assert_allclose(found, wanted, atol=bound * float(np.ptp(wanted)))


@pytest.mark.parametrize("precision", ["fp64", "int2", ""])
def test_another_precision_is_refused(
    precision: str, models: dict[bool, Model], tmp_path: Path
) -> None:
    with closing(WeightFile(tmp_path / WEIGHTS_FILE)) as weights:
        writer = GraphWriter(weights)
        with pytest.raises(BuildError, match=f"A fused graph has no precision '{precision}'"):
            build_fused(writer, models[True], precision)
