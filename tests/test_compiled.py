"""Compiled graphs: made once, made again when stale or damaged, never half there."""

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from runtime import compiled, integrity
from runtime.compiled import ABOUT_FILE, GRAPH_FILE, HASHED, Target, compiled_graph, forget
from runtime.errors import BundleError, ProviderError

PHONE = Target("QNN", "2.7.0", {"soc_model": "57"})


@dataclass
class Desk:
    """A graph with weights, a cache, and a provider that counts what it compiles."""

    folder: Path
    said: list[str] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "graphs").mkdir()
        self.graph = self.folder / "graphs" / "portable-8-rows.onnx"
        self.graph.write_bytes(b"graph")
        self.graph.with_name("weights.data").write_bytes(b"weights")
        self.cache = self.folder / "cache" / "compiled"

    def get(self, target: Target = PHONE) -> Path:
        return compiled_graph(
            self.graph, target, folder=self.cache, compile_graph=self.compile, say=self.said.append
        )

    def compile(self, graph: Path, to: Path) -> None:
        self.made.append(graph)
        (to / GRAPH_FILE).write_bytes(b"one node of " + graph.read_bytes())
        (to / "graph_qnn.bin").write_bytes(b"binary")

    def folders(self) -> list[str]:
        return sorted(path.name for path in self.cache.iterdir() if path.name != HASHED)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_graph_is_compiled_once_and_said_to_be(desk: Desk) -> None:
    first = desk.get()
    assert (first / GRAPH_FILE).read_bytes() == b"one node of graph"
    assert (first / "graph_qnn.bin").read_bytes() == b"binary"
    assert "Compiling portable-8-rows.onnx for QNN once" in desk.said[0]
    assert "Compiled portable-8-rows.onnx in 0 s" in desk.said[1]
    desk.said.clear()
    assert desk.get() == first
    assert (len(desk.made), desk.said) == (1, [])


@pytest.mark.parametrize(
    "other",
    [
        replace(PHONE, options={"soc_model": "69"}),
        replace(PHONE, options={"soc_model": "57", "vtcm_mb": "8"}),
        replace(PHONE, provider="OpenVINO"),
        replace(PHONE, hardware="another driver"),
    ],
)
def test_another_device_has_a_folder_of_its_own(other: Target, desk: Desk) -> None:
    first, second = desk.get(), desk.get(other)
    assert first != second
    assert (desk.get(), desk.get(other), len(desk.made)) == (first, second, 2)


def test_the_order_of_options_says_nothing(desk: Desk) -> None:
    one = replace(PHONE, options={"a": "1", "b": "2"})
    assert desk.get(one) == desk.get(replace(PHONE, options={"b": "2", "a": "1"}))


@pytest.mark.parametrize("name", ["portable-8-rows.onnx", "weights.data"])
def test_another_graph_is_another_folder(name: str, desk: Desk) -> None:
    first = desk.get()
    desk.graph.with_name(name).write_bytes(b"other")
    assert desk.get() != first
    assert len(desk.made) == 2


def test_another_build_takes_the_place_of_the_old_one(desk: Desk) -> None:
    first = desk.get()
    assert desk.get(replace(PHONE, build="2.8.0")) == first
    assert any("made by QNN 2.7.0, and this is 2.8.0" in line for line in desk.said)
    assert (len(desk.made), len(desk.folders())) == (2, 1)
    desk.get(replace(PHONE, build="2.8.0"))
    assert len(desk.made) == 2


@pytest.mark.parametrize("name", [GRAPH_FILE, "graph_qnn.bin"])
@pytest.mark.parametrize("harm", ["shorter", "changed", "gone"])
def test_a_damaged_file_is_made_anew(name: str, harm: str, desk: Desk) -> None:
    path = desk.get() / name
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if harm == "shorter" else content[:-1] + b"!")
    assert (desk.get() / name).read_bytes() == content
    assert len(desk.made) == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"made_of": 1}'])
