"""A fused graph computes the model it was built from, and is made of what every runtime reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from export import gguf_file, graph, reference
from export.graph import (
    GRAPH_FILE,
    WEIGHTS_FILE,
    build_fused,
    build_integer_probe,
    lanes_file,
    rotary_tables,
)
from export.model import Model
from export.rotate import rotated
from export.writer import ALIGNMENT, GraphWriter
from runtime import providers
from runtime.batch import LaneSession
from runtime.errors import BuildError
from runtime.session import Cache, GraphSession
from tests import tiny
from tests.stored import ONE_BYTE, blocks_back, columns_back, one_byte, two_bytes_back

Array = NDArray[np.float32]
PRECISIONS = ("fp32", "int8", "int4")
LANES = (2, 5)
TEXT = np.random.default_rng(3).integers(0, len(tiny.vocabulary()), 80)
DOMAINS = {
    "fp32": {"Gather", "MatMul", "Transpose"},
    "int8": {"MatMulIntegerToFloat", "QuantizeLinear", "BitShift"},
    "int4": {"MatMulNBits", "GatherBlockQuantized"},
}


@dataclass(frozen=True, slots=True)
class Built:
    model: Model
    folder: Path
    precision: str
    tied: bool

    @property
    def path(self) -> Path:
        return self.folder / GRAPH_FILE


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Model]:
    """The tiny model, with a tied head (True) and with one of its own (False)."""
    found = {}
    for tied in (True, False):
        path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
        found[tied] = gguf_file.read(tiny.write_gguf(path, weights=tiny.tensors(tied=tied))).model
    return found


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
    folder = tmp_path_factory.mktemp("graph")
    assert build_fused(models[tied], precision, folder, lanes=LANES) == folder / GRAPH_FILE
    return Built(models[tied], folder, precision, tied)


def logits(built: Built, text: NDArray[np.int64]) -> Array:
    session = GraphSession(built.path, built.model.geometry, threads=1)
    return session.extend(text, num_logits=len(text)).copy()


def rounded(model: Model, back: Callable[[Array], Array]) -> Model:
    """The model with every matrix as a graph stores it."""
    weights: Mapping[str, Array] = {
        name: back(weight) if weight.ndim == 2 else weight for name, weight in model.weights.items()
    }
    return replace(model, weights=weights)


def keep_of_rows_what_int8_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference round rows as int8 does: one byte after a norm, two before o and down."""
    norm = reference._norm

    def rounded_norm(hidden: Array, weight: Array, epsilon: float) -> Array:
        return one_byte(norm(hidden, weight, epsilon)) * ONE_BYTE

    def round_before(part: Callable[..., Array], last: str) -> Callable[..., Array]:
        def rounded_part(model: Model, name: str, *inputs: Any) -> Array:
            matrix = model.weights[f"{name}.{last}"]
            nothing = np.eye(matrix.shape[1], dtype=np.float32)
            bare = replace(model, weights={**model.weights, f"{name}.{last}": nothing})
            result: Array = two_bytes_back(part(bare, name, *inputs)) @ matrix.T
            return result

        return rounded_part

    monkeypatch.setattr(reference, "_norm", rounded_norm)
    for part, last in (("_attention", "o"), ("_feed_forward", "down")):
        monkeypatch.setattr(reference, part, round_before(getattr(reference, part), last))


