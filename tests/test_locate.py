"""What a name means, and when a bundle is built for it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime.errors import BundleError, UsageError
from runtime.graph_names import DEFAULT_GRAPHS
from runtime.locate import known_recipes, locate_bundle
from runtime.manifest import Manifest, RoleName
from tests.locating import RECIPE, Builder, locate, write_bundle, write_gguf


def test_recipes_are_the_json_files_with_a_source(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"source": {}}')
    (tmp_path / "prompts.json").write_text('["a"]')
    (tmp_path / "device.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "notes.txt").write_text('{"source": {}}')
    assert known_recipes(tmp_path) == {"good": tmp_path / "good.json"}


def test_first_use_builds_and_later_use_does_not(tmp_path: Path) -> None:
    build = Builder()
    folder, said = locate(RECIPE, tmp_path, build)
    keep = ["--keep-fetched", str(tmp_path / "fetched")]
    assert build.calls == [["recipe", RECIPE, *keep, "--out", str(folder)]]
    assert folder.is_relative_to(tmp_path)
    assert Manifest.load(folder).name == "tiny"
    assert str(folder) in " ".join(said)
    assert locate(RECIPE, tmp_path, build) == (folder, [])
    assert len(build.calls) == 1


@pytest.mark.parametrize(
    ("graphs", "named"),
    [
        ({"target": "gpu-fp16"}, "target/gpu-fp16,draft/usual"),
        ({"draft": "npu-int8"}, "target/usual,draft/npu-int8"),
        ({"target": "gpu-fp16", "draft": "npu-int8"}, "target/gpu-fp16,draft/npu-int8"),
        ({"target": "portable-fp32", "draft": "npu-int8"}, "target/usual,draft/npu-int8"),
        ({"draft": "portable-fp32"}, None),
        ({"target": "portable-fp32", "draft": "portable-fp32"}, None),
    ],
)
def test_graphs_that_the_usual_bundle_lacks_are_built_in_a_folder_of_their_own(
    graphs: Mapping[RoleName, str], named: str | None, tmp_path: Path
) -> None:
    build = Builder()
    usual, _ = locate(RECIPE, tmp_path, build)
    folder, said = locate(RECIPE, tmp_path, build, graphs=graphs)
    if named is None:
        assert (folder, said, len(build.calls)) == (usual, [], 1)
        return
    own = [name for name in named.split(",") if not name.endswith("usual")]
    keep = ["--keep-fetched", str(tmp_path / "fetched")]
    assert build.calls[1:] == [["recipe", RECIPE, *keep, "--graphs", named, "--out", str(folder)]]
    assert folder.name == "-".join([usual.name, *own]).replace("/", "-")
    assert said[0].endswith(f"Building it once; this takes some minutes, with {' and '.join(own)}.")
    assert locate(RECIPE, tmp_path, build, graphs=graphs, offline=True) == (folder, [])
    with pytest.raises(BundleError, match=r"offline: There is no bundle .*-target-gpu-fp32 yet\."):
        locate(RECIPE, tmp_path, build, graphs={"target": "gpu-fp32"}, offline=True)
    assert locate(usual, tmp_path, build, graphs=graphs) == (usual, []), "as it was named"


def test_a_gguf_file_has_such_a_folder_too(tmp_path: Path) -> None:
    model, build = write_gguf(tmp_path / "a.gguf"), Builder()
    first, _ = locate(model, tmp_path, build, graphs={"target": "portable-int8"})
    second, _ = locate(model, tmp_path, build, graphs={"target": "portable-fp16"}, offline=True)
    assert "target/portable-int8" in DEFAULT_GRAPHS
    assert second.name == f"{first.name}-target-portable-fp16"
    assert build.calls[1][2:4] == ["--graphs", "target/portable-fp16,draft/usual"]


def test_a_recipe_name_wins_over_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / RECIPE).mkdir()
    build = Builder()
    locate(RECIPE, tmp_path / "cache", build)
    assert build.calls[0][:2] == ["recipe", RECIPE]
    with pytest.raises(BundleError, match="not a bundle"):
        locate(f"./{RECIPE}", tmp_path / "cache", build)


def test_unknown_name_lists_the_known_recipes(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        locate("smollm3", tmp_path, Builder())
    assert "'smollm3'" in str(caught.value)
    assert RECIPE in str(caught.value)


@pytest.mark.parametrize("name", ["no/such/place", "absent.gguf"])
def test_a_path_to_nothing_is_named_as_a_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file or folder"):
        locate(name, tmp_path, Builder())


def test_a_bundle_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    build = Builder()
    assert locate(tmp_path / "bundle", tmp_path, build) == (tmp_path / "bundle", [])
    assert locate(str(tmp_path / "bundle"), tmp_path, build, offline=True)[1] == []
    assert build.calls == []


def test_a_folder_that_is_no_bundle_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with pytest.raises(BundleError, match="python -m export gguf"):
        locate(tmp_path / "weights", tmp_path, Builder())
    write_gguf(tmp_path / "weights" / "a.gguf")
    with pytest.raises(BundleError, match=r"name that instead, .*a\.gguf"):
        locate(tmp_path / "weights", tmp_path, Builder())


def test_a_gguf_path_with_spaces_and_letters_beyond_ascii(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "my models" / "ein Modell ü.gguf")
    build = Builder()
    folder, _ = locate(str(model), tmp_path / "the cache", build)
    assert build.calls == [["gguf", str(model), "--out", str(folder)]]
    assert folder.name.isascii()
    assert " " not in folder.name
    assert locate(model, tmp_path / "the cache", build, offline=True) == (folder, [])
    assert len(build.calls) == 1


def test_a_changed_gguf_is_built_again(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf")
    build = Builder()
    first, _ = locate(model, tmp_path, build)
    model.write_bytes(b"GGUF and more")
    second, _ = locate(model, tmp_path, build)
    assert first != second
    assert len(build.calls) == 2


def test_gguf_files_of_one_name_do_not_share_a_bundle(tmp_path: Path) -> None:
    build = Builder()
    folders = {
        locate(write_gguf(tmp_path / place / "model.gguf"), tmp_path, build)[0]
        for place in ("a", "b")
    }
    assert len(folders) == 2


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"PK\x03\x04")
    with pytest.raises(BundleError, match="not a GGUF file"):
        locate(model, tmp_path, Builder())


def test_offline_refuses_only_what_must_be_downloaded(tmp_path: Path) -> None:
    build = Builder()
    with pytest.raises(BundleError, match=r"offline.*without --offline"):
        locate(RECIPE, tmp_path, build, offline=True)
    assert build.calls == []
    locate(write_gguf(tmp_path / "a.gguf"), tmp_path, build, offline=True)
    assert len(build.calls) == 1
    folder, _ = locate(RECIPE, tmp_path, build)
    assert locate(RECIPE, tmp_path, build, offline=True) == (folder, [])


def test_a_damaged_bundle_that_was_named_is_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    (tmp_path / "bundle" / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(BundleError, match=r"tokenizer\.json is damaged"):
        locate(tmp_path / "bundle", tmp_path, Builder())


def test_a_name_too_long_for_the_file_system_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        locate_bundle("x" * 9999, cache_dir=tmp_path, offline=True, progress=print)