def test_a_broken_note_is_made_anew(text: str, desk: Desk) -> None:
    note = desk.get() / ABOUT_FILE
    note.write_text(text, encoding="utf-8")
    desk.get()
    assert len(desk.made) == 2
    assert json.loads(note.read_text(encoding="utf-8"))["build"] == "2.7.0"


@pytest.mark.parametrize("error", [ProviderError("no room on the chip"), KeyboardInterrupt()])
def test_what_fails_leaves_nothing(
    error: BaseException, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_graph: Path, to: Path) -> None:
        (to / GRAPH_FILE).write_bytes(b"half")
        raise error

    monkeypatch.setattr(desk, "compile", fail)
    with pytest.raises(type(error)):
        desk.get()
    assert desk.folders() == []


def test_a_provider_that_writes_nothing_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "compile", lambda _graph, _to: None)
    with pytest.raises(BundleError, match=r"QNN compiled .*portable-8-rows\.onnx to nothing"):
        desk.get()
    assert desk.folders() == []
    assert desk.get(replace(PHONE, whole=False)).is_dir(), "a folder is its own affair"


def test_of_two_processes_the_second_takes_what_the_first_made(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_one = desk.compile

    def slower(graph: Path, to: Path) -> None:
        monkeypatch.setattr(desk, "compile", compile_one)
        desk.get()  # the other process, meanwhile
        compile_one(graph, to)

    monkeypatch.setattr(desk, "compile", slower)
    found = desk.get()
    assert (found / GRAPH_FILE).read_bytes() == b"one node of graph"
    assert (len(desk.made), len(desk.folders())) == (2, 1)


def test_a_link_to_a_place_outside_is_not_followed(desk: Desk, tmp_path: Path) -> None:
    path = desk.get() / "graph_qnn.bin"
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    desk.get()
    assert len(desk.made) == 2
    assert not path.is_symlink()
    note = desk.get() / ABOUT_FILE
    note.write_text(note.read_text(encoding="utf-8").replace("graph_qnn", "../graph_qnn"))
    desk.get()
    assert len(desk.made) == 3


def test_what_is_the_same_as_before_is_not_hashed_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of gigabytes, that is, once their record holds."""
    monkeypatch.setattr(integrity, "COARSEST_TICK_NS", 0)
    desk.get()
    monkeypatch.setattr(integrity, "file_sha256", None)
    desk.get()
    assert len(desk.made) == 1
    desk.graph.write_bytes(b"grape")
    with pytest.raises(TypeError):
        desk.get()


def test_no_room_is_an_error_before_anything_is_compiled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=4 * len(b"weights") - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: free)
    with pytest.raises(OSError, match="No space left"):
        desk.get()
    assert (desk.made, desk.folders()) == ([], [])
    free.free += 1
    desk.get()


def test_what_killed_processes_left_is_removed_when_it_is_old(desk: Desk) -> None:
    old, new = (desk.cache / f".compiling-{name}" for name in ("old", "new"))
    for work in (old, new):
        (work / "made").mkdir(parents=True)
    os.utime(old, (0, 0))
    desk.get()
    assert desk.folders()[:-1] == [".compiling-new"]


def test_what_is_forgotten_is_made_again(desk: Desk) -> None:
    forget(desk.get())
    assert desk.folders() == []
    desk.get()
    assert len(desk.made) == 2


def test_a_long_compiling_shows_that_it_lives(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "ALIVE_S", 0.001)
    compile_one = desk.compile

    def slow(graph: Path, to: Path) -> None:
        while not any("s so far" in line for line in desk.said):
            pass
        compile_one(graph, to)

    monkeypatch.setattr(desk, "compile", slow)
    desk.get()
    assert desk.said[1] == "  … Compiling portable-8-rows.onnx for QNN: 0 s so far"


def test_a_graphs_weights_all_lie_in_the_file_that_is_hashed(tiny_bundle: Path) -> None:
    found = set()
    for path in tiny_bundle.rglob("*.onnx"):
        model = onnx.load(path, load_external_data=False)
        for tensor in model.graph.initializer:
            found |= {entry.value for entry in tensor.external_data if entry.key == "location"}
    assert found == {compiled.WEIGHTS_FILE}
