"""The doctor as a program: what it prints where, and its exit codes, over scripted tries."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.doctor import main
from runtime.errors import BundleError, LateError, ProviderError
from runtime.manifest import FILE_NAME, Manifest
from runtime.providers import PROVIDERS
from tests.fake_doctor import FakeTasks, device, listed, place

GPU = listed(device("GPU", name="Arc"), package="onnxruntime-ep-webgpu 0.4.0", library="/w.so")
QNN = listed(device("NPU", emulated=True), package="onnxruntime-qnn 2.7.0")


def doctor(
    flags: str, tasks: FakeTasks | None = None, *bundles: Path, **environ: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    stdout, stderr, left = io.StringIO(), io.StringIO(), list(bundles)
    code = main(
        flags.split(),
        new_tries=(tasks or FakeTasks()).tries,
        locate=lambda *_, **__: left.pop(0),
        stdout=stdout,
        stderr=stderr,
        environ=environ,
    )
    return code, stdout.getvalue(), stderr.getvalue()


def tasks(**changes: Any) -> FakeTasks:
    """A machine with a GPU, and an NPU that software plays."""
    own = FakeTasks(**changes)
    own.listing = {"CPU": listed(device("CPU")), "WebGPU": GPU, "QNN": QNN}
    usual = {"target": place("WebGPU", "GPU"), "draft": place("QNN", "NPU", emulated=True)}
    own.places = {**usual, **own.places}
    return own


def test_all_providers_are_told_and_the_cpu_can_run() -> None:
    code, stdout, stderr = doctor("", tasks())
    assert code == 0, stderr
    for key in PROVIDERS:
        assert f"  {key} 1.2 (" in stdout or f"  No {key} here." in stdout
    assert "    GPU: Arc\n      a small graph runs right, off by 0.0001 of 0.3" in stdout
    assert "    NPU: no more is told, played by software" in stdout
    assert "The pair can run as asked: target on CPU, draft on CPU." in stdout
    assert "The best pair here: --device GPU." in stdout
    assert "for a try: --draft-device NPU --draft-execution-provider QNN. It is" in stdout
    assert "--time-limit 600.\n" in stdout
    assert "Trying WebGPU on GPU." in stderr


@pytest.fixture
def for_npu(tiny_bundle: Path, tmp_path: Path) -> Path:
    """The bundle, its draft's graph called one in float16: nobody loads it here."""
    folder = shutil.copytree(tiny_bundle, tmp_path / "npu")
    manifest = Manifest.load(folder)
    assert manifest.draft is not None
    graph = replace(manifest.draft.graphs["portable-fp32"], precision="fp16")
    draft = replace(manifest.draft, graphs={"portable-fp16": graph})
    (folder / FILE_NAME).unlink()
    replace(manifest, draft=draft).save(folder)
    return folder


def test_a_pair_that_can_run(for_npu: Path) -> None:
    code, stdout, stderr = doctor(
        "-m tiny --device GPU -e WebGPU --draft-execution-provider QNN", tasks(), for_npu
    )
    assert code == 0, stderr
    assert "target on WebGPU on GPU\n  tiny portable-fp32: " in stdout
    assert "draft on QNN on NPU, which software plays\n  tiny portable-fp16: " in stdout
    assert "    nodes: 7 on WebGpuExecutionProvider\n" in stdout
    assert "off by 0.01 of 8, 27 of 27 rows choose the same token; 3 s\n    it runs\n" in stdout
    assert "memory: about " in stdout


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"places": {"target": ProviderError("No GPU.")}}, "target: No GPU."),
        (
            {"smoke": {"WebGPU": ProviderError("No supported adapters")}},
            "target: No supported adapters\n",
        ),
        (
            {"trials": {"QNN": LateError("It was not done after 55 s, the time limit.")}},
            "draft: It was not done after 55 s, the time limit.\n  advice:",
        ),
    ],
)
def test_a_pair_that_cannot_run_fails_and_says_why(
    changes: dict[str, Any], says: str, for_npu: Path
) -> None:
    flags = "-m tiny --device GPU --draft-device NPU"
    code, stdout, _ = doctor(flags, tasks(**changes), for_npu)
    assert code == 1
    late = "time limit" in says
    assert f"The pair {'was not shown to' if late else 'cannot'} run as asked" in stdout
    assert ("    not done in time: a larger --time-limit may show" in stdout) is late
    assert ("it does not run" in stdout) is False
    assert says in stdout


