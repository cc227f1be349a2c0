"""WebGPU on a GPU that software plays: every node there, right answers, its own cache."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from export.graph import build_graphs, graph_file
from export.model import Model
from runtime import providers
from runtime.branches import Branches
from runtime.doctor_child import halves, smoke
from runtime.errors import ProviderError
from runtime.fused import FusedSession
from runtime.manifest import Precision
from tests.graphs import TEXT, fused, portable, tiny_model
from tests.installed import needs, needs_software_gpu

pytestmark = [needs("WebGPU"), needs_software_gpu]
PRECISIONS: tuple[Precision, ...] = ("fp32", "int4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def folders(model: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Path]:
    made: dict[Precision, Path] = {}
    for precision in PRECISIONS:
        made[precision] = tmp_path_factory.mktemp(precision)
        build_graphs(model, precision, made[precision], flavours=["fused", "gpu"])
    build_graphs(model, "fp32", made["fp32"], flavours=["fused", "gpu", "portable"])
    return made


def calls(session: FusedSession) -> list[NDArray[np.float32]]:
    """Rows of many calls: growing and cut texts, trees, another cache, and the first one again."""
    found = [session.extend(TEXT[:end], num_logits=2).copy() for end in (2, 3, 7, 30, 31)]
    session.crop(9)
    other = TEXT[::-1]
    found.append(session.extend(other[:12]).copy())
    branches = Branches((5, 6, 7, 8, 9), (12, 13, 13, 8, 16))
    found.append(session.extend(other[:13], branches=branches).copy())
    found.append(session.extend(other[:14]).copy())
    session.crop(0)
    branches = Branches((5, 7, 9), (4, 3, 6))
    found.append(session.extend(TEXT[:5], num_logits=5, branches=branches).copy())
    first = session.cache
    session.use(session.new_cache(20))
    found += [session.extend(TEXT[5 : 5 + count]).copy() for count in (1, 2, 3)]
    session.use(first)
    return [*found, session.extend(TEXT[:6]).copy()]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_graph_is_right_in_every_call(
    precision: Precision, model: Model, folders: dict[Precision, Path]
) -> None:
    folder = folders[precision]
    session = fused(folder, model, flavour="gpu", provider="WebGPU")
    for row, wanted in zip(calls(session), calls(fused(folder, model)), strict=True):
        np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-4)
    buffers = [it for layer in session.cache.buffers for it in layer]
    assert {it.device_name() for it in buffers} != {"cpu"}


def test_sessions_of_two_threads_answer_as_one_alone(
    model: Model, folders: dict[Precision, Path]
) -> None:
    """Without turns the process ends within a few calls."""
    wanted = calls(fused(folders["fp32"], model))

    def work(_number: int) -> list[NDArray[np.float32]]:
        return calls(fused(folders["fp32"], model, flavour="gpu", provider="WebGPU"))

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(work, range(2)):
            for row, due in zip(found, wanted, strict=True):
                np.testing.assert_allclose(row, due, rtol=0, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_node_is_there(precision: Precision, folders: dict[Precision, Path]) -> None:
    session = providers.load(folders[precision] / graph_file("gpu"), threads=1, name="WebGPU")
    parts = session.get_provider_graph_assignment_info()
    assert {part.ep_name for part in parts} == {"WebGpuExecutionProvider"}
    assert sum(len(part.get_nodes()) for part in parts) > 20


def test_a_portable_graph_is_right(model: Model, folders: dict[Precision, Path]) -> None:
    branches = Branches((5, 6, 7), (12, 13, 8))
    found, due = (
        portable(folders["fp32"], model, provider=name).extend(TEXT[:13], branches=branches)
        for name in ("WebGPU", "CPU")
    )
    np.testing.assert_allclose(found, due, rtol=0, atol=1e-4)


def test_a_fused_graph_would_have_wrong_trees(model: Model, folders: dict[Precision, Path]) -> None:
    """Why there is a gpu flavour: the operator ignores position_ids."""
    branches = Branches((5, 6), (3, 3))
    session = fused(folders["fp32"], model, provider="WebGPU")
    found = session.extend(TEXT[:6], branches=branches)
    wanted = fused(folders["fp32"], model).extend(TEXT[:6], branches=branches)
    np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=1e-4)
    assert np.abs(found[1:] - wanted[1:]).max() > 0.5


def test_more_trees_than_fit_in_a_call_go_in_several(
    model: Model, folders: dict[Precision, Path]
) -> None:
    """As a draft's look-ahead has them: chains side by side, 40 rows in all."""
    ends = [12 if node % 4 == 0 else 13 + node - 1 for node in range(40)]
    branches = Branches(tuple(TEXT[20:60].tolist()), tuple(ends))
    found, wanted = (
        fused(folders["fp32"], model, flavour="gpu", provider=name).extend(
            TEXT[:13], num_logits=2, branches=branches
        )
        for name in ("WebGPU", "CPU")
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_calls_of_32_rows_would_be_wrong_and_are_refused(
    model: Model, folders: dict[Precision, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fused(folders["fp32"], model, flavour="gpu", provider="WebGPU")
    wanted = fused(folders["fp32"], model).extend(TEXT[:64], num_logits=31).copy()
    found = session.extend(TEXT[:64], num_logits=1)
    np.testing.assert_allclose(found, wanted[-1:], rtol=0, atol=1e-4)
    session.crop(0)
    with pytest.raises(ProviderError, match="A call of 32 rows is more than WebGPU"):
        session.extend(TEXT[:32], num_logits=32)
    monkeypatch.setattr(session, "_widest", None)
    found = session.extend(TEXT[:32], num_logits=32)
    wanted = fused(folders["fp32"], model).extend(TEXT[:32], num_logits=32)
    assert np.abs(found - wanted).max() > 0.5


def test_nothing_is_logged_where_software_plays_the_gpu() -> None:
    words = "from runtime import providers; providers.register('WebGPU')"
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_small_graph_tells_that_there_is_no_float16() -> None:
    place = providers.Place("WebGPU", "GPU")
    assert smoke(place.as_data())["right"]
    assert not halves(place.as_data())["right"], "SwiftShader has none"


def test_float16_fails_with_a_name_and_gives_no_answer(model: Model, tmp_path: Path) -> None:
    build_graphs(model, "fp16", tmp_path, flavours=["gpu"])
    session = fused(tmp_path, model, flavour="gpu", provider="WebGPU")
    with pytest.raises(ProviderError, match=r"requires f16 .*: take --precision fp32 "):
        session.extend(TEXT[:3])
