"""A graph's trial on a device: what it compares, how that is judged, and what of it is kept."""

import dataclasses
import json
import shutil
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import draft_model, models, open_session, providers, trial
from runtime.errors import ProviderError, UsageError
from runtime.flavours import open_graph
from runtime.manifest import Manifest
from runtime.probe import Exactness
from runtime.providers import Place, resolve
from runtime.trial import BOUND, Trial, judge, presumed, try_graph, try_once

OPENVINO = Place("OpenVINO")
WHAT = "The target's graph portable-fp32"
GOOD, WRONG = Trial(0.02, 10.0, 27, 27, 1.5), Trial(1.2, 10.0, 27, 26, 1.5)
needs_openvino = pytest.mark.skipif(
    find_spec("onnxruntime_ep_openvino") is None, reason="OpenVINO is not installed"
)
needs_qnn = pytest.mark.skipif(
    find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed"
)


def test_an_answer_is_right_up_to_a_share_of_the_spread() -> None:
    judge(GOOD, OPENVINO, WHAT)
    judge(dataclasses.replace(GOOD, largest_difference=BOUND * 10), OPENVINO, WHAT)
    message = (
        r"^The target's graph portable-fp32 on OpenVINO on CPU answers wrongly: the largest "
        r"difference is 1\.2 of 10, and 26 of 27 rows choose the same token, compared with the "
        "CPU. Take another execution provider or precision, or another version of the device's "
        "driver.$"
    )
    with pytest.raises(ProviderError, match=message):
        judge(WRONG, OPENVINO, WHAT)


@pytest.mark.parametrize(
    ("largest_difference", "spread"),
    [(float("inf"), 10.0), (float("nan"), 10.0), (0.0, 0.0), (1.0, float("nan"))],
)
def test_what_is_no_number_is_wrong(largest_difference: float, spread: float) -> None:
    odd = dataclasses.replace(GOOD, largest_difference=largest_difference, spread=spread)
    with pytest.raises(ProviderError, match="gives logits that are no numbers"):
        judge(odd, OPENVINO, WHAT)