def test_a_bundle_without_a_graph_for_the_npu_is_told_what_builds_one(tiny_bundle: Path) -> None:
    own = tasks(trials={"QNN": ProviderError("It must not be tried.")})
    code, stdout, _ = doctor("-m tiny --device GPU --draft-device NPU", own, tiny_bundle)
    assert code == 1
    assert "has no draft graph for QNN on NPU, which takes npu-int8, npu-int4, portable" in stdout
    assert "Build one: python -m export gguf " in stdout
    assert ",draft/npu-int8 --out " in stdout


def test_another_precision_is_named_where_one_fails(tiny_bundle: Path) -> None:
    own = tasks(trials={"OpenVINO": ProviderError("No numbers.")})
    own.listing = {**own.listing, "OpenVINO": listed(device("CPU"))}
    own.places = {"target": place("OpenVINO", "CPU")}
    code, stdout, _ = doctor("-m tiny -e OpenVINO", own, tiny_bundle)
    assert code == 1
    assert "advice: The bundle has other graphs for OpenVINO on CPU: --precision int8.\n" in stdout
    code, stdout, _ = doctor("-m tiny -e OpenVINO --report", own, tiny_bundle)
    assert (code, "other graphs" in stdout) == (1, False)


def test_the_surroundings_decide_the_advice() -> None:
    own = tasks(smoke={"WebGPU": ProviderError("It failed.")})
    hint = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1"
    assert (hint in doctor("", own)[1]) == (hint in doctor("", own, HOME="/")[1])
    assert hint not in doctor("", own, ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER="1")[1]


def test_json_is_one_document_and_nothing_else(tiny_bundle: Path) -> None:
    infinite = {"largest_difference": float("nan"), "spread": 0.3, "right": False, "seconds": 0.1}
    own = tasks(smoke={"QNN": infinite})
    code, stdout, _ = doctor("-m tiny -e WebGPU --json", own, tiny_bundle)
    assert code == 0
    found = json.loads(stdout, parse_constant=pytest.fail)
    assert (found["format"], found["version"]) == ("mirror-doctor", 1)
    assert [each["provider"] for each in found["providers"]] == list(PROVIDERS)
    by_key = {each["provider"]: each for each in found["providers"]}
    assert by_key["QNN"]["devices"][0]["smoke"]["largest_difference"] is None
    assert by_key["QNN"]["devices"][0]["smoke"]["verdict"] == "wrong"
    assert by_key["CUDA"]["reason"] == "No CUDA here."
    target, draft = found["pair"]["roles"]
    assert (target["place"]["words"], target["graphs"][0]["name"]) == (
        "WebGPU on GPU",
        "portable-fp32",
    )
    assert draft["place"]["words"] == "CPU"
    assert found["pair"]["can_run"] is True
    assert "gives no numbers" not in stdout


def test_a_wrong_small_graph_is_told_whatever_it_gave() -> None:
    infinite = {"largest_difference": float("inf"), "spread": 0.3, "right": False, "seconds": 0.1}
    code, stdout, _ = doctor("-e WebGPU", tasks(smoke={"WebGPU": infinite}))
    assert code == 1
    assert "a small graph runs wrong, no numbers, in 0.1 s" in stdout
    assert "WebGPU on GPU computes wrongly" in stdout


def test_rows_are_for_the_table_of_the_page(tiny_bundle: Path) -> None:
    greedy = {"largest_difference": 0.5, "spread": 10.0, "rows": 4, "equal": 3}
    own = tasks(greedy={"WebGPU": greedy})
    own.nodes = {"WebGPU": {"WebGpuExecutionProvider": {"MatMul": 7}}}
    code, stdout, _ = doctor("-m tiny -e WebGPU --report --tokens 4", own, tiny_bundle)
    assert code == 0
    (row,) = stdout.splitlines()
    assert row.startswith(
        "| WebGPU | onnxruntime-ep-webgpu 0.4.0 | portable | fp32 | tiny, target, on Arc | "
        "0.5 of 10 | 3 of 4 | "
    )
    assert row.count("|") == 9
    own.greedy = {"WebGPU": ProviderError("Not done.")}
    code, stdout, stderr = doctor("-m tiny -e WebGPU --report", own, tiny_bundle)
    assert (code, "| 0.01 of 8 | not done | " in stdout) == (0, True)
    assert "Not done." in stderr


