"""Lenses are read by the layer that they follow, and only where they fit their target."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from export.lens_file import load
from export.trained import read_tensors
from runtime.errors import BuildError
from runtime.manifest import Geometry
from tests import tiny
from tests.drafts import write_lenses
from tests.graphs import tiny_model

SHA256 = "a" * 64


@pytest.fixture
def geometry(tmp_path: Path) -> Geometry:
    return replace(tiny_model(tmp_path).geometry, layers=20)


def test_lenses_come_by_their_layers(geometry: Geometry, tmp_path: Path) -> None:
    path = write_lenses(tmp_path / "lenses", 10, 9, 19)
    lenses = load(path, geometry, target_sha256=SHA256)
    assert list(lenses) == [9, 10, 19]
    for layer, lens in lenses.items():
        wanted = read_tensors(path)[0][f"layer.{layer}"]
        np.testing.assert_array_equal(lens, wanted, strict=True)


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.clear(), "holds no lenses"),
        (lambda t: t.update({"layer.0": t["layer.1"]}), r"'layer\.0', which is no layer\.1 to"),
        (lambda t: t.update({"layer.20": t["layer.1"]}), r"layer\.1 to layer\.19"),
        (lambda t: t.update({"layer.01": t["layer.1"]}), "which is no layer"),
        (lambda t: t.update({"lens.1": t["layer.1"]}), "which is no layer"),
        (lambda t: t.update({"layer.1": t["layer.1"][1:]}), r"float16 \[63, 64\]; finite"),
        (lambda t: t.update({"layer.1": t["layer.1"].astype(np.float32)}), "is float32"),
        (lambda t: t["layer.1"].fill(np.nan), "finite float16"),
    ],
)
def test_what_is_no_lens_is_refused(
    change: Change, message: str, geometry: Geometry, tmp_path: Path
) -> None:
    tensors: dict[str, Any] = {"layer.1": np.eye(tiny.HIDDEN, dtype=np.float16)}
    change(tensors)
    save_file(tensors, tmp_path / "lenses")
    with pytest.raises(BuildError, match=message) as caught:
        load(tmp_path / "lenses", geometry, target_sha256=SHA256)
    assert str(tmp_path / "lenses") in str(caught.value)


def test_lenses_of_another_target_are_refused(geometry: Geometry, tmp_path: Path) -> None:
    lens = {"layer.1": np.eye(tiny.HIDDEN, dtype=np.float16)}
    save_file(lens, tmp_path / "lenses", {"target_sha256": "b" * 64})
    with pytest.raises(BuildError, match="trained for another target"):
        load(tmp_path / "lenses", geometry, target_sha256=SHA256)
    assert load(tmp_path / "lenses", geometry, target_sha256="b" * 64)
