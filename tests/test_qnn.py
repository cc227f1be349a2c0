"""QNN's HTP, emulated: every node there, answers near the CPU's, and each of its traps caught."""

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export import gguf_file
from export.calibrate import bounds_of
from export.graph import build_graphs, graph_file, portable_context
from export.model import Model
from runtime import providers
from runtime.branches import Branches
from runtime.errors import BundleError, ProviderError
from runtime.flavours import choose_graph
from runtime.manifest import Flavour, Manifest, Precision
from runtime.portable import PortableSession
from runtime.providers import Place
from tests import tiny
from tests.graphs import TEXT, tiny_model

pytestmark = pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="QNN is not installed")
ROWS = 8
# Of the logits' range, from the same graph on the CPU provider: float16 inside, 8 bits at products.
BOUNDS: Mapping[tuple[Flavour, Precision], float] = {
    ("portable", "fp32"): 0.01,
    ("portable", "fp16"): 0.01,
    ("npu", "int8"): 0.05,
    ("npu", "int4"): 0.02,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def folders(model: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Path]:
    flavours: dict[Precision, list[Flavour]] = {
        "fp32": ["portable", "gpu"],
        "fp16": ["portable"],
        "int8": ["portable", "npu"],
        "int4": ["npu"],
    }
    bounds = bounds_of(model, [TEXT.tolist()])
    made: dict[Precision, Path] = {}
    for precision, built in flavours.items():
        made[precision] = tmp_path_factory.mktemp(precision)
        build_graphs(model, precision, made[precision], flavours=built, bounds=bounds)
    return made


def file_of(folder: Path, flavour: Flavour) -> Path:
    return folder / graph_file(flavour, rows=ROWS)


def answers(folder: Path, flavour: Flavour, model: Model, name: str) -> NDArray[np.float32]:
    """The logits of a text that grows, is cut, and grows a tree."""
    session = PortableSession(
        {ROWS: file_of(folder, flavour)},
        model.geometry,
        slots=portable_context(model),
        threads=1,
        provider=name,
    )
    found = [session.extend(TEXT[:end], num_logits=2).copy() for end in (3, 6, 11)]
    session.crop(5)
    found.append(session.extend(TEXT[:6], branches=Branches((5, 6, 7), (5, 6, 4))).copy())
    return np.concatenate(found)


@pytest.mark.parametrize(("flavour", "precision"), BOUNDS)
def test_a_graph_is_whole_there_and_near_the_cpus_answer(
    flavour: Flavour, precision: Precision, model: Model, folders: dict[Precision, Path]
) -> None:
    due = answers(folders[precision], flavour, model, "CPU")
    found = answers(folders[precision], flavour, model, "QNN")
    apart = np.abs(found - due).max() / np.ptp(due)
    assert 0 < apart < BOUNDS[flavour, precision]


def test_a_norm_of_an_outlier_is_right_in_float16(tmp_path: Path) -> None:
    """To HTP the inverse of more than 16,384 is nothing; the reference model has 25,000."""
    weights = tiny.tensors()
    weights["token_embd.weight"][TEXT[1], 5] = 25_000
    outlying = gguf_file.read(tiny.write_gguf(tmp_path / "tiny.gguf", weights=weights)).model
    build_graphs(outlying, "fp16", tmp_path, flavours=["portable"])
    due, found = (answers(tmp_path, "portable", outlying, name) for name in ("CPU", "QNN"))
    assert np.abs(found - due).max() / np.ptp(due) < BOUNDS["portable", "fp16"]


def test_sessions_of_two_threads_answer_as_one_alone(
    model: Model, folders: dict[Precision, Path]
) -> None:
    """They load, compile and run at once: QNN's device needs no turns."""
    graphs: list[tuple[Flavour, Precision]] = [("portable", "fp16"), ("npu", "int8")]
    dues = {each: answers(folders[each[1]], each[0], model, "CPU") for each in graphs}
    with ThreadPoolExecutor(2) as threads:
        for each, found in zip(
            graphs,
            threads.map(lambda it: answers(folders[it[1]], it[0], model, "QNN"), graphs),
            strict=True,
        ):
            due = dues[each]
            assert np.abs(found - due).max() / np.ptp(due) < BOUNDS[each]


@pytest.mark.parametrize(
    ("flavour", "precision", "operator"),
    [("gpu", "fp32", "GroupQueryAttention"), ("portable", "int8", "MatMulInteger")],
)
def test_operators_that_it_lacks_are_named(
    flavour: Flavour, precision: Precision, operator: str, folders: dict[Precision, Path]
) -> None:
    """A gpu graph has shapes that grow, which puts all of it on the CPU."""
    with pytest.raises(ProviderError, match=rf"QNN on NPU, but .* elsewhere .*{operator}"):
        providers.load(file_of(folders[precision], flavour), threads=1, name="QNN")


def test_an_unknown_chip_is_an_error_and_not_the_cpu(folders: dict[Precision, Path]) -> None:
    place = providers.resolve("draft", provider="QNN", options={"soc_model": "3"})
    with pytest.raises(ProviderError, match=r"elsewhere \(CPUExecutionProvider: "):
        providers.load(file_of(folders["fp16"], "portable"), threads=1, name=place)


def test_a_float_graph_needs_a_chip_and_is_given_one(folders: dict[Precision, Path]) -> None:
    """In a process of its own: where a chip was named once, the next session needs none."""
    path = file_of(folders["fp32"], "portable")
    code = f"""
from pathlib import Path
from runtime import providers
from runtime.errors import BundleError
unnamed = providers.resolve("draft", provider="QNN", options={{"soc_model": "0"}})
try:
    providers.load(Path({str(path)!r}), threads=1, name=unnamed)
except BundleError as error:
    assert "Memory allocation related error" in str(error), error
else:
    raise AssertionError("it was loaded")
usual = providers.resolve("draft", provider="QNN")
providers.load(Path({str(path)!r}), threads=1, name=usual)
"""
    root = Path(__file__).resolve().parent.parent
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr


def product(path: Path, *, block: int | None) -> tuple[NDArray[Any], ...]:
    """Write a product of rows in 16 bits by weights in 4, a scale for `block` of a column or all.

    Returns rows [4, 64], and their products by the weights as they are stored and as they were.
    """
    random = np.random.default_rng(0)
    rows = random.standard_normal((4, 64), np.float32)
    exact = random.standard_normal((64, 96), np.float32) / 8
    scales = np.abs(exact).max(keepdims=True) / 7
    if block is not None:
        scales = np.abs(exact.reshape(-1, block, 96)).max(axis=1) / 7
    spread = np.broadcast_to(np.repeat(scales, block or 1, axis=0), exact.shape)
    levels = np.round(exact / spread).astype(np.int8)
    inputs = {"step": np.float32(8 / 65535), "middle": np.uint16(32768)}
    held = [numpy_helper.from_array(np.array(value), name) for name, value in inputs.items()]
    scales = scales if block else scales[0, 0]
    held.append(numpy_helper.from_array(scales, "scales"))
    for name, ints in (("levels", levels), ("zero", np.zeros_like(scales, np.int8))):
        held.append(helper.make_tensor(name, TensorProto.INT4, ints.shape, ints.flatten()))
    blocks: dict[str, Any] = {"axis": 0, "block_size": block} if block else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["rows", "step", "middle"], ["row_levels"]),
        helper.make_node("DequantizeLinear", ["row_levels", "step", "middle"], ["near_rows"]),
        helper.make_node("DequantizeLinear", ["levels", "scales", "zero"], ["weights"], **blocks),
        helper.make_node("MatMul", ["near_rows", "weights"], ["sums"]),
        helper.make_node("QuantizeLinear", ["sums", "step", "middle"], ["sum_levels"]),
        helper.make_node("DequantizeLinear", ["sum_levels", "step", "middle"], ["products"]),
    ]
    given = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [4, 64])
    made = helper.make_tensor_value_info("products", TensorProto.FLOAT, [4, 96])
    graph = helper.make_graph(nodes, "product", [given], [made], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return rows, rows @ (levels * spread), rows @ exact


@pytest.mark.parametrize("block", [None, 32])
def test_four_bits_are_computed_right_and_need_blocks(block: int | None, tmp_path: Path) -> None:
    """One scale for a matrix, as onnxruntime's helper for QNN gives, loses too much."""
    path = tmp_path / "product.onnx"
    rows, as_stored, exact = product(path, block=block)
    (found,) = providers.load(path, threads=1, name="QNN").run(None, {"rows": rows})
    assert np.abs(found - as_stored).max() < 0.005
    lost = np.abs(found - exact).max()
    assert lost < 0.35 if block else lost > 0.4


def test_four_bits_without_a_zero_point_are_wrong_by_far(tmp_path: Path) -> None:
    """So the graphs here name it; only for one scale a matrix does it matter."""
    path = tmp_path / "product.onnx"
    rows, as_stored, _ = product(path, block=None)
    graph = onnx.load(path)
    (node,) = (node for node in graph.graph.node if node.input[0] == "levels")
    node.input.pop()
    onnx.save(graph, path)
    on_cpu, on_qnn = (
        providers.load(path, threads=1, name=name).run(None, {"rows": rows})[0]
        for name in ("CPU", "QNN")
    )
    assert np.abs(on_cpu - as_stored).max() < 0.005
    assert np.abs(on_qnn - as_stored).max() > 1


def test_quantising_at_a_graphs_ends_leaves_only_where_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "product.onnx"
    product(path, block=32)
    said: list[str] = []
    asked = {"offload_graph_io_quantization": "1"}
    for report, elsewhere in ((said.append, 2), (None, 0)):
        place = providers.resolve("draft", provider="QNN", options=asked, report=report)
        found = providers.strays(providers.load(path, threads=1, name=place), place)
        assert sum(kinds.total() for kinds in found.values()) == elsewhere
    (line,) = said
    assert "except for CPUExecutionProvider: 1 DequantizeLinear, 1 QuantizeLinear." in line


def test_what_it_prints_is_not_among_the_answers(folders: dict[Precision, Path]) -> None:
    code = f"""
from pathlib import Path
from runtime import providers
path = Path({str(file_of(folders["fp16"], "portable"))!r})
providers.load(path, threads=1, name="QNN")
"""
    root = Path(__file__).resolve().parent.parent
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=True)
    assert child.stdout == b""
    assert b"LIBNATIVE" in child.stderr


def test_no_float32_graph_is_taken(tiny_bundle: Path) -> None:
    """The NPU would compute it in float16, where a real model's squares overflow."""
    manifest = Manifest.load(tiny_bundle)
    assert "portable-fp32" in manifest.target.graphs
    with pytest.raises(BundleError, match=r"python -m export .* --graphs "):
        choose_graph(manifest, "target", Place("QNN", "NPU"))
