"""The doctor for real, on this machine: its children, and what providers print."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from runtime.doctor_tries import Tries, ask
from runtime.errors import ProviderError
from runtime.manifest import Manifest
from runtime.providers import PROVIDERS, Place

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    find_spec("onnxruntime_ep_openvino") is None, reason="OpenVINO is not installed"
)


def test_every_device_here_computes_right_and_the_target_runs_on_openvino(
    tiny_bundle: Path,
) -> None:
    command = [sys.executable, "-m", "runtime.doctor", "-m", str(tiny_bundle), "-e", "OpenVINO"]
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)  # whatever providers print
    by_key = {each["provider"]: each for each in found["providers"]}
    for key, provider in PROVIDERS.items():
        installed = provider.package is not None and find_spec(provider.package) is not None
        assert by_key[key]["installed"] or not installed, by_key[key]
        for device in by_key[key]["devices"]:
            assert device["smoke"]["verdict"] == "right", (key, device)
    target, draft = found["pair"]["roles"]
    (graph,) = target["graphs"]
    assert list(graph["nodes"]) == ["OpenVINOExecutionProvider"]
    assert graph["trial"]["equal"] == graph["trial"]["rows"] > 20
    assert graph["trial"]["largest_difference"] < 1e-3
    assert [each["name"] for each in draft["graphs"]] == ["fused-int4"]


def test_greedy_tokens_are_compared_in_a_child(tiny_bundle: Path) -> None:
    manifest, said = Manifest.load(tiny_bundle), [""]
    graph = manifest.target.graphs["portable-fp32"]
    tries = Tries(said.append, {}, 55.0)
    found = tries.greedy(manifest, "target", graph, Place("OpenVINO", "CPU"), 3)
    assert (found["rows"], found["equal"]) == (3, 3)
    assert 0 < found["largest_difference"] < 1e-3 * found["spread"]
    assert "Comparing 3 tokens of target/fp32/portable" in said[-1]


def test_a_provider_that_ends_the_process_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "onnxruntime_ep_migraphx.py"
    package.write_text("import os\ndef get_library_path(): os.abort()\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ProviderError, match=r"Listing MIGraphX ended its process, .*SIGABRT"):
        ask("listing", {"libraries": {"MIGraphX": None}}, "Listing MIGraphX", 55.0)
