"""A distilled draft's graphs lie beside its target's, read the same tables, and know masks."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from export import gguf_file, reference
from export.graph import DRAFT_ROWS, WEIGHTS_FILE, build_graphs, graph_file, portable_rows
from export.model import Model
from export.writer import ALIGNMENT
from runtime import providers
from runtime.fused import FusedSession
from runtime.graph_names import PRECISIONS
from runtime.manifest import Flavour, Precision
from runtime.portable import PortableSession
from tests import tiny
from tests.drafts import HEADS, tiny_draft
from tests.graphs import BOUNDS, TEXT, as_stored, fused, portable, tiny_model

Session = FusedSession | PortableSession
INT4_ROUNDED = 0.1  # a draft's int4 products round their rows to 8 bits
HELD = {flavour: held for flavour, held in PRECISIONS.items() if flavour != "npu"}
CASES: list[tuple[Flavour, Precision, bool]] = [
    (flavour, precision, tied)
    for flavour, precisions in HELD.items()
    for precision in precisions
    for tied in (True, False)
]
DRAFT_FILES = {graph_file("fused", distilled=True), graph_file("gpu", distilled=True)} | {
    graph_file("portable", rows=rows, distilled=True) for rows in DRAFT_ROWS
}


@dataclass(frozen=True, slots=True)
class Built:
    """The folder of one precision, in all its flavours, and the models in it."""

    target: Model
    draft: Model
    folder: Path
    precision: Precision

    def session(self, flavour: Flavour) -> Session:
        if flavour == "portable":
            return portable(self.folder, self.draft)
        return fused(self.folder, self.draft, flavour=flavour)

    @property
    def flavours(self) -> list[Flavour]:
        return [flavour for flavour, held in HELD.items() if self.precision in held]

    def logits(self, flavour: Flavour, text: list[int]) -> NDArray[np.float32]:
        session = self.session(flavour)
        return session.extend(np.array(text), num_logits=len(text)).copy()


class Builder:
    """Builds a folder at its first use."""

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        self._new_folder = new_folder
        self._made: dict[tuple[Precision, bool], Built] = {}

    def __call__(self, precision: Precision, *, tied: bool) -> Built:
        if (precision, tied) not in self._made:
            target = tiny_model(self._new_folder("gguf"), tied=tied)
            built = Built(target, tiny_draft(target), self._new_folder("graphs"), precision)
            flavours, draft = built.flavours, built.draft
            build_graphs(
                target,
                precision,
                built.folder,
                flavours=flavours,
                draft=draft,
                draft_flavours=flavours,
            )
            self._made[precision, tied] = built
        return self._made[precision, tied]


every_graph = pytest.mark.parametrize(("flavour", "precision", "tied"), CASES)


@pytest.fixture(scope="module")
def building(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp)


@every_graph
def test_a_pass_of_several_tokens_computes_what_the_reference_does(
    flavour: Flavour,
    precision: Precision,
    tied: bool,  # noqa: FBT001
    building: Builder,
) -> None:
    built = building(precision, tied=tied)
    text = [*TEXT.tolist(), *built.draft.mask_tokens]
    wanted = reference.logits(as_stored(built.draft, precision), text)
    found = built.logits(flavour, text)
    assert found.shape == wanted.shape == (len(TEXT) + 2, HEADS)
    bound = INT4_ROUNDED if precision == "int4" else BOUNDS[precision]
    assert np.abs(found - wanted).max() < bound * np.ptp(wanted)
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.9


@every_graph
def test_masks_change_nothing_before_them_and_are_forgotten_by_a_crop(
    flavour: Flavour,
    precision: Precision,
    tied: bool,  # noqa: FBT001
    building: Builder,
) -> None:
    built = building(precision, tied=tied)
    masks = np.array(built.draft.mask_tokens)
    alone, together = built.session(flavour), built.session(flavour)
    size = 0.0
    for end in (9, 10, 14, 15):
        text = TEXT[:end]
        one = alone.extend(text)[0].copy()
        first, *rest = together.extend(np.concatenate([text, masks]), num_logits=3).copy()
        assert together.length == end + 2
        size = max(size, float(np.ptp(one)))
        bound = 1e-4 if precision in ("fp32", "int4") else 1e-2
        np.testing.assert_allclose(first, one, rtol=0, atol=bound * size)
        assert min(np.abs(row - one).max() for row in rest) > 0.1 * size
        assert np.abs(rest[0] - rest[1]).max() > 0.1 * size


def test_a_fused_pass_is_bit_equal_to_one_token_at_a_time(building: Builder) -> None:
    both: tuple[Precision, ...] = ("fp32", "int8")
    for precision in both:
        built = building(precision, tied=True)
        masks = built.draft.mask_tokens
        step, whole = built.session("fused"), built.session("fused")
        for end in range(5, 9):
            one = step.extend(TEXT[:end])[0].copy()
            text = np.array([*TEXT[:end], *masks])
            np.testing.assert_array_equal(whole.extend(text, num_logits=3)[0], one)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_the_tables_are_stored_once_and_the_rest_apart(
    precision: Precision,
    tied: bool,  # noqa: FBT001
    building: Builder,
    tmp_path: Path,
) -> None:
    built = building(precision, tied=tied)
    graphs = {path.name: stored(path) for path in built.folder.glob("*.onnx")}
    theirs = {name: found for name, found in graphs.items() if name.startswith("draft-")}
    assert theirs.keys() == {name for name in DRAFT_FILES if name in graphs}
    assert len(theirs) == len(built.flavours) + (2 if "portable" in built.flavours else 0)
    targets = {
        n: it for name, found in graphs.items() if name not in theirs for n, it in found.items()
    }
    own = {n: it for found in theirs.values() for n, it in found.items() if n not in targets}
    assert {name.partition(".")[0] for name in own} == {"draft"}
    for found in theirs.values():
        common = {name for name in found if not name.startswith("draft.")}
        assert common >= ({"embedding"} if tied else {"embedding", "head"})
        for name in common:
            assert found[name] == targets[name], "one name is one place"
    alone = tmp_path / "alone"
    alone.mkdir()
    build_graphs(built.target, precision, alone, flavours=built.flavours)
    before, after = ((folder / WEIGHTS_FILE).stat().st_size for folder in (alone, built.folder))
    pages = sum(-(-length // ALIGNMENT) * ALIGNMENT for _, length in own.values())
    assert before < after <= -(-before // ALIGNMENT) * ALIGNMENT + pages
    # One of two layers, norms and masks; the tables would be much more.
    layers = sum(length for _, length in own.values())
    widest = before if precision != "int4" else 2 * before
    assert layers < widest / 2


def stored(path: Path) -> dict[str, tuple[int, int]]:
    """Where each tensor outside a graph lies, and how long it is."""
    found = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            found[tensor.name] = int(entries["offset"]), int(entries["length"])
    return found


@every_graph
def test_the_heads_rows_are_taken_when_the_graph_is_loaded(
    flavour: Flavour,
    precision: Precision,
    tied: bool,  # noqa: FBT001
    building: Builder,
    tmp_path: Path,
) -> None:
    built = building(precision, tied=tied)
    for path in built.folder.glob(f"draft-{flavour}*.onnx"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # or it warns that what it writes is for this machine
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        graph = onnx.load(tmp_path / "optimised.onnx", load_external_data=False).graph
        constants = {tensor.name for tensor in graph.initializer}
        assert not any("head_tokens" in name for name in constants)
        shaping = [it for it in graph.node if it.op_type in ("Gather", "Reshape", "Transpose")]
        for node in shaping:
            assert not constants.issuperset(node.input), "computed again in every run"


@pytest.mark.parametrize(("precision", "tied"), [("fp32", True), ("fp16", False), ("int8", True)])
def test_portable_graphs_are_plain_and_of_known_shapes(
    precision: Precision,
    tied: bool,  # noqa: FBT001
    building: Builder,
) -> None:
    built = building(precision, tied=tied)
    assert portable_rows(built.draft) == {16: 16, 48: 48, 64: 64}
    for rows, count in portable_rows(built.draft).items():
        path = built.folder / graph_file("portable", rows=rows, distilled=True)
        assert path.name == f"draft-portable-{rows}-rows.onnx"
        onnx.checker.check_model(path, full_check=True)
        model = onnx.load(path, load_external_data=False)
        assert {node.domain for node in model.graph.node} == {""}
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        for info in [*model.graph.value_info, *model.graph.output, *model.graph.input]:
            dims = info.type.tensor_type.shape.dim
            assert all(dim.dim_value > 0 and not dim.dim_param for dim in dims), info.name
        session = providers.load(path, threads=1)
        kinds = {item.name: (item.type, item.shape) for item in session.get_inputs()}
        assert kinds["tokens"] == ("tensor(int32)", [rows])
        assert kinds["logits_rows"] == ("tensor(int32)", [count])
        assert "keys.0" in kinds
        assert "keys.1" not in kinds
        assert session.get_outputs()[0].shape == [count, HEADS]


def test_a_draft_of_one_token_a_pass_has_no_masks(tmp_path: Path) -> None:
    target = tiny_model(tmp_path, tied=True)
    draft = tiny_draft(target, (0, 1), tokens_per_pass=1)
    build_graphs(draft, "fp32", tmp_path, flavours=["fused", "gpu", "portable"], inexact=True)
    assert {path.name for path in tmp_path.iterdir()} - {"tiny.gguf"} == {
        WEIGHTS_FILE,
        *DRAFT_FILES,
    }
    wanted = reference.logits(draft, TEXT.tolist())
    sessions: tuple[Session, ...] = (
        fused(tmp_path, draft),
        fused(tmp_path, draft, flavour="gpu"),
        portable(tmp_path, draft),
    )
    for session in sessions:
        found = session.extend(TEXT, num_logits=len(TEXT))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(np.ptp(wanted)))
    for path in tmp_path.glob("*.onnx"):
        kinds = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
        assert not kinds & {"Where", "Min", "Less"}


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_a_draft_of_every_family(name: str, tmp_path: Path) -> None:
    target = tiny_model_of(name, tmp_path)
    draft = tiny_draft(target)
    build_graphs(
        target, "fp32", tmp_path, flavours=["fused"], draft=draft, draft_flavours=["fused"]
    )
    text = np.array([*TEXT[:30], *draft.mask_tokens])
    wanted = reference.logits(draft, text.tolist())
    found = fused(tmp_path, draft).extend(text, num_logits=len(text))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(np.ptp(wanted)))


def tiny_model_of(name: str, folder: Path) -> Model:
    family = tiny.FAMILIES[name]
    path = tiny.write_gguf(folder / "tiny.gguf", weights=family.weights(), pairs=family.pairs())
    return gguf_file.read(path).model


@pytest.mark.skipif(
    find_spec("onnxruntime_ep_openvino") is None, reason="OpenVINO is not installed"
)
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("int8", 1e-3)])
def test_openvino_runs_every_node_and_computes_the_same(
    precision: Precision, bound: float, building: Builder
) -> None:
    built = building(precision, tied=True)
    text = np.array([*TEXT, *built.draft.mask_tokens])
    graphs: dict[str, Any] = {}
    for name in ("CPU", "OpenVINO"):
        session = portable(built.folder, built.draft, provider=name)
        graphs[name] = session.extend(text, num_logits=len(text)).copy()
    lost = np.abs(graphs["OpenVINO"] - graphs["CPU"]).max()
    assert lost < bound * np.ptp(graphs["CPU"])
