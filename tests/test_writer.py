"""A graph's weights lie once in the data file, on page borders, and come back as they were."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from export.writer import ALIGNMENT, INLINE_BYTES, IR_VERSION, OPSET, GraphWriter, WeightFile
from runtime.errors import BuildError

WEIGHTS: dict[str, NDArray[Any]] = {
    "small": np.arange(INLINE_BYTES, dtype=np.uint8),
    "large": np.arange(INLINE_BYTES + 1, dtype=np.uint8),
    "turned": np.arange(12 * 40, dtype=np.float32).reshape(12, 40).T,
    "spread": np.arange(2 * 40 * 30, dtype=np.int8).reshape(2, 40, 30)[:, ::2, 1:],
    "number": np.array(7, np.int64),
    "page": np.arange(ALIGNMENT, dtype=np.uint8),
    "last": np.arange(2000, dtype=np.uint8),
}


@contextmanager
def pen(folder: Path, *, real_type: int = TensorProto.FLOAT) -> Iterator[GraphWriter]:
    with closing(WeightFile(folder / "weights")) as weights:
        yield GraphWriter(weights, real_type=real_type)


def saved(writer: GraphWriter, path: Path, inputs: list[str], outputs: list[str]) -> Path:
    """The graph with float32 inputs [n] and outputs of any type, written to `path`."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in inputs]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    onnx.save(writer.model(infos, results), path)
    return path


def places(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """Offset and length of every tensor in the data file."""
    found = {}
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            assert tensor.data_location == TensorProto.EXTERNAL
            assert entries.pop("location") == "weights"
            found[tensor.name] = (int(entries["offset"]), int(entries["length"]))
    return found


def test_weights_come_back_as_they_were(tmp_path: Path) -> None:
    with pen(tmp_path) as writer:
        for name, value in WEIGHTS.items():
            assert writer.weight(name, value) == name
            writer.node("Identity", name, output=f"{name} again")
        path = saved(writer, tmp_path / "graph", [], [f"{name} again" for name in WEIGHTS])
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    for value, found in zip(WEIGHTS.values(), session.run(None, {}), strict=True):
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)
    loaded = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    for name, value in WEIGHTS.items():
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(loaded[name]), value)


def test_large_weights_start_on_a_page_and_lie_apart(tmp_path: Path) -> None:
    with pen(tmp_path) as writer:
        for name, value in WEIGHTS.items():
            writer.weight(name, value)
        found = places(writer.model([], []))
    assert list(found) == ["large", "turned", "spread", "page", "last"]
    assert [offset // ALIGNMENT for offset, _ in found.values()] == [0, 1, 2, 3, 4]
    for name, (offset, length) in found.items():
        assert offset % ALIGNMENT == 0
        assert length == WEIGHTS[name].nbytes
    assert (tmp_path / "weights").stat().st_size == 4 * ALIGNMENT + WEIGHTS["last"].nbytes


def test_a_weight_is_stored_once(tmp_path: Path) -> None:
    with pen(tmp_path) as writer:
        first = writer.weight("w", WEIGHTS["page"])
        assert writer.weight("w", WEIGHTS["page"]) == first
        inline = writer.weight("s", WEIGHTS["small"])
        assert writer.weight("s", WEIGHTS["small"]) == inline
        assert [tensor.name for tensor in writer.model([], []).graph.initializer] == ["w", "s"]
    assert (tmp_path / "weights").stat().st_size == ALIGNMENT


def test_graphs_share_what_has_one_name_and_add_what_has_another(tmp_path: Path) -> None:
    with closing(WeightFile(tmp_path / "weights")) as weights:
        one, other = GraphWriter(weights), GraphWriter(weights)
        for name in ("large", "page"):
            one.weight(name, WEIGHTS[name])
        for name in ("page", "last", "large"):
            other.weight(name, WEIGHTS[name])
        first, second = (places(writer.model([], [])) for writer in (one, other))
    assert list(first) == ["large", "page"]
    assert list(second) == ["page", "last", "large"]
    assert {name: second[name] for name in first} == first
    assert (tmp_path / "weights").stat().st_size == 2 * ALIGNMENT + WEIGHTS["last"].nbytes


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((2, 3001), np.int8),
        np.zeros((3000, 2), np.int8),
        np.zeros(6000, np.int8),
        np.zeros((2, 3000), np.uint8),
        np.zeros((2, 1500), np.int16),
    ],
)
def test_one_name_is_one_shape_and_type(other: NDArray[Any], tmp_path: Path) -> None:
    value = np.ones((2, 3000), np.int8)
    with closing(WeightFile(tmp_path / "weights")) as weights:
        GraphWriter(weights).weight("w", value)
        with pytest.raises(BuildError, match=r"disagree on the weight w of .*weights"):
            GraphWriter(weights).weight("w", other)
        GraphWriter(weights).weight("w", value)
    assert (tmp_path / "weights").read_bytes() == value.tobytes()


