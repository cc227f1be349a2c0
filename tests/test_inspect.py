"""A bundle is described as data and as lines that fit a terminal."""

import json
import shutil
from pathlib import Path

import pytest

from export.__main__ import main
from export.inspect import COLUMNS, damaged, describe, lines, named_folder
from runtime.errors import BundleError
from runtime.locate import cached_bundle
from runtime.manifest import Manifest

WEIGHTS = "target/int8/weights.data"


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))


def test_everything_in_the_manifest_is_described(tiny_bundle: Path) -> None:
    manifest = Manifest.load(tiny_bundle)
    found = describe(tiny_bundle)
    assert found["name"] == "tiny"
    assert found["source"]["licence"] == "apache-2.0"
    assert set(found["files"]) == set(manifest.files)
    assert (
        found["bytes"]
        == sum(path.stat().st_size for path in tiny_bundle.rglob("*") if path.is_file())
        - (tiny_bundle / "manifest.json").stat().st_size
    )
    target, draft = found["roles"]["target"], found["roles"]["draft"]
    assert target["geometry"]["layers"] == 2
    assert target["weights"] == manifest.target.geometry.weights
    assert target["graphs"]["fused-int8"]["lanes"] == [8, 32]
    assert target["graphs"]["portable-fp32"]["rows"] == [8, 64]
    assert target["graphs"]["portable-fp32"]["context"] == 256
    assert draft["graphs"]["fused-int4"]["parity"]["tokens_compared"] == 320
    assert json.loads(json.dumps(found)) == found


def test_hashes_are_compared_when_asked(copy: Path) -> None:
    assert {file["sha256_matches"] for file in describe(copy)["files"].values()} == {None}
    whole = describe(copy, verify=True)
    assert {file["sha256_matches"] for file in whole["files"].values()} == {True}
    assert damaged(whole) == []
    (copy / WEIGHTS).write_bytes(bytes((copy / WEIGHTS).stat().st_size))
    assert damaged(describe(copy)) == []
    assert damaged(describe(copy, verify=True)) == [WEIGHTS]


def test_the_lines_fit_and_name_every_graph_and_file(tiny_bundle: Path) -> None:
    found = describe(tiny_bundle, verify=True)
    text = list(lines(found))
    # The only line that may be longer is one that a folder's own name makes so.
    assert [line for line in text if len(line) > COLUMNS and " /" not in line] == []
    for name in [*found["files"], "fused-fp32", "portable-int8", "fused-int4", "apache-2.0"]:
        assert any(name in line for line in text)
    assert "    widths    bit-equal" in text
    assert any(line.startswith("    trees     logits differ by up to ") for line in text)
    assert any(line.endswith("weights.data  right") for line in text)
    assert any(line.endswith(" bytes  tokenizer_config.json  right") for line in text)


def test_the_command_prints_and_says_what_is_damaged(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(copy)]) == 0
    assert capsys.readouterr().out.startswith("bundle        tiny\n")
    assert main(["inspect", str(copy), "--json", "--verify"]) == 0
    assert json.loads(capsys.readouterr().out) == describe(copy, verify=True)
    (copy / WEIGHTS).write_bytes(bytes((copy / WEIGHTS).stat().st_size))
    assert main(["inspect", str(copy), "--verify"]) == 1
    said = capsys.readouterr()
    assert f"{WEIGHTS}  DAMAGED" in said.out
    assert said.err == f"error: {copy}: {WEIGHTS} damaged; build the bundle again.\n"


def test_the_command_on_what_is_no_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"error: {tmp_path} is not a bundle: it has no manifest.json.\n"


def test_what_the_cache_holds_of_a_model_is_found(tiny_gguf: Path, tmp_path: Path) -> None:
    for name in ("smollm2-135m", str(tiny_gguf)):
        place = cached_bundle(name, cache_dir=tmp_path)
        assert place is not None
        with pytest.raises(BundleError, match="Build"):
            named_folder(name, tmp_path)
        place.mkdir(parents=True)
        assert named_folder(name, tmp_path) == place
    assert cached_bundle(str(tmp_path), cache_dir=tmp_path) is None


def test_a_folder_comes_before_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    assert named_folder("smollm2-135m", tmp_path) == Path("smollm2-135m")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("smollm2-135m", "recipe smollm2-135m --out BUNDLE"),
        ("a model.gguf", "export gguf 'a model.gguf' --out BUNDLE"),
        ("letter.txt", "letter.txt is a file; a bundle is a folder"),
        ("absent", "no folder absent, and no recipe of that name. Recipes: smollm2-135m"),
    ],
)
def test_what_leads_to_no_bundle_is_answered(
    name: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a model.gguf").write_bytes(b"GGUF")
    (tmp_path / "letter.txt").write_bytes(b"dear")
    assert main(["inspect", name]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1
