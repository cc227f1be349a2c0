"""Sessions run where they were asked to, and a bad file is named in a sentence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from runtime.errors import BundleError, ProviderError
from runtime.providers import bind, input_type, load, pinned, usable_cores

Arrays = dict[str, NDArray[Any]]
ROOT = Path(__file__).resolve().parent.parent

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system pins no threads"
)


def copied(tiny_bundle: Path, folder: Path) -> Path:
    """A graph with its weights, to damage."""
    shutil.copytree(tiny_bundle / "target" / "int8", folder / "graph")
    return folder / "graph" / "fused.onnx"


def test_usable_cores_are_in_order_and_those_of_the_process() -> None:
    cores = usable_cores()
    assert cores == sorted(set(cores))
    assert cores
    if hasattr(os, "sched_getaffinity"):
        assert set(cores) == os.sched_getaffinity(0)


def test_without_affinities_every_core_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == [0, 1, 2]
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == [0]


@needs_affinity
def test_a_thread_is_pinned_and_set_free_again() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    with pinned(core):
        assert os.sched_getaffinity(0) == {core}
        with pinned(min(before)):
            assert os.sched_getaffinity(0) == {min(before)}
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(KeyError), pinned(core):
        raise KeyError
    assert os.sched_getaffinity(0) == before
    with pinned(None):
        assert os.sched_getaffinity(0) == before


def test_a_system_that_cannot_pin_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pinned(0):
        pass


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BundleError, match=r"absent\.onnx cannot be loaded on CPU: .*build the bundle"
    ):
        load(tmp_path / "absent.onnx", threads=1)


@pytest.mark.parametrize("content", ["nothing", "noise", "half", "no graph"])
def test_a_damaged_graph_is_named(content: str, tiny_bundle: Path, tmp_path: Path) -> None:
    path = copied(tiny_bundle, tmp_path)
    whole = path.read_bytes()
    damaged = {
        "nothing": b"",
        "noise": np.random.default_rng(0).bytes(3000),
        "half": whole[: len(whole) // 2],
        "no graph": b"{}\n",
    }
    path.write_bytes(damaged[content])
    with pytest.raises(
        BundleError, match=r"fused\.onnx cannot be loaded on CPU: \S.*; build the bundle"
    ):
        load(path, threads=1)


@pytest.mark.parametrize("bytes_left", [None, 0, 5000])
def test_weights_that_are_missing_or_cut_are_an_error(
    bytes_left: int | None,
    tiny_bundle: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = copied(tiny_bundle, tmp_path)
    data = path.with_name("weights.data")
    if bytes_left is None:
        data.unlink()
    else:
        os.truncate(data, bytes_left)
    with pytest.raises(
        BundleError, match=r"fused\.onnx cannot be loaded on CPU: .*build"
    ) as caught:
        load(path, threads=1)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", ""), "the sentence is the caller's to show"


class Recorded:
    """Stands for an onnxruntime session and keeps what it was opened with."""

    options: ort.SessionOptions
    used: tuple[str, ...] = ("CPUExecutionProvider",)
    fallback = True

    def __init__(self, path: str, options: ort.SessionOptions, *, providers: list[str]) -> None:
        type(self).options, self.asked = options, providers

    def disable_fallback(self) -> None:
        self.fallback = False

    def get_providers(self) -> list[str]:
        return list(self.used)


def entry(options: ort.SessionOptions, name: str) -> str | None:
    """A setting of a session; None where it was left alone."""
    try:
        return str(options.get_session_config_entry(f"session.{name}"))
    except RuntimeError:
        return None


@pytest.mark.parametrize(
    ("settings", "affinities", "spinning"),
    [
        ({"threads": 1}, None, None),
        ({"threads": 3}, None, None),
        ({"threads": 1, "cores": (4,)}, None, None),  # the caller pins itself
        ({"threads": 2, "cores": (4, 6)}, "7", None),  # onnxruntime counts from one
        ({"threads": 3, "cores": (0, 1, 9), "sharing": "at once"}, "2;10", "0"),
        ({"threads": 3, "cores": (0, 1)}, None, None),  # no core for each
        ({"threads": 2, "sharing": "at once"}, None, "0"),
        ({"threads": 2, "sharing": "in turn"}, None, None),
    ],
)
def test_threads_get_the_cores_they_were_given(
    settings: dict[str, Any],
    affinities: str | None,
    spinning: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ort, "InferenceSession", Recorded)
    session: Any = load(Path("model.onnx"), **settings)
    assert session.options.intra_op_num_threads == settings["threads"]
    assert session.options.inter_op_num_threads == 1
    assert entry(session.options, "intra_op_thread_affinities") == affinities
    assert entry(session.options, "intra_op.allow_spinning") == spinning
    stop = "1" if settings.get("sharing") == "in turn" else None
    assert entry(session.options, "force_spinning_stop") == stop
    assert session.asked == ["CPUExecutionProvider"]
    assert session.fallback is False


def test_another_provider_than_the_one_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Elsewhere(Recorded):
        used = ("AzureExecutionProvider", "CPUExecutionProvider")

    monkeypatch.setattr(ort, "InferenceSession", Elsewhere)
    with pytest.raises(ProviderError, match=r"model\.onnx was to run on CPU.* chose .*Azure"):
        load(Path("model.onnx"), threads=1)


def test_a_graph_runs_pinned_with_two_threads(tiny_bundle: Path) -> None:
    cores = usable_cores()
    pair = (cores[0], cores[-1])
    path = tiny_bundle / "target" / "int8" / "integer-probe.onnx"
    session = load(path, threads=2, cores=pair, sharing="at once")
    with pinned(pair[0]):
        product, _ = session.run(None, {"bytes": np.full((3, 256), 128, np.uint8)})
    assert (product == 0).all()


def test_the_type_of_an_input_is_read_from_the_graph(tiny_bundle: Path) -> None:
    session = load(tiny_bundle / "target" / "fp32" / "portable-8-rows.onnx", threads=1)
    assert input_type(session, "mask") == np.float32
    assert input_type(session, "tokens") == np.int32
    with pytest.raises(BundleError, match="no input absent of a known type"):
        input_type(session, "absent")


def test_arrays_are_read_and_written_where_they_lie(tiny_bundle: Path) -> None:
    session = load(tiny_bundle / "target" / "int8" / "integer-probe.onnx", threads=1)
    binding = session.io_binding()
    inputs: Arrays = {"bytes": np.full((3, 256), 129, np.uint8)}
    outputs: Arrays = {
        "product": np.empty((3, 64), np.float32),
        "weights": np.empty((256, 64), np.int8),
    }
    bind(binding, inputs, outputs)
    session.run_with_iobinding(binding)
    sums = outputs["weights"].sum(axis=0, dtype=np.int64)
    np.testing.assert_array_equal(outputs["product"], np.tile(sums, (3, 1)))
    inputs["bytes"][1] = 128
    session.run_with_iobinding(binding)
    assert not outputs["product"][1].any()


def test_onnxruntime_reports_nothing_to_its_makers(tmp_path: Path) -> None:
    """Its import alone writes a device id where its reports are not turned off."""
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    program = "import runtime.providers, onnxruntime; onnxruntime.SessionOptions()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True)
    assert not list(tmp_path.rglob("*deviceid*"))