def test_a_graph_computes_what_the_reference_does_with_the_stored_weights(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = {"fp32": lambda weight: weight, "int8": columns_back, "int4": blocks_back}
    model = rotated(built.model) if built.precision == "int8" else built.model
    if built.precision == "int8":
        keep_of_rows_what_int8_keeps(monkeypatch)
    # Short texts: where float32's rounding tips a step of int8, all rows behind it differ.
    texts = TEXT.reshape(16, 5) if built.precision == "int8" else TEXT[None]
    stored = rounded(model, back[built.precision])
    wanted = np.concatenate(reference.logits_of_texts(stored, texts.tolist()))
    found = np.concatenate([logits(built, text) for text in texts])
    lost = np.abs(found - wanted)
    if built.precision == "fp32":
        assert lost.max() < 1e-4
    elif built.precision == "int8":
        assert np.quantile(lost.max(axis=1), 0.8) < 1e-6 * np.ptp(wanted)
        assert lost.max() < 0.02 * np.ptp(wanted)
    else:  # activations of 8 bits cost the draft some accuracy
        assert lost.max() < 0.1 * np.ptp(wanted)
        assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.8


def test_rounded_weights_keep_near_the_exact_model(built: Built) -> None:
    wanted = reference.logits(built.model, TEXT.tolist())
    found = logits(built, TEXT)
    lost = np.abs(found - wanted).max() / np.ptp(wanted)
    assert lost < {"fp32": 1e-5, "int8": 0.12, "int4": 0.6}[built.precision]
    if built.precision == "int8":
        assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.8
    if built.precision != "fp32":
        assert lost > 1e-4, "nothing was rounded"


def test_int8_rounds_to_one_byte_behind_norms_and_to_two_elsewhere(built: Built) -> None:
    model = onnx.load(built.path, load_external_data=False)
    kinds = [node.op_type for node in model.graph.node]
    layers = built.model.geometry.layers if built.precision == "int8" else 0
    assert kinds.count("QuantizeLinear") == 2 * layers + (layers > 0)
    assert kinds.count("BitShift") == 2 * layers
    assert kinds.count("MatMulIntegerToFloat") == 4 * layers + (layers > 0)


def test_only_operators_that_every_runtime_reads(built: Built) -> None:
    model = onnx.load(built.path, load_external_data=False)
    assert model.ir_version == 8
    assert {(entry.domain, entry.version) for entry in model.opset_import} == {
        ("", 17),
        ("com.microsoft", 1),
    }
    assert {node.domain for node in model.graph.node} == {"", "com.microsoft"}
    assert not model.functions
    assert not model.graph.sparse_initializer
    kinds = [node.op_type for node in model.graph.node]
    assert set(kinds) >= DOMAINS[built.precision]
    assert kinds.count("GroupQueryAttention") == built.model.geometry.layers
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)


def check_data_file(folder: Path, model: onnx.ModelProto) -> None:
    """Every tensor outside starts on a page, has its size, lies in the file and in no other."""
    size, ends = (folder / WEIGHTS_FILE).stat().st_size, [0]
    assert {path.suffix for path in folder.iterdir()} <= {".onnx", ".data"}
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        assert entries["location"] == WEIGHTS_FILE
        offset, length = int(entries["offset"]), int(entries["length"])
        item = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        assert length == np.prod(tensor.dims) * item
        assert offset % ALIGNMENT == 0
        assert offset >= ends[-1]
        ends.append(offset + length)
    assert len(ends) > 4
    assert ends[-1] == size


def test_weights_outside_start_on_pages_inside_the_file(built: Built) -> None:
    check_data_file(built.folder, onnx.load(built.path, load_external_data=False))


def test_the_signature_is_the_one_described(built: Built) -> None:
    session = providers.load(built.path, threads=1)
    kinds = {info.name: (info.type, info.shape) for info in session.get_inputs()}
    cache = ("tensor(float)", [1, 2, "capacity", 16])
    assert kinds == {
        "tokens": ("tensor(int64)", ["tokens"]),
        "attention_rows": ("tensor(int64)", ["attention_rows"]),
        "attention_shape": ("tensor(int64)", [3]),
        "attention_keep": ("tensor(int64)", ["width"]),
        "logits_rows": ("tensor(int64)", ["rows"]),
        "key_lengths.0": ("tensor(int32)", [1]),
        "total_lengths.0": ("tensor(int32)", []),
        **{f"past.0.{layer}.{part}": cache for layer in (0, 1) for part in ("key", "value")},
    }
    results = {info.name: (info.type, info.shape) for info in session.get_outputs()}
    vocabulary = len(tiny.vocabulary())
    assert results == {
        "logits": ("tensor(float)", ["rows", vocabulary]),
        **{f"present.0.{layer}.{part}": cache for layer in (0, 1) for part in ("key", "value")},
    }