class Tries:
    """Stands for `try_graph`: counts and gives what it was told."""

    def __init__(self, patch: pytest.MonkeyPatch, found: Trial = GOOD) -> None:
        self.found = found
        self.asked: list[tuple[str, str, Place]] = []
        self.said: list[str] = []
        patch.setattr(trial, "try_graph", self)

    def __call__(
        self, _manifest: Manifest, role: str, graph: Any, place: Place, *, threads: int
    ) -> Trial:
        assert threads >= 1
        self.asked.append((role, f"{graph.flavour}-{graph.precision}", place))
        return self.found

    def once(self, bundle: Path, folder: Path, place: Place = OPENVINO) -> Trial | None:
        manifest = Manifest.load(bundle)
        graph = manifest.target.graphs["portable-fp32"]
        return try_once(
            manifest, "target", graph, place, threads=2, folder=folder, say=self.said.append
        )


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    return Tries(monkeypatch)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the tiny bundle, to change."""
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    return tmp_path / "bundle"


@needs_openvino
def test_a_good_answer_is_kept_and_said_once(
    tries: Tries, tiny_bundle: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        assert tries.once(tiny_bundle, tmp_path / "deep" / "probes") == GOOD
    assert tries.asked == [("target", "portable-fp32", OPENVINO)]
    assert tries.said == [
        "First use of target/fp32/portable-8-rows.onnx on OpenVINO on CPU: trying whether it "
        "answers as the CPU does.",
        "It does: the largest difference is 0.02 of 10, and 27 of 27 rows choose the same token "
        "(2 s).",
    ]


@needs_openvino
def test_a_wrong_answer_is_refused_each_time_and_not_kept(
    tries: Tries, tiny_bundle: Path, tmp_path: Path
) -> None:
    tries.found = WRONG
    for count in (1, 2):
        with pytest.raises(ProviderError, match=rf"^{WHAT} on OpenVINO on CPU answers wrongly"):
            tries.once(tiny_bundle, tmp_path / "probes")
        assert len(tries.asked) == count
    assert not (tmp_path / "probes").exists()
    tries.found = GOOD
    assert tries.once(tiny_bundle, tmp_path / "probes") == GOOD


@needs_openvino
@pytest.mark.parametrize("change", ["manifest", "graph", "options", "identity"])
def test_it_is_tried_again_when_something_changed(
    change: str, tries: Tries, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries.once(bundle, tmp_path)
    place = OPENVINO
    if change == "manifest":
        path = bundle / "manifest.json"
        path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    elif change == "options":
        place = resolve("target", provider="OpenVINO", options={"load_config": '{"CPU": {}}'})
    elif change == "identity":
        monkeypatch.setattr(providers, "identity", lambda _place: "another driver")
    if change == "graph":
        manifest = Manifest.load(bundle)
        graph = manifest.target.graphs["portable-int8"]
        try_once(manifest, "target", graph, place, threads=1, folder=tmp_path, say=print)
    else:
        tries.once(bundle, tmp_path, place)
    assert len(tries.asked) == 2
    tries.once(bundle, tmp_path, place)
    assert len(tries.asked) == 2


@needs_openvino
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"largest_difference": 0.02}',
        json.dumps(dataclasses.asdict(WRONG)).encode(),
        json.dumps(dataclasses.asdict(GOOD) | {"spread": "wide"}).encode(),
        json.dumps(dataclasses.asdict(GOOD) | {"largest_difference": [0]}).encode(),
        json.dumps(dataclasses.asdict(GOOD) | {"colour": 1}).encode(),
    ],
)
def test_a_damaged_answer_is_asked_for_again(
    content: bytes, tries: Tries, tiny_bundle: Path, tmp_path: Path
) -> None:
    tries.once(tiny_bundle, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert tries.once(tiny_bundle, tmp_path) == GOOD
    assert len(tries.asked) == 2


def test_the_cpu_is_what_others_are_compared_with(
    tries: Tries, tiny_bundle: Path, tmp_path: Path
) -> None:
    assert tries.once(tiny_bundle, tmp_path, Place("CPU")) is None
    assert (tries.asked, tries.said) == ([], [])


@pytest.mark.parametrize(("emulated", "kind"), [(True, "near-tie"), (False, None)])
def test_a_device_that_software_plays_is_never_bitwise(
    *, emulated: bool, kind: str | None, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Manifest.load(tiny_bundle).target.graphs["portable-fp32"]
    device = SimpleNamespace(emulated=emulated)
    monkeypatch.setattr(trial, "device_of", lambda _place: device)
    apart = 0.04 + graph.parity.width_difference
    assert presumed(GOOD, graph, OPENVINO) == (Exactness("near-tie", apart) if kind else None)
    assert presumed(None, graph, Place("CPU")) is None


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sessions load on the CPU provider, which is faster, whatever they ask for."""

    def opened(*given: Any, **settings: Any) -> Any:
        return open_graph(*given, **settings | {"provider": "CPU"})

    monkeypatch.setattr(models, "open_graph", opened)
    monkeypatch.setattr(draft_model, "open_graph", opened)
    monkeypatch.setattr(trial, "keep", lambda _file, _place: None)


