"""The one description: in which order it asks a flavour for the model's parts, and for which."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from export.decoder import decode
from export.linear import Linear
from export.model import Model
from export.writer import GraphWriter, WeightFile
from tests import tiny
from tests.graphs import tiny_model

HEAD_SIZE = tiny.HIDDEN // tiny.HEADS


class Noted:
    """A flavour, and its products, that only note what they are asked for."""

    integer = np.int64

    def __init__(self, writer: GraphWriter) -> None:
        self.writer = writer
        self.linear: Linear = self
        self.seen: list[str] = []

    def note(self, what: str) -> str:
        self.seen.append(what)
        return f"{what} #{len(self.seen)}"

    def embed(self, tokens: str) -> str:
        return self.note(f"embed {tokens.partition('.')[0]}")

    def lay_out(self, rows: str) -> str:
        return rows

    def project(self, name: str, rows: str) -> str:
        return self.note(f"{name} of {rows.partition(' ')[0].partition('.')[0]}")

    def norm(self, rows: str, weight: str) -> str:
        return self.note(f"norm {weight}")

    def add_norm(self, rows: str, skip: str, weight: str) -> tuple[str, str]:
        self.note(f"add {rows.partition(' ')[0]} {skip.partition(' ')[0]}")
        return self.norm(rows, weight), "sum"

    def shape(self, width: int) -> list[int]:
        return [-1, width]

    def attention(self, layer: int, qkv: str) -> str:
        return self.note(f"attention {layer} of {qkv.partition(' ')[0].partition('.')[0]}")

    def gated(self, gate: str, up: str) -> str:
        return self.note("gated")

    def wanted(self, rows: str) -> str:
        return self.note("wanted")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return tiny_model(tmp_path)


def noted(model: Model, folder: Path) -> tuple[list[str], onnx.ModelProto]:
    with closing(WeightFile(folder / "weights")) as weights:
        flavour = Noted(GraphWriter(weights))
        decode(flavour, model)
        return flavour.seen, flavour.writer.model([], [])


def of_layer(layer: int, before: str) -> list[str]:
    name = f"layers.{layer}"
    return [
        *([f"add {before}"] if layer else []),
        f"norm {name}.attention_norm",
        f"{name}.qkv of norm",
        f"attention {layer} of {name[:6]}",
        f"{name}.o of attention",
        f"add {'sum' if layer else 'embed'} {name}.o",
        f"norm {name}.feed_forward_norm",
        f"{name}.gate_up of norm",
        "gated",
        f"{name}.down of gated",
    ]


def test_every_part_is_asked_for_in_order(model: Model, tmp_path: Path) -> None:
    seen, written = noted(model, tmp_path)
    assert seen == [
        "embed tokens",
        *of_layer(0, ""),
        *of_layer(1, "sum layers.0.down"),
        "add sum layers.1.down",
        "norm norm",
        "wanted",
        "head of wanted",
    ]
    assert [node.op_type for node in written.graph.node] == ["Split", "Split", "Reshape", "Cast"]
    assert list(written.graph.node[-1].output) == ["logits"]


def with_parts(model: Model, *, biases: bool = False, norms: bool = False) -> Model:
    sizes = {"q": tiny.HEADS, "k": tiny.KV_HEADS, "v": tiny.KV_HEADS}
    weights = dict(model.weights)
    for layer in range(tiny.LAYERS):
        for place, (part, heads) in enumerate(sizes.items()):
            if biases:
                numbers = np.arange(heads * HEAD_SIZE, dtype=np.float32) + 1000 * place
                weights[f"layers.{layer}.{part}_bias"] = numbers
            if norms and part != "v":
                weights[f"layers.{layer}.{part}_norm"] = np.ones(HEAD_SIZE, np.float32)
    return replace(model, weights=weights)


def test_biases_are_added_side_by_side(model: Model, tmp_path: Path) -> None:
    seen, written = noted(with_parts(model, biases=True), tmp_path)
    adds = [node for node in written.graph.node if node.op_type == "Add"]
    assert [node.input[1] for node in adds] == ["layers.0.qkv_bias", "layers.1.qkv_bias"]
    assert all(node.input[0].startswith(f"layers.{i}.qkv") for i, node in enumerate(adds))
    stored = {tensor.name: tensor for tensor in written.graph.initializer}
    found = onnx.numpy_helper.to_array(stored["layers.1.qkv_bias"])
    wanted = [np.arange(count * HEAD_SIZE) + 1000 * i for i, count in enumerate((4, 2, 2))]
    np.testing.assert_array_equal(found, np.concatenate(wanted))
    assert "attention 0 of Add" in seen


@pytest.mark.parametrize("biases", [False, True])
def test_heads_are_normed_one_by_one_values_are_not(
    biases: bool,  # noqa: FBT001
    model: Model,
    tmp_path: Path,
) -> None:
    seen, written = noted(with_parts(model, biases=biases, norms=True), tmp_path)
    start = seen.index("layers.0.qkv of norm")
    assert seen[start + 1 : start + 4] == [
        "norm layers.0.q_norm",
        "norm layers.0.k_norm",
        "attention 0 of Concat",
    ]
    constants = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in written.graph.initializer
    }
    nodes = {node.output[0]: node for node in written.graph.node}
    joined = next(node for node in written.graph.node if node.op_type == "Concat")
    cut = nodes[joined.input[2].replace(".2", ".0")]
    assert cut.op_type == "Split"
    assert cut.input[0].startswith("Add" if biases else "layers.0.qkv")
    assert constants[cut.input[1]].tolist() == [64, 32, 32]
    shapes = [
        constants[node.input[1]].tolist()
        for node in written.graph.node
        if node.op_type == "Reshape"
    ]
    assert shapes[:4] == [[-1, 4, 16], [-1, 64], [-1, 2, 16], [-1, 32]]


def test_each_weight_is_named_once_for_both_norm_and_product(model: Model, tmp_path: Path) -> None:
    _, written = noted(model, tmp_path)
    names = [tensor.name for tensor in written.graph.initializer]
    assert len(set(names)) == len(names)
    norms = {name for name in model.weights if name.endswith("norm")}
    assert norms <= set(names)