def test_a_row_of_a_graph_that_fails_says_so(tiny_bundle: Path) -> None:
    own = tasks(nodes={"WebGPU": ProviderError("It | ended.\nBy SIGSEGV.")})
    code, stdout, stderr = doctor("-m tiny -e WebGPU --report", own, tiny_bundle)
    assert code == 1
    assert "| fails: It / ended. By SIGSEGV. | – | " in stdout
    assert stdout.count("|") == 9
    assert "target: It | ended." in stderr
    code, stdout, _ = doctor("-m tiny -e WebGPU --report --precision int8", own, tiny_bundle)
    assert (code, stdout) == (2, ""), "it takes none"


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ("--device XPU", 2, "'XPU' is no device"),
        ("--devise GPU", 2, "did you mean --device"),
        ("-e Foo", 2, "'Foo', which is not known"),
        ("--ep-library Foo=x.so", 2, "'Foo', which is not known"),
        ("--allow-cpu-fallback", 2, "--allow-cpu-fallback is for devices"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_tried(flags: str, code: int, says: str) -> None:
    own = FakeTasks(places={"target": {"usage": "'XPU' is no device"}})
    found, stdout, stderr = doctor(flags, own)
    assert (found, stdout) == (code, "")
    assert says in stderr
    assert [task for task, _ in own.asked] in ([], ["place"])


def test_a_draft_that_is_asked_for_must_be_there(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = replace(Manifest.load(tiny_bundle), draft=None)
    monkeypatch.setattr(Manifest, "load", lambda _: replace(alone))
    code, _, stderr = doctor("-m tiny --draft-device NPU", tasks(), tiny_bundle)
    assert (code, "has no draft model, and one was asked for" in stderr) == (2, True)
    code, stdout, _ = doctor("-m tiny -e WebGPU", tasks(), tiny_bundle)
    assert code == 0
    assert "\ndraft on" not in stdout
    code, stdout, _ = doctor("-m tiny -md other -e WebGPU", tasks(), tiny_bundle, tiny_bundle)
    assert (code, "\ndraft on CPU\n  tiny fused-" in stdout) == (0, True), "lent by its target"


def test_a_model_that_cannot_be_found_is_an_error() -> None:
    def locate(*_: Any, **__: Any) -> Path:
        raise BundleError("There is no such bundle.")

    stderr = io.StringIO()
    code = main(
        ["-m", "x"], new_tries=FakeTasks().tries, locate=locate, stdout=io.StringIO(), stderr=stderr
    )
    assert (code, "mirror-doctor: There is no such bundle." in stderr.getvalue()) == (1, True)


def test_an_interrupt_is_quiet() -> None:
    class Interrupted(FakeTasks):
        def ask(self, *_: Any, **__: Any) -> dict[str, Any]:
            raise KeyboardInterrupt

    code, stdout, stderr = doctor("", Interrupted())
    assert (code, stdout, stderr.splitlines()[-1]) == (130, "", "Interrupted.")


def test_help_and_version_are_said_on_standard_output() -> None:
    code, stdout, stderr = doctor("--version")
    assert (code, stdout.split()[0], stderr) == (0, "mirror-doctor", "")
    assert "examples:" in doctor("--help")[1]


def test_the_page_explains_every_key_of_the_document(tiny_bundle: Path) -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "doctor.md").read_text("utf-8")
    found = json.loads(doctor("-m tiny -e WebGPU --json", tasks(), tiny_bundle)[1])
    role = found["pair"]["roles"][0]
    graph = role["graphs"][0]
    device = found["providers"][0]["devices"][0]
    for part in (found, found["pair"], role, role["place"], graph, graph["trial"], device):
        assert {key for key in part if f"`{key}`" not in page} == set()
    assert {key for key in found["providers"][0] if f"`{key}`" not in page} == set()
    assert {key for key in device["smoke"] if f"`{key}`" not in page} == set()
