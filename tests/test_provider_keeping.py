"""What of a provider's compiling is kept, by what name, and what happens where it cannot be."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.compiled import GRAPH_FILE, HASHED
from runtime.errors import BundleError, ProviderError
from runtime.providers import PROVIDERS, Place, keeping, load, loading, told_options
from runtime.providers.devices import device_of
from runtime.providers.keeping import Form, compiling_form, kept_form, target_of
from tests.fake_devices import Machine, hardware

FOLDERS = {  # where the options of docs/providers.md lead
    "CoreML": {"ModelCacheDirectory": "TO"},
    "MIGraphX": {"migraphx_model_cache_dir": "TO"},
    "VitisAI": {"cache_dir": "TO", "cache_key": "graph"},
}
QNN = Place("QNN", "NPU")
THREADS = 3


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "portable-8-rows.onnx"
    path.write_bytes(b"graph")
    return path


@pytest.fixture
def snapdragon(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"QNN": [hardware("NPU"), hardware("GPU")], "WebGPU": [hardware("GPU", 1)]}
    Machine(monkeypatch, libraries=found)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the child is asked for, which does it at once."""
    found: list[dict[str, Any]] = []

    def run_child(_command: object, request: dict[str, Any], _what: str, _limit: float) -> None:
        found.append(request)
        (Path(request["to"]) / GRAPH_FILE).write_bytes(b"compiled")

    monkeypatch.setattr(keeping, "run_child", run_child)
    return found


def form_of(graph: Path, place: Place) -> Form:
    device = device_of(place)
    told, plain = (told_options(place, device, count) for count in (THREADS, 1))
    return kept_form(graph, place, device, told, plain=plain)


def nothing_said(line: str) -> None:
    assert line.startswith("Compil"), line


