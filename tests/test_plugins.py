"""Plug-in providers for real, those of them that are installed: every node there, near the CPU's.

The tests bring OpenVINO, and QNN where its HTP is emulated: on x86-64 Linux.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from export.calibrate import bounds_of
from export.graph import build_graphs, portable_context
from runtime import open_session
from runtime.errors import ProviderError, UsageError
from runtime.manifest import Flavour, Precision
from runtime.portable import PortableSession
from runtime.providers import PROVIDERS, Place, load, register, resolve, strays, version
from runtime.providers.arrays import TYPES
from runtime.providers.options import read_options
from runtime.wanted import best_first
from tests.graphs import TEXT, tiny_model
from tests.installed import each, needs

BOUNDS = {"OpenVINO": 1e-4, "QNN": 0.05}  # QNN computes in float16

every = each(*BOUNDS)


def feeds(session: Any) -> dict[str, NDArray[Any]]:
    """Random cached keys and values, all of which each row sees."""
    random = np.random.default_rng(3)
    given: dict[str, NDArray[Any]] = {}
    for item in session.get_inputs():
        values = random.normal(0, 0.1, item.shape) * ("float" in item.type)
        given[item.name] = values.astype(TYPES[item.type])
    return given | {"mask": np.zeros_like(given["mask"])}


@every
def test_a_portable_graph_runs_whole_and_near_the_cpus_answer(key: str, tiny_bundle: Path) -> None:
    path = tiny_bundle / "target" / "fp32" / "portable-8-rows.onnx"
    place = resolve("draft", provider=key)
    session = load(path, threads=1, name=place)
    assert strays(session, place) == {}
    given = feeds(session)
    known = load(path, threads=1).run(["logits"], given)[0]
    found = session.run(["logits"], given)[0]
    assert np.abs(found - known).max() < BOUNDS[key]
    assert np.abs(known).max() > BOUNDS[key]
    assert version(key)[0].isdigit()


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's static graphs that OpenVINO takes, in a folder for each precision."""
    model, folder = tiny_model(tmp_path_factory.mktemp("gguf")), tmp_path_factory.mktemp("graphs")
    bounds = bounds_of(model, [TEXT.tolist()])
    made: dict[Precision, tuple[Flavour, ...]]
    made = {"fp32": ("portable",), "fp16": ("portable",), "int8": ("portable", "npu")}
    for precision, flavours in made.items():
        (folder / precision).mkdir()
        build_graphs(model, precision, folder / precision, flavours=flavours, bounds=bounds)
    return folder


def answers(folder: Path, graph: str, hint: str | None = None) -> NDArray[np.float32]:
    """Logits of a text by the CPU provider; by OpenVINO where it is told a precision to compute in.

    All of the graph runs there, or loading would fail.
    """
    flavour, precision = graph.split("-")
    model = tiny_model(folder)
    files = {8: folder / precision / f"{flavour}-8-rows.onnx"}
    place = Place("CPU")
    if hint is not None:
        config = json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": hint}})
        place = resolve("draft", provider="OpenVINO", options={"load_config": config})
    slots = portable_context(model)
    session = PortableSession(files, model.geometry, slots=slots, threads=1, provider=place)
    return session.extend(TEXT[:30], num_logits=30).copy()


@needs("OpenVINO")
@pytest.mark.parametrize(
    ("graph", "hint", "bound"),
    [
        ("portable-fp16", "f32", 0.1),
        ("portable-fp16", "f16", 0.1),
        ("portable-int8", "f32", 2.0),
        ("npu-int8", "f16", 2.0),
    ],
)
def test_openvino_runs_halves_and_bytes_whole_and_near_float32(
    graph: str, hint: str, bound: float, graphs: Path
) -> None:
    known = answers(graphs, "portable-fp32")
    found, here = answers(graphs, graph, hint), answers(graphs, graph)
    assert np.abs(here - known).max() < bound, "what the graph itself costs"
    assert np.abs(found - known).max() < bound
    assert (found.argmax(axis=1) == known.argmax(axis=1)).mean() > 0.8
    assert np.ptp(known) > 5 * bound


