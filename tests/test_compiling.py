"""Compiled by real providers in a process of its own, kept, loaded again: the same answers.

OpenVINO is installed for the tests; QNN's HTP is emulated where its package is there.
"""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from runtime import open_session
from runtime.compiled import ABOUT_FILE, GRAPH_FILE, HASHED
from runtime.errors import ProviderError
from runtime.providers import Place, load, resolve, strays
from tests.installed import each, needs

CHIPS = ("57", "69")  # two generations


def small(path: Path, *, scale: float = 1.0) -> Path:
    """A graph of one product of 2 rows, in float16."""
    weights = np.random.default_rng(1).normal(0, scale, (32, 48)).astype(np.float16)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["rows", "weights"], ["product"])],
        "small",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT16, [2, 32])],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT16, [2, 48])],
        [numpy_helper.from_array(weights, "weights")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def product(session: Any) -> NDArray[Any]:
    rows = np.random.default_rng(2).normal(0, 1, (2, 32)).astype(np.float16)
    return np.asarray(session.run(["product"], {"rows": rows})[0])


class Desk:
    """A provider's place with a cache, and what was said."""

    def __init__(self, folder: Path, key: str, **options: str) -> None:
        self.said: list[str] = []
        self.cache = folder / "compiled"
        self.plain = resolve("draft", provider=key, options=options)
        self.place = self.plain.keeping(self.cache, self.said.append)

    def load(self, graph: Path) -> Any:
        """A session, all of it where it should be."""
        session = load(graph, threads=1, name=self.place)
        assert strays(session, self.place) == {}
        return session

    def folders(self) -> list[Path]:
        return sorted(path for path in self.cache.iterdir() if path.name != HASHED)

    def times(self) -> int:
        """How often something was compiled."""
        return sum(line.startswith("Compiled") for line in self.said)


@each("OpenVINO", "QNN")
def test_a_graph_is_compiled_once_and_answers_as_before(key: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, key)
    graph = small(tmp_path / "graph.onnx")
    plain = product(load(graph, threads=1, name=desk.plain))
    for _ in range(2):
        session = desk.load(graph)
        assert np.array_equal(product(session), plain)
        (part,) = session.get_provider_graph_assignment_info()
        assert [node.op_type for node in part.get_nodes()] == ["EPContext"]
    assert desk.times() == 1
    (folder,) = desk.folders()
    assert {GRAPH_FILE, ABOUT_FILE} < {path.name for path in folder.iterdir()}
    small(graph, scale=2.0)
    assert not np.array_equal(product(desk.load(graph)), plain)
    assert (desk.times(), len(desk.folders())) == (2, 2)


@each("QNN")
def test_a_file_that_is_cut_and_another_release_are_compiled_anew(key: str, tmp_path: Path) -> None:
    """A cut binary may end the process that loads it; that of another release may be refused."""
    desk = Desk(tmp_path, key)
    graph = small(tmp_path / "graph.onnx")
    first = product(desk.load(graph))
    (folder,) = desk.folders()
    (binary,) = folder.glob("*.bin")
    binary.write_bytes(binary.read_bytes()[:-100])
    assert np.array_equal(product(desk.load(graph)), first)
    assert any(f"{binary} is damaged" in line for line in desk.said)
    note = folder / ABOUT_FILE
    note.write_text(json.dumps(json.loads(note.read_text()) | {"build": "0.9"}), encoding="utf-8")
    assert np.array_equal(product(desk.load(graph)), first)
    assert any("made by" in line and "0.9, and this is " in line for line in desk.said)
    assert (desk.times(), desk.folders()) == (3, [folder])


@needs("QNN")
def test_two_chips_have_a_binary_each(tmp_path: Path) -> None:
    """The emulator would run either for the other without a word."""
    graph = small(tmp_path / "graph.onnx")
    for chip in CHIPS:
        desk = Desk(tmp_path, "QNN", soc_model=chip)
        plain = product(load(graph, threads=1, name=desk.plain))
        for _ in range(2):
            assert np.array_equal(product(desk.load(graph)), plain)
        assert desk.times() == 1
    binaries = [next(folder.glob("*.bin")).read_bytes() for folder in desk.folders()]
    assert len(binaries) == len(set(binaries)) == 2


@needs("OpenVINO")
def test_how_many_threads_run_it_changes_nothing_of_what_is_compiled(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "OpenVINO")
    graph = small(tmp_path / "graph.onnx")
    for threads in (2, 1):
        plain = product(load(graph, threads=threads, name=desk.plain))
        assert np.array_equal(product(load(graph, threads=threads, name=desk.place)), plain)
    assert desk.times() == 1


@needs("OpenVINO")
def test_two_that_compile_at_once_both_have_their_answer(tmp_path: Path) -> None:
    """Each in a child, as two processes would."""
    desk = Desk(tmp_path, "OpenVINO")
    graph = small(tmp_path / "graph.onnx")
    found: list[NDArray[Any]] = []
    threads = [
        threading.Thread(target=lambda: found.append(product(desk.load(graph)))) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(found[0], found[1])
    assert len(desk.folders()) == 1


@needs("OpenVINO")
def test_what_a_provider_does_not_take_is_said_by_the_child(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    graph = tiny_bundle / "target" / "fp32" / "fused.onnx"
    cache = tmp_path / "compiled"
    place = Place("OpenVINO", "CPU").keeping(cache, print)
    with pytest.raises(ProviderError, match=r"operators elsewhere .*GroupQueryAttention"):
        load(graph, threads=1, name=place)
    assert [path.name for path in cache.iterdir()] in ([HASHED], [])


@needs("OpenVINO")
def test_a_session_keeps_what_is_compiled_in_its_cache(tiny_bundle: Path, tmp_path: Path) -> None:
    texts: list[str] = []
    said: list[list[str]] = []
    for _ in range(2):
        said.append([])
        with open_session(
            tiny_bundle,
            cache_dir=tmp_path,
            draft="none",
            execution_provider="openvino",
            progress=said[-1].append,
        ) as session:
            texts.append("".join(session.generate("Once upon", max_new_tokens=6)))
    assert texts[0] == texts[1]
    compiled = [line for line in said[0] if line.startswith("Compiled")]
    assert len(compiled) == len(list((tmp_path / "compiled").glob("portable-*"))) == 2
    assert not any("ompil" in line for line in said[1])
