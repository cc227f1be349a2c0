"""One folder holds a precision's graphs, which share each weight; a probe stands beside int8."""

from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from export.exit_head import Exit
from export.graph import (
    LANES,
    PORTABLE_CONTEXT,
    PORTABLE_ROWS,
    WEIGHTS_FILE,
    build_graphs,
    build_integer_probe,
    graph_file,
    portable_context,
)
from export.model import Model
from export.rotary import rotary_tables
from export.writer import ALIGNMENT
from runtime import providers
from runtime.errors import BuildError
from runtime.manifest import INTEGER_PROBE_FILE, Flavour, Precision
from tests import tiny
from tests.graphs import tiny_model

BOTH: tuple[Flavour, ...] = ("fused", "portable")
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
FUSED = {"fused.onnx"}
MANY = {f"fused-{lanes}-lanes.onnx" for lanes in LANES}
PORTABLE = {f"portable-{rows}-rows.onnx" for rows in PORTABLE_ROWS}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Model]:
    """The tiny model, with a tied head (True) and with one of its own (False)."""
    return {tied: tiny_model(tmp_path_factory.mktemp("gguf"), tied=tied) for tied in (True, False)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("flavours", "many", "wanted"),
    [
        (["fused"], False, FUSED),
        (["fused"], True, FUSED | MANY),
        (["portable"], False, PORTABLE),
        (["portable"], True, PORTABLE),
        (BOTH, True, FUSED | MANY | PORTABLE),
    ],
)
def test_a_folder_holds_what_was_asked_for(
    flavours: Collection[Flavour],
    many: bool,  # noqa: FBT001
    wanted: set[str],
    precision: Precision,
    models: dict[bool, Model],
    tmp_path: Path,
) -> None:
    build_graphs(models[False], precision, tmp_path, flavours=flavours, many=many)
    probe = {INTEGER_PROBE_FILE} if precision == "int8" else set()
    assert {path.name for path in tmp_path.iterdir()} == wanted | probe | {WEIGHTS_FILE}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_parts_add_no_weights(
    precision: Precision, models: dict[bool, Model], tmp_path: Path
) -> None:
    sizes = []
    for left in (None, Exit(1)):
        folder = tmp_path / str(left is not None)
        folder.mkdir()
        build_graphs(models[False], precision, folder, flavours=BOTH, many=True, left=left)
        sizes.append((folder / WEIGHTS_FILE).stat().st_size)
    assert sizes[0] == sizes[1]
    parts = {f"{part}-1.onnx" for part in ("prefix", "suffix", "exit")}
    assert {path.name for path in folder.iterdir()} >= parts
    held: dict[str, set[str]] = {}
    for part in parts:
        graph = onnx.load(folder / part, load_external_data=False).graph
        held[part] = {each.name for each in graph.initializer if each.external_data}
    common = held["prefix-1.onnx"] & held["suffix-1.onnx"]
    assert {name.partition(".")[0] for name in common} == {"cosine", "sine"}
    assert not any(name.startswith("layers.1.") for name in held["prefix-1.onnx"])
    assert not any(name.startswith("layers.0.") for name in held["suffix-1.onnx"])


def test_the_files_names() -> None:
    assert graph_file("fused") == "fused.onnx"
    assert graph_file("fused", lanes=8) == "fused-8-lanes.onnx"
    assert graph_file("portable", rows=64) == "portable-64-rows.onnx"
    assert graph_file("portable") == "portable-8-rows.onnx"


def loaded(folder: Path) -> dict[str, onnx.ModelProto]:
    return {
        path.name: onnx.load(path, load_external_data=False)
        for path in folder.glob("*.onnx")
        if path.name != INTEGER_PROBE_FILE
    }