@needs("OpenVINO")
def test_a_graph_that_is_no_number_in_float16_is_not_taken_where_that_is_computed_in(
    graphs: Path,
) -> None:
    assert np.isnan(answers(graphs, "portable-int8", "f16")).any()
    for kind in ("GPU", "NPU"):
        assert "portable-int8" not in best_first("draft", Place("OpenVINO", kind))


@every
def test_a_key_that_it_would_ignore_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match=f"provider {key} has no option 'cpu_fallback'"):
        resolve("draft", provider=key, options={"cpu_fallback": "1"})


@needs("OpenVINO")
def test_operators_may_run_on_the_cpu_where_that_is_allowed(tiny_bundle: Path) -> None:
    said: list[str] = []
    place = Place("OpenVINO", "CPU", report=said.append)
    load(tiny_bundle / "target" / "fp32" / "fused.onnx", threads=1, name=place)
    (line,) = said
    assert "fused.onnx runs on OpenVINO on CPU, except for CPUExecutionProvider: " in line
    assert "GroupQueryAttention" in line
    said.clear()
    load(tiny_bundle / "target" / "fp32" / "portable-8-rows.onnx", threads=1, name=place)
    assert said == []


@needs("OpenVINO")
def test_a_program_asks_for_a_device_with_options_of_its_own(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    """A folder for what OpenVINO compiles, and float32 as before."""
    config = {"CPU": {"CACHE_DIR": str(tmp_path / "compiled")}}
    with open_session(
        tiny_bundle,
        cache_dir=tmp_path,
        draft="none",
        device="CPU",
        execution_provider="openvino",
        provider_options={"load_config": json.dumps(config)},
    ) as session:
        assert session.settings["precision"] == "fp32"
        assert session.settings["devices"] == {"target": "OpenVINO on CPU"}
        assert session.settings["providers"] == {"target": "OpenVINOExecutionProvider"}
        text = "".join(session.generate("Once upon", max_new_tokens=6))
    with open_session(tiny_bundle, cache_dir=tmp_path, draft="none", precision="fp32") as session:
        assert "".join(session.generate("Once upon", max_new_tokens=6)) == text


def test_a_wrong_kind_of_backend_is_refused() -> None:
    """QNN would take it, and write garbage."""
    known = PROVIDERS["QNN"].options
    with pytest.raises(
        UsageError, match="backend_type of QNN is 'saver'; it takes htp, gpu or cpu"
    ):
        read_options("draft", "QNN", known, {"backend_type": "saver"})


@needs("QNN")
def test_a_backend_that_is_not_there_is_refused_by_loading(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    """QNN would take it, and compute on the CPU."""
    place = resolve(
        "draft", provider="QNN", options={"backend_path": str(tmp_path / "libQnnNone.so")}
    )
    with pytest.raises(ProviderError, match=r"QNN on NPU, but .* elsewhere \(CPUExecutionProvider"):
        load(tiny_bundle / "target" / "fp32" / "portable-8-rows.onnx", threads=1, name=place)


@needs("OpenVINO")
@pytest.mark.parametrize("kind", ["GPU", "NPU"])
def test_a_device_is_found_by_its_kind_where_a_policy_takes_another(
    kind: str, tiny_bundle: Path
) -> None:
    """Asked to prefer a GPU or an NPU where there is none, onnxruntime takes a CPU in silence."""
    register("OpenVINO")
    if any(device.device.type.name == kind for device in ort.get_ep_devices()):
        pytest.skip(f"this machine has a {kind}")
    policy = getattr(ort.OrtExecutionProviderDevicePolicy, f"PREFER_{kind}")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.set_provider_selection_policy(policy)
    graph = tiny_bundle / "target" / "fp32" / "portable-8-rows.onnx"
    session = ort.InferenceSession(str(graph), options)
    used = {part.ep_name for part in session.get_provider_graph_assignment_info()}
    on_cpu = {
        device.ep_name
        for device in ort.get_ep_devices()
        if device.device.type == ort.OrtHardwareDeviceType.CPU
    }
    assert used <= on_cpu
    with pytest.raises(ProviderError, match=f"asked for on {kind}, and there is no such device"):
        resolve("target", device=kind)
