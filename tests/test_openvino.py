"""OpenVINO's own CPU device: every node there or none, in float32, beside the CPU provider."""

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import providers
from runtime.branches import Branches
from runtime.errors import BundleError, ProviderError
from runtime.flavours import open_graph
from runtime.manifest import Manifest
from runtime.portable import PortableSession
from runtime.providers import Place, key_of, load, loading, resolve

pytestmark = pytest.mark.skipif(
    find_spec("onnxruntime_ep_openvino") is None, reason="OpenVINO is not installed"
)


def computes_in_bfloat16() -> bool:
    try:
        return "bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


@pytest.mark.parametrize("threads", [1, 3])
def test_openvino_is_asked_for_float32_and_for_no_more_threads_than_given(threads: int) -> None:
    config = json.loads(providers.PROVIDERS["OpenVINO"].defaults("CPU", threads)["load_config"])
    assert config == {
        "CPU": {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": str(threads),
            "NUM_STREAMS": "1",
            "ENABLE_CPU_PINNING": "NO",
        }
    }


def test_a_provider_from_a_package_is_found_by_any_of_its_names() -> None:
    for name in ("OpenVINO", "openvino", "OpenVINOExecutionProvider"):
        assert key_of("draft", name) == "OpenVINO"
        assert resolve("draft", provider=name) == Place("OpenVINO", "CPU")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("rows", [8, 64])
def test_openvino_runs_every_node_of_a_portable_graph(
    rows: int, precision: str, tiny_bundle: Path
) -> None:
    path = tiny_bundle / "target" / precision / f"portable-{rows}-rows.onnx"
    session = load(path, threads=1, name="OpenVINO", sharing="at once")
    parts = session.get_provider_graph_assignment_info()
    assert {part.ep_name for part in parts} == {"OpenVINOExecutionProvider"}
    assert sum(len(part.get_nodes()) for part in parts) > 50


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_fused_graph_on_openvino_is_refused_with_its_operators(
    precision: str, tiny_bundle: Path
) -> None:
    message = (
        r"fused\.onnx was to run on OpenVINO on CPU, but onnxruntime put operators elsewhere "
        r"\(CPUExecutionProvider: \d+ GroupQueryAttention.*\)\. --allow-cpu-fallback"
    )
    with pytest.raises(ProviderError, match=message):
        load(tiny_bundle / "target" / precision / "fused.onnx", threads=1, name="OpenVINO")


def test_a_file_that_openvino_cannot_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    for name in ("absent", "noise"):
        message = (
            rf"{name}\.onnx cannot be loaded on OpenVINO on CPU: \S.*; .*build the bundle again"
        )
        with pytest.raises(BundleError, match=message):
            load(tmp_path / f"{name}.onnx", threads=1, name="OpenVINO")


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-4), ("int8", 0.02)])
def test_openvino_computes_what_the_processors_own_provider_does(
    precision: str, bound: float, tiny_bundle: Path
) -> None:
    on_cpu, on_openvino = (logits_on(name, tiny_bundle, precision) for name in ("CPU", "OpenVINO"))
    np.testing.assert_allclose(on_openvino, on_cpu, rtol=0, atol=bound)


def opened_on(name: str, bundle: Path, precision: str = "fp32") -> PortableSession:
    manifest = Manifest.load(bundle)
    graph = manifest.graph("target", precision, flavour="portable")
    session = open_graph(bundle, graph, manifest.target.geometry, provider=name, threads=1)
    assert isinstance(session, PortableSession)
    return session


def test_every_call_is_read_anew(tiny_bundle: Path) -> None:
    """Many calls of one graph: new tokens, cut texts, branches and another arena."""
    sessions = [opened_on(name, tiny_bundle) for name in ("CPU", "OpenVINO")]
    text = np.random.default_rng(5).integers(0, 200, 60)
    found: list[list[NDArray[np.float32]]] = [[], []]
    for session, seen in zip(sessions, found, strict=True):
        seen += [session.extend(text[:end], num_logits=2).copy() for end in (2, 3, 7, 30, 31)]
        session.crop(9)
        seen.append(session.extend(text[::-1][:12]).copy())
        branches = Branches((5, 6, 7, 8, 9), (12, 13, 13, 8, 16))
        seen.append(session.extend(text[::-1][:13], branches=branches).copy())
        session.use(session.new_cache(20))
        seen += [session.extend(text[5 : 5 + count]).copy() for count in (1, 2, 3)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-4)
    assert len({rows[-1].tobytes() for rows in found[1]}) == len(found[1])


def logits_on(name: str, bundle: Path, precision: str) -> NDArray[np.float32]:
    return opened_on(name, bundle, precision).extend(np.arange(100), num_logits=100).copy()


@pytest.mark.skipif(not computes_in_bfloat16(), reason="this processor has no bfloat16")
def test_bfloat16_would_be_seen(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left alone, the device is a thousand times further off than the bound on float32."""
    wanted = logits_on("CPU", tiny_bundle, "fp32")
    known = providers.PROVIDERS
    left_alone = dataclasses.replace(
        known["OpenVINO"],
        defaults=lambda _kind, _threads: {},
        merge=lambda defaults, _asked: defaults,
    )
    monkeypatch.setattr(loading, "PROVIDERS", {**known, "OpenVINO": left_alone})
    lost = np.abs(logits_on("OpenVINO", tiny_bundle, "fp32") - wanted).max()
    assert lost > 1e-2