@pytest.mark.parametrize("lanes", LANES)
def test_a_graph_of_lanes_refers_to_the_same_weights(built: Built, lanes: int) -> None:
    path = built.folder / lanes_file(lanes)
    one, many = (onnx.load(file, load_external_data=False) for file in (built.path, path))
    check_data_file(built.folder, many)
    stored, read = (
        {tensor.name: tensor.SerializeToString() for tensor in loaded.graph.initializer}
        for loaded in (one, many)
    )
    assert read.items() <= stored.items()
    outside = {
        tensor.name
        for tensor in one.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }
    assert outside <= read.keys()
    kinds = [node.op_type for node in many.graph.node]
    assert kinds.count("GroupQueryAttention") == lanes * built.model.geometry.layers
    assert {node.domain for node in many.graph.node} == {"", "com.microsoft"}
    providers.load(path, threads=1)


@pytest.mark.parametrize("lanes", LANES)
def test_every_lane_computes_what_the_graph_of_one_lane_does(built: Built, lanes: int) -> None:
    texts = TEXT[: 3 * lanes].reshape(lanes, 3)
    geometry = built.model.geometry
    session = LaneSession(built.folder / lanes_file(lanes), geometry, lanes=lanes, threads=1)
    for lane in range(lanes):
        session.seat(lane, Cache(geometry, 8))
    steps = [session.step(dict(enumerate(column.tolist()))).copy() for column in texts.T]
    found = np.stack(steps, axis=1)
    wanted = np.stack([logits(built, text) for text in texts])
    if built.precision == "int4":  # its sums depend on the number of rows
        np.testing.assert_allclose(found, wanted, atol=0.02 * float(np.ptp(wanted)))
    else:
        np.testing.assert_array_equal(found, wanted)


def test_graphs_of_lanes_do_not_write_the_weights_again(
    models: dict[bool, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def watched(path: Path, *, reuse: bool) -> GraphWriter:
        written.append((path, reuse))
        return GraphWriter(path, reuse=reuse)

    monkeypatch.setattr(graph, "GraphWriter", watched)
    build_fused(models[True], "int8", tmp_path, lanes=LANES)
    data = tmp_path / WEIGHTS_FILE
    assert written == [(data, False), (data, True), (data, True)]


def test_a_rebuilt_graph_is_the_same_to_the_last_byte(built: Built, tmp_path: Path) -> None:
    again = build_fused(built.model, built.precision, tmp_path)
    assert again.read_bytes() == built.path.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {GRAPH_FILE, WEIGHTS_FILE}
    data = (tmp_path / WEIGHTS_FILE, built.folder / WEIGHTS_FILE)
    assert data[0].read_bytes() == data[1].read_bytes()


def test_another_precision_is_refused(models: dict[bool, Model], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="precision 'fp16' is not one of fp32, int8, int4"):
        build_fused(models[True], "fp16", tmp_path)
    assert not (tmp_path / GRAPH_FILE).exists()


def test_rotary_tables_reach_one_place_past_the_context(models: dict[bool, Model]) -> None:
    cosine, sine = rotary_tables(models[True])
    assert cosine.shape == sine.shape == (tiny.CONTEXT + 1, 8)
    np.testing.assert_array_equal(cosine[0], 1)
    np.testing.assert_array_equal(sine[0], 0)
    np.testing.assert_allclose(cosine[:, 0], np.cos(np.arange(tiny.CONTEXT + 1)), atol=1e-6)
    np.testing.assert_allclose(sine[200], np.sin(200 * 10000.0 ** (-np.arange(8) / 8)), atol=1e-6)


def test_the_integer_probe_multiplies_extreme_bytes(tmp_path: Path) -> None:
    path = tmp_path / "probe.onnx"
    build_integer_probe(path)
    model = onnx.load(path)
    assert model.ir_version == 8
    assert [path.name for path in tmp_path.iterdir()] == ["probe.onnx"], "it stands alone"
    rows = np.stack([np.zeros(256), np.full(256, 255), np.arange(256)]).astype(np.uint8)
    product, weights = providers.load(path, threads=1).run(None, {"bytes": rows})
    assert weights.shape == (256, 64)
    assert weights.dtype == np.int8
    assert (weights[:, 0] == 127).all()
    assert (weights[:, 1] == -127).all()
    assert set(np.unique(weights)) == {-127, -1, 126, 127}
    np.testing.assert_array_equal(product, (rows.astype(np.int64) - 128) @ weights.astype(np.int64))
    # Sums of neighbouring products that a saturating instruction would cut are among them.
    assert 255 * int(weights[0, 0]) * 2 > np.iinfo(np.int16).max