def places(model: onnx.ModelProto) -> dict[str, tuple[int, int, int, tuple[int, ...]]]:
    """Offset, length, type and shape of every tensor outside."""
    found = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            assert entries["location"] == WEIGHTS_FILE
            offset, length = int(entries["offset"]), int(entries["length"])
            item = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            assert length == np.prod(tensor.dims) * item
            assert offset % ALIGNMENT == 0
            found[tensor.name] = (offset, length, tensor.data_type, tuple(tensor.dims))
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tied", [True, False])
def test_every_graph_reads_the_same_weights(
    tied: bool,  # noqa: FBT001
    precision: Precision,
    models: dict[bool, Model],
    tmp_path: Path,
) -> None:
    build_graphs(models[tied], precision, tmp_path, flavours=BOTH, many=True)
    graphs = {name: places(model) for name, model in loaded(tmp_path).items()}
    assert graphs.keys() == FUSED | MANY | PORTABLE
    every = {name: place for found in graphs.values() for name, place in found.items()}
    for found in graphs.values():
        assert found.items() <= every.items(), "one name is one place"
    weights = [{name for name in found if "sine" not in name} for found in graphs.values()]
    assert all(names == weights[0] for names in weights)
    # Nothing overlaps, and nothing lies between two tensors but what fills a page.
    spans = sorted((offset, offset + length) for offset, length, *_ in every.values())
    for (_, end), (start, _) in pairwise(spans):
        assert start == -(-end // ALIGNMENT) * ALIGNMENT
    assert (spans[0][0], spans[-1][1]) == (0, (tmp_path / WEIGHTS_FILE).stat().st_size)
    table = (len(tiny.vocabulary()), tiny.HIDDEN)
    tables = {name for name, place in every.items() if place[3] == table}
    assert tables == ({"embedding"} if tied else {"embedding", "head"})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("first", BOTH)
def test_another_flavour_adds_its_tables_of_angles_and_nothing_else(
    first: Flavour, precision: Precision, models: dict[bool, Model], tmp_path: Path
) -> None:
    model = models[True]
    other: Flavour = "portable" if first == "fused" else "fused"
    positions = portable_context(model) if first == "fused" else model.geometry.context + 1
    sizes, data = [], []
    for count, flavours in enumerate(([first], [first, other])):
        folder = tmp_path / str(count)
        folder.mkdir()
        build_graphs(model, precision, folder, flavours=flavours, many=True)
        data.append((folder / WEIGHTS_FILE).read_bytes())
        sizes.append(-(-len(data[-1]) // ALIGNMENT) * ALIGNMENT)
    table = rotary_tables(model, positions)[0].nbytes // (2 if precision == "fp16" else 1)
    assert sizes[1] - sizes[0] == 2 * -(-table // ALIGNMENT) * ALIGNMENT
    assert data[1].startswith(data[0])


def test_fp16_halves_the_weights_and_int8_quarters_them(
    models: dict[bool, Model], tmp_path: Path
) -> None:
    sizes = {}
    for precision in PRECISIONS:
        (tmp_path / precision).mkdir()
        build_graphs(models[False], precision, tmp_path / precision, flavours=["portable"])
        sizes[precision] = (tmp_path / precision / WEIGHTS_FILE).stat().st_size
    assert sizes["fp16"] < 0.6 * sizes["fp32"]
    assert sizes["int8"] < 0.4 * sizes["fp32"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rebuilt_graphs_are_the_same_to_the_last_byte(
    precision: Precision, models: dict[bool, Model], tmp_path: Path
) -> None:
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        build_graphs(models[False], precision, tmp_path / name, flavours=BOTH)
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("flavour", "precision", "message"),
    [
        ("mobile", "fp32", "no flavour 'mobile'; there is fused, gpu, portable and npu"),
        ("portable", "int4", "portable graph has no precision 'int4'; it has fp32, fp16, int8"),
        ("fused", "fp8", "fused graph has no precision 'fp8'; it has fp32, fp16, int8, int4"),
    ],
)
def test_what_does_not_exist_is_refused(
    flavour: Flavour,
    precision: Precision,
    message: str,
    models: dict[bool, Model],
    tmp_path: Path,
) -> None:
    with pytest.raises(BuildError, match=message):
        build_graphs(models[True], precision, tmp_path, flavours=[flavour])
    assert not list(tmp_path.glob("*.onnx"))


def test_slots_are_no_more_than_the_model_has_positions(models: dict[bool, Model]) -> None:
    assert portable_context(models[True]) == tiny.CONTEXT < PORTABLE_CONTEXT


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
