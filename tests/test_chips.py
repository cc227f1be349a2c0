"""`python -m export compile`: for chips that are elsewhere, where a session finds it."""

import platform
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from export.__main__ import main
from runtime import providers
from runtime.errors import ProviderError
from runtime.flavours import choose_graph, graph_files
from runtime.locate import cached_bundles
from runtime.manifest import Manifest
from tests.test_plugins import feeds

with_qnn = pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="QNN is not installed")


@pytest.fixture(autouse=True)
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.fixture(scope="module")
def bundle(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random model as the NPU takes it."""
    folder = tmp_path_factory.mktemp("npu") / "bundle"
    graphs = "target/portable-fp16,draft/npu-int8"
    assert main(["gguf", str(tiny_gguf), "--graphs", graphs, "--out", str(folder)]) == 0
    return folder


@with_qnn
def test_two_chips_by_name_and_number_are_compiled_once_and_found_by_a_session(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compiled"
    command = ["compile", str(bundle), "--role", "target", "--out", str(out)]
    chips = ["--chip", "sm8650", "--chip", "69", "--chip", "57"]
    options = ["--provider-option", "vtcm_mb=4"]
    assert main([*command, *chips, *options]) == 0
    said = capsys.readouterr().err
    assert "target, portable-fp16, for chip 57 (SM8650)\n" in said
    assert said.count("Compiled portable-") == len(list(out.glob("portable-*"))) == 4
    assert "soc_model=57 or soc_model=69 a provider option" in said
    assert main([*command, *chips, *options]) == 0
    assert "ompiling" not in capsys.readouterr().err

    def compiled_again(line: str) -> None:
        raise AssertionError(line)

    asked = {"soc_model": "57", "vtcm_mb": "4", "htp_performance_mode": "burst"}
    place = providers.resolve("target", provider="QNN", options=asked)
    graph = choose_graph(Manifest.load(bundle), "target", place)
    files = graph_files(bundle, graph)
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
            "--chip 57 --graph portable-fp32",
            2,
            "The graph portable-fp32 is not for QNN on NPU, which takes npu-int8, npu-int4, portab",
        ),
        (
            "--chip 57 --graph npu-int4",
            1,
            "has no target/npu-int4 for QNN on NPU; it has target/portable-fp16, draft/npu-int8. "
            "Build one: python -m export gguf ",
        ),
        ("--chip 200", 1, "cannot be compiled for chip 200, which has no known name. Look whether"),
        ("--chip 57 --provider-option soc=1", 2, "has no option 'soc'"),
        ("--chip 57 --provider-option soc_model=60", 2, "soc_model is what --chip says"),
    ],
)
def test_what_cannot_be_is_refused_with_what_there_is(
    flags: str,
    code: int,
    sentence: str,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fixed = ["--role", "target", "--out", str(tmp_path / "out")]
    assert main(["compile", str(bundle), *flags.split(), *fixed]) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert "--allow-cpu-fallback" not in said, "which it does not have"
    assert list((tmp_path / "out").glob("portable-*")) == []


@with_qnn
def test_a_usual_bundle_is_told_what_builds_one_that_can_be_compiled(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compile", str(tiny_bundle), "--chip", "57", "--out", str(tmp_path / "out")]
    assert main([*command, "--role", "draft"]) == 1
    build = "target/portable-fp32,target/portable-int8,draft/npu-int8 --out "
    said = capsys.readouterr().err
    assert "has no draft/npu-int8 for QNN on NPU; it has target/fused-fp32, " in said
    assert build in said.partition("Build one: python -m export gguf ")[2]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "has no target/portable-fp16 and draft/npu-int8 for QNN on NPU; it has" in said
    assert "--graphs target/portable-fp16,draft/npu-int8 --out " in said


@with_qnn
def test_what_the_cache_has_of_a_model_for_the_npu_is_taken(
    bundle: Path,
    tiny_gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "mirror-sd"
    found = cached_bundles(str(tiny_gguf), {"draft": "npu-int8"}, cache_dir=cache)
    assert found is not None
    (first,), arguments = found
    command = ["compile", str(tiny_gguf), "--chip", "sm8650"]
    assert main([*command, "--role", "draft"]) == 1
    build = shlex.join(["python", "-m", "export", *arguments])
    assert capsys.readouterr().err.endswith(
        f"with draft/npu-int8 for QNN on NPU. Build one: {build}\n"
    )
    assert arguments[2:] == ["--graphs", "target/usual,draft/npu-int8", "--out", str(first)]
    other = first.with_name(first.name.replace("-draft", "-target-portable-fp16-draft"))
    shutil.copytree(bundle, other)
    assert main([*command, "--role", "draft"]) == 0
    assert f"The bundle {other}\ndraft, npu-int8, for chip 57 (SM8650)\n" in capsys.readouterr().err
    assert main([*command, "--graph", "npu-int4"]) == 1
    said = capsys.readouterr().err
    assert "with target/npu-int4 and draft/npu-int4 for QNN on NPU, or name one model by " in said


@with_qnn
def test_a_file_is_no_folder_to_put_it_in(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "README.md"
    file.touch()
    assert main(["compile", str(bundle), "--chip", "57", "--out", str(file)]) == 1
    assert capsys.readouterr().err == (
        f"error: Nothing can be put in {file} (it is a file): name another folder with --out.\n"
    )


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