@pytest.mark.parametrize(
    ("real_type", "kind"), [(TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)]
)
def test_real_numbers_are_of_the_graphs_own_type(
    real_type: int, kind: type[np.floating[Any]], tmp_path: Path
) -> None:
    value = np.linspace(-1, 1, 3000, dtype=np.float32)
    with pen(tmp_path, real_type=real_type) as writer:
        for name in (writer.real("w", value), writer.scalar(0.1)):
            writer.node("Identity", name, output=f"{name} again")
            writer.float32(name, output=f"{name} wide")
        model = writer.model([], [])
        names = [name for node in model.graph.node for name in node.output]
        path = saved(writer, tmp_path / "graph", [], names)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {})
    assert [array.dtype for array in found] == [kind, np.float32] * 2
    for array, stored in zip(found, (value, value, 0.1, 0.1), strict=True):
        np.testing.assert_array_equal(array, np.array(stored, kind).astype(array.dtype))


def test_constants_are_shared_when_value_shape_and_type_are_the_same(tmp_path: Path) -> None:
    values: list[NDArray[Any]] = [
        np.array(1, np.int64),
        np.array([1], np.int64),
        np.array([[1]], np.int64),
        np.array(1, np.uint64),
        np.array(1, np.float32),
        np.array(-1, np.int64),
        np.array(0.0, np.float32),
        np.array(-0.0, np.float32),
    ]
    with pen(tmp_path) as writer:
        names = [writer.constant(value) for value in [*values, *values]]
        stored = writer.model([], []).graph.initializer
    assert names[: len(values)] == names[len(values) :]
    assert len(stored) == len(set(names)) == len(values)
    for tensor, value in zip(stored, values, strict=True):
        assert onnx.numpy_helper.to_array(tensor).tobytes() == value.tobytes()


def test_nodes_have_names_of_their_own_and_outputs_in_their_places(tmp_path: Path) -> None:
    with pen(tmp_path) as writer:
        one = writer.node("Neg", "x")
        two = writer.node("Neg", one)
        left, middle, right = writer.split(two, 3, axis=0)
        kept = writer.nodes("LayerNormalization", ("x", "w"), outputs=(0, 2), axis=-1)
        head, tail = writer.split_sizes(left, [0, 2], axis=0)
        named = writer.node("Concat", right, middle, head, tail, output="y", axis=0)
        nodes = writer.model([], []).graph.node
        path = saved(writer, tmp_path / "graph", ["x"], ["y"])
    assert named == "y"
    assert len({node.name for node in nodes}) == len(nodes) == 6
    assert list(nodes[3].output) == [kept[0], "", kept[1]]
    graph = onnx.load(path)
    del graph.graph.node[3]  # its weight was never given
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.arange(6, dtype=np.float32)})
    np.testing.assert_array_equal(found, [4, 5, 2, 3, 0, 1])


def test_the_model_names_its_versions(tmp_path: Path) -> None:
    with pen(tmp_path) as writer:
        model = writer.model([], [])
    assert (OPSET, IR_VERSION) == (17, 8)
    assert model.ir_version == IR_VERSION
    assert {entry.domain: entry.version for entry in model.opset_import} == {
        "": OPSET,
        "com.microsoft": 1,
    }


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1])
def test_only_what_is_over_the_limit_goes_out(size: int, tmp_path: Path) -> None:
    with pen(tmp_path) as writer:
        writer.weight("w", np.ones(size, np.uint8))
        outside = places(writer.model([], []))
    assert list(outside) == (["w"] if size > INLINE_BYTES else [])


def test_two_models_share_what_is_common_and_nothing_else(tmp_path: Path) -> None:
    with closing(WeightFile(tmp_path / "weights")) as weights:
        for number, model in enumerate(("", "draft")):
            writer = GraphWriter(weights, model=model)
            for name in ("layers.0.o", "norm"):
                own = np.full(2000, number, np.float32)
                assert writer.weight(name, own) == (f"draft.{name}" if model else name)
            for name in ("embedding", "embedding.scales", "head", "cosine.8", "lengths.4"):
                assert writer.weight(name, np.ones(2000, np.float32)) == name
    pages = -(-8000 // ALIGNMENT) * ALIGNMENT
    assert (tmp_path / "weights").stat().st_size == 8 * pages + 8000