@needs_openvino
@pytest.mark.usefixtures("on_the_cpu")
def test_a_session_tries_its_models_before_they_work(
    tries: Tries, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {
        "cache_dir": tmp_path,
        "threads": 1,
        "draft_execution_provider": "OpenVINO",
        "precision": "int8",
    }
    both = settings | {"execution_provider": "OpenVINO"}
    for _ in range(2):
        with open_session(tiny_bundle, progress=tries.said.append, **both) as session:
            session.strategy = "mirror"  # with threads of its own, so a new worker
    assert tries.asked == [
        ("target", "portable-int8", OPENVINO),
        ("draft", "portable-fp32", OPENVINO),
    ]
    assert [line.partition(" on")[0] for line in tries.said if "trying whether" in line] == [
        "First use of target/int8/portable-8-rows.onnx",
        "First use of target/fp32/portable-8-rows.onnx",
    ]
    tries.found = WRONG
    shutil.rmtree(tmp_path / "probes")
    threads = threading.active_count()
    with pytest.raises(ProviderError, match=r"^The draft's graph portable-fp32 on OpenVINO on CPU"):
        open_session(tiny_bundle, **settings)
    assert threading.active_count() == threads
    monkeypatch.setattr(models, "open_graph", pytest.fail)
    with pytest.raises(ProviderError, match=r"^The target's graph portable-int8 on OpenVINO"):
        open_session(tiny_bundle, **both)


@needs_openvino
@pytest.mark.usefixtures("on_the_cpu", "tries")
def test_a_target_that_software_plays_is_not_probed_and_takes_no_trees(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "device_of", lambda _place: SimpleNamespace(emulated=True))
    monkeypatch.setattr(models, "exactness", pytest.fail)
    settings: dict[str, Any] = {"cache_dir": tmp_path, "execution_provider": "OpenVINO"}
    with open_session(tiny_bundle, draft="none", **settings) as session:
        assert session.settings["exactness"] == "near-tie"
    with pytest.raises(UsageError, match="Trees need a target whose logits do not depend on"):
        open_session(tiny_bundle, num_siblings=1, strategy="speculative", **settings)


WIDE = dataclasses.replace(OPENVINO, wide=True)


@needs_openvino
@pytest.mark.parametrize("wide_is_right", [True, False])
def test_wide_calls_are_fed_only_where_they_are_right(
    *, wide_is_right: bool, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a real device of a provider with a bound on rows; what is right is found once."""
    manifest, said, asked = Manifest.load(tiny_bundle), list[str](), list[Place]()

    def tried(_manifest: Manifest, _role: str, _graph: Any, place: Place, **_kept: int) -> Trial:
        asked.append(place)
        return WRONG if place.wide and not wide_is_right else GOOD

    monkeypatch.setattr(trial, "try_graph", tried)
    monkeypatch.setattr(trial, "widened", lambda _place: WIDE)
    monkeypatch.setattr(trial, "most_rows", lambda _place: 31)

    def settle(graph: str) -> Place:
        kept: dict[str, Any] = {"threads": 1, "folder": tmp_path, "say": said.append}
        place, found = trial.settle(
            manifest, "target", manifest.target.graphs[graph], OPENVINO, **kept
        )
        assert found == GOOD
        return place

    due = WIDE if wide_is_right else OPENVINO
    assert [settle("fused-fp32"), settle("fused-fp32")] == [due, due]
    assert asked == ([WIDE] if wide_is_right else [WIDE, OPENVINO])
    assert any("Trying calls of at most 31 rows." in line for line in said) is not wide_is_right
    assert settle("portable-fp32") == OPENVINO, "its attention is made of plain products"


@needs_openvino
def test_a_right_provider_for_real(tiny_bundle: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    found = try_graph(manifest, "target", manifest.target.graphs["portable-fp32"], OPENVINO)
    assert found.largest_difference < 1e-4
    assert found.spread > 1
    assert (found.equal, found.rows) == (27, 27)
    assert found.seconds > 0
    message = r"^A fused graph runs on CPU only, and not on OpenVINO on CPU\.$"
    with pytest.raises(ProviderError, match=message):  # as the child said it
        try_graph(manifest, "target", manifest.target.graphs["fused-fp32"], OPENVINO)


@needs_qnn
def test_a_wrong_provider_for_real(tiny_bundle: Path) -> None:
    """Whole numbers of up to 65,536 pass through float16 there; see docs/npu.md."""
    manifest = Manifest.load(tiny_bundle)
    graph = manifest.target.graphs["portable-int8"]
    place = resolve("target", provider="QNN", report=print)
    found = try_graph(manifest, "target", graph, place)
    with pytest.raises(ProviderError, match="portable-int8 on QNN on NPU answers wrongly: the l"):
        judge(found, place, "portable-int8")
    assert found.rows < 10, "an emulated device is slow"