@pytest.mark.usefixtures("snapdragon")
def test_a_graph_is_compiled_by_a_child_and_then_loaded_in_its_place(
    graph: Path, asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    place = replace(QNN, options=(("soc_model", "57"),)).keeping(tmp_path / "cache", nothing_said)
    first = form_of(graph, place)
    assert first.file.read_bytes() == b"compiled"
    assert first.file.parent == first.kept
    assert first.options == {
        "backend_type": "htp",
        "offload_graph_io_quantization": "0",
        "soc_model": "57",
    }
    assert form_of(graph, place) == first
    (request,) = asked
    assert request["graph"] == str(graph)
    assert request["place"]["options"] == [("soc_model", "57")]


@pytest.mark.usefixtures("snapdragon", "asked")
def test_what_does_not_change_the_binary_does_not_change_its_name(
    graph: Path, tmp_path: Path
) -> None:
    def name(**options: str) -> str:
        place = replace(QNN, options=tuple(options.items()))
        kept = form_of(graph, place.keeping(tmp_path / "cache", nothing_said)).kept
        assert kept is not None
        return kept.name

    plain = name(soc_model="57")
    assert name(soc_model="57", htp_performance_mode="burst", rpc_control_latency="9") == plain
    others = [
        name(),
        name(soc_model="69"),
        name(soc_model="57", vtcm_mb="8"),
        name(soc_model="57", htp_arch="75"),
    ]
    assert len({plain, *others}) == 5


def test_what_windows_names_anew_at_every_boot_is_no_other_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Machine(monkeypatch, libraries={"QNN": [hardware("NPU")]})
    device_of(QNN)
    own = PROVIDERS["QNN"].compiled
    assert own is not None

    def known(luid: str, driver: str) -> str:
        said = hardware("NPU", LUID=luid, driver=driver)
        here.listed[0] = replace(here.listed[0], device=said)
        return target_of(own, QNN, device_of(QNN), {}).hardware

    before = known("1", "7")
    assert known("2", "7") == before
    assert known("1", "8") != before


@pytest.mark.usefixtures("snapdragon")
def test_a_chip_that_is_named_stands_for_the_device() -> None:
    """So that what was made elsewhere for a chip is found; else the device and its driver count."""
    own = PROVIDERS["QNN"].compiled
    assert own is not None
    there = device_of(QNN)
    other = replace(there, listed=replace(there.listed, ep_metadata={"driver": "2"}))
    for options, same in (({"soc_model": "57"}, True), ({}, False), ({"soc_model": "0"}, False)):
        one, two = (target_of(own, QNN, device, options) for device in (there, other))
        assert (one == two) is same
        assert (one.hardware == "") is same


@pytest.mark.usefixtures("snapdragon")
@pytest.mark.parametrize(
    "place",
    [
        QNN,
        replace(QNN, report=print, compiled=Path("cache")),
        Place("QNN", "GPU", compiled=Path("cache")),
        Place("WebGPU", "GPU", compiled=Path("cache")),
        Place("CPU", compiled=Path("cache")),
    ],
)
def test_the_rest_is_loaded_as_it_is(
    place: Place,
    graph: Path,
    asked: list[dict[str, Any]],
) -> None:
    assert form_of(graph, place) == Form(graph, told_options(place, device_of(place), THREADS))
    assert asked == []


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("key", FOLDERS)
def test_some_keep_files_of_their_own_in_a_folder(
    key: str,
    graph: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Machine(monkeypatch, libraries={}, built_in={key: [hardware("NPU"), hardware("GPU")]})
    place = Place(key, next(iter(PROVIDERS[key].devices)))
    told = told_options(place, device_of(place), THREADS)
    form = form_of(graph, place.keeping(tmp_path / "cache", nothing_said))
    added = {name: value.replace("TO", str(form.kept)) for name, value in FOLDERS[key].items()}
    assert form == Form(graph, told | added, kept=form.kept)
    to = Path("TO")
    assert compiling_form(graph, place, told, to) == Form(graph, told | FOLDERS[key])
    own = next(iter(added)), "mine"
    named = replace(place, options=(own,)).keeping(tmp_path / "other", nothing_said)
    assert form_of(graph, named) == Form(graph, told | dict([own])), "the user knows better"


def test_onnxruntime_writes_a_graph_for_the_others(graph: Path) -> None:
    for key in ("QNN", "OpenVINO", "NvTensorRTRTX"):
        assert PROVIDERS[key].compiled is not None
        form = compiling_form(graph, Place(key), {"a": "b"}, Path("TO"))
        assert (form.file, form.options) == (graph, {"a": "b"})
        assert form.entries == {
            "ep.context_enable": "1",
            "ep.context_file_path": str(Path("TO") / GRAPH_FILE),
            "ep.context_embed_mode": "0",
        }


@pytest.mark.usefixtures("snapdragon")
def test_where_nothing_can_be_kept_the_graph_is_loaded_as_it_is(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    (tmp_path / "cache").write_bytes(b"a file")
    assert form_of(graph, QNN.keeping(tmp_path / "cache", said.append)).file == graph
    assert "cannot be kept in" in said[0]
    monkeypatch.setattr(keeping, "run_child", lambda *_: None)  # which writes nothing
    assert form_of(graph, QNN.keeping(tmp_path / "empty", said.append)).file == graph
    assert said[-1].endswith("to nothing. It is compiled at every start.")


@pytest.mark.usefixtures("snapdragon")
def test_a_compiling_that_ends_its_process_is_an_error(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr(keeping, "module_command", lambda _: [sys.executable, "-c", code])
    with pytest.raises(ProviderError, match="for QNN on NPU ended its process, by SIGSEGV"):
        form_of(graph, QNN.keeping(tmp_path / "cache", nothing_said))
    assert [path.name for path in (tmp_path / "cache").iterdir()] in ([HASHED], [])


@pytest.mark.usefixtures("snapdragon")
def test_an_interrupt_leaves_nothing(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import time; time.sleep(60)"
    monkeypatch.setattr(keeping, "module_command", lambda _: [sys.executable, "-c", code])

    def interrupt() -> None:
        while not list((tmp_path / "cache").glob(".compiling-*/made")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        form_of(graph, QNN.keeping(tmp_path / "cache", nothing_said))
    assert [path.name for path in (tmp_path / "cache").iterdir()] in ([HASHED], [])


@pytest.mark.usefixtures("snapdragon")
@pytest.mark.parametrize("times", [1, 2])
def test_what_is_kept_and_refused_is_made_again_once(
    times: int,
    graph: Path,
    asked: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    place = QNN.keeping(tmp_path / "cache", said.append)
    form_of(graph, place)
    opened: list[Path] = []

    def open_form(form: Form, *_: object) -> str:
        opened.append(form.file)
        if len(opened) <= times:
            raise BundleError("it is of another chip")
        return "session"

    monkeypatch.setattr(loading, "_in_turn", open_form)
    if times == 1:
        assert load(graph, threads=1, name=place) == "session"
    else:
        with pytest.raises(BundleError, match="another chip"):
            load(graph, threads=1, name=place)
    assert (len(opened), len(asked)) == (2, 2)
    assert any("is of no use: it is of another chip" in line for line in said)


def test_every_provider_that_compiles_says_how_that_is_kept() -> None:
    kept = {key for key, provider in PROVIDERS.items() if provider.compiled is not None}
    assert kept == {"QNN", "OpenVINO", "NvTensorRTRTX", *FOLDERS}
