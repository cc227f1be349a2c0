"""A target is read back from its float32 graph as it went in."""

from pathlib import Path

import numpy as np
import pytest

from export import gguf_file
from export.distill.weights import read_graph, read_target
from export.graph import build_graphs, graph_file
from export.model import Model
from runtime.errors import BuildError, BundleError
from tests import tiny
from tests.building import ROOT


def back(family: tiny.Family, folder: Path) -> tuple[Model, Model]:
    """The model of a family, and what its graph gives back."""
    path = tiny.write_gguf(folder / "x.gguf", weights=family.weights(), pairs=family.pairs())
    model = gguf_file.read(path).model
    build_graphs(model, "fp32", folder, flavours=["fused"])
    return model, read_graph(folder / graph_file("fused"), model.geometry)


def test_the_target_of_a_bundle_is_that_of_its_file(tiny_bundle: Path, tiny_gguf: Path) -> None:
    due, found = gguf_file.read(tiny_gguf).model, read_target(tiny_bundle)
    assert found.geometry == due.geometry
    assert set(found.weights) == set(due.weights)
    assert "head" in found.weights
    for name, weight in due.weights.items():
        assert found.weights[name].dtype == np.float32
        np.testing.assert_array_equal(found.weights[name], weight)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "mistral", "mistral3"])
def test_families_without_more_parts_come_back(name: str, tmp_path: Path) -> None:
    due, found = back(tiny.FAMILIES[name], tmp_path)
    assert set(found.weights) == set(due.weights)
    assert ("rope_factors" in found.weights) == (name == "llama")
    for each, weight in due.weights.items():
        bound = 1e-5 if each == "rope_factors" else 0
        np.testing.assert_allclose(found.weights[each], weight, rtol=bound)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("llama-biases", "layers.0.qkv_bias"),
        ("qwen2", "layers.0.qkv_bias"),
        ("qwen3", "layers.0.k_norm"),
        ("qwen3-untied", "layers.0.k_norm"),
    ],
)
def test_parts_that_a_student_lacks_are_named(name: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=rf"no place for the target's {part}; drafts are"):
        back(tiny.FAMILIES[name], tmp_path)


def test_a_folder_that_is_no_bundle_is_told() -> None:
    with pytest.raises(BundleError):
        read_target(ROOT / "tests")
