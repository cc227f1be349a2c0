"""`python -m export compile`: for chips that are elsewhere, where a session finds it."""

import platform
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from export.__main__ import main
from runtime import providers
from runtime.errors import ProviderError
from runtime.flavours import choose_graph, graph_files
from runtime.manifest import Manifest
from tests.test_plugins import feeds

with_qnn = pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="QNN is not installed")


@pytest.fixture(autouse=True)
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@with_qnn
def test_two_chips_by_name_and_number_are_compiled_once_and_found_by_a_session(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compiled"
    command = ["compile", str(tiny_bundle), "--role", "target", "--out", str(out)]
    chips = ["--chip", "sm8650", "--chip", "69", "--chip", "57"]
    options = ["--provider-option", "vtcm_mb=4"]
    assert main([*command, *chips, *options]) == 0
    said = capsys.readouterr().err
    assert "target, portable-fp32, for chip 57 (SM8650)\n" in said
    assert said.count("Compiled portable-") == len(list(out.glob("portable-*"))) == 4
    assert "soc_model=57 or soc_model=69 a provider option" in said
    assert main([*command, *chips, *options]) == 0
    assert "ompiling" not in capsys.readouterr().err

    def compiled_again(line: str) -> None:
        raise AssertionError(line)

    asked = {"soc_model": "57", "vtcm_mb": "4", "htp_performance_mode": "burst"}
    place = providers.resolve("target", provider="QNN", options=asked)
    graph = choose_graph(Manifest.load(tiny_bundle), "target", place)
    files = graph_files(tiny_bundle, graph)
    for path in files:
        assert providers.keep(path, place.keeping(out, compiled_again)) is not None
    for chip in ("57", "69"):
        place = providers.resolve("target", provider="QNN", options=asked | {"soc_model": chip})
        plain, kept = (
            providers.load(files[0], threads=1, name=each)
            for each in (place, place.keeping(out, compiled_again))
        )
        given = feeds(plain)
        assert np.array_equal(*(each.run(["logits"], given)[0] for each in (plain, kept)))


@with_qnn
@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        ("--chip SM9999", 2, "There is no chip 'SM9999'. Known are SM8350 (30), SM8325 (34), "),
        ("--chip 0", 2, "There is no chip '0'. "),
        ("--chip -1", 2, "There is no chip '-1'. "),
        (
            "--chip 57 --graph fused-fp32",
            2,
            "for QNN on NPU; it has portable-fp32.",
        ),
        ("--chip 57 --graph npu-int4", 2, "has no graph npu-int4 for QNN on NPU; it has portable-"),
        ("--chip 57 --graph portable-int8", 2, "has no graph portable-int8 for QNN on NPU; it "),
        ("--chip 200", 1, "cannot be compiled for chip 200: "),
        ("--chip 57 --provider-option soc=1", 2, "has no option 'soc'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_there_is(
    flags: str,
    code: int,
    sentence: str,
    tiny_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fixed = ["--role", "target", "--out", str(tmp_path / "out")]
    assert main(["compile", str(tiny_bundle), *flags.split(), *fixed]) == code
    assert sentence in capsys.readouterr().err
    assert list((tmp_path / "out").glob("portable-*")) == []


def test_another_machine_and_a_missing_provider_say_what_to_do(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> None:
        raise ProviderError("QNN is not installed: python -m pip install onnxruntime-qnn")

    command = ["compile", str(tiny_bundle), "--chip", "57"]
    monkeypatch.setattr(sys.modules["runtime.providers.devices"], "register", missing)
    assert main(command) == 1
    assert "python -m pip install onnxruntime-qnn" in capsys.readouterr().err
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert main(command) == 1
    assert "(arm64) cannot compile for another: do it on x86-64." in capsys.readouterr().err
    assert main(command[:2]) == 2, "a chip must be named"
    assert main(["compile", "--chip", "57", str(tiny_bundle / "none")]) == 1
