import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from runtime.bundle_files import file_sha256
from runtime.errors import BuildError, BundleError, UsageError
from runtime.graph_names import DEFAULT_GRAPHS
from runtime.locate import (
    USUAL_GRAPHS,
    default_cache_dir,
    known_recipes,
    locate_bundle,
    run_export,
)
from runtime.manifest import FILE_NAME, FileEntry, Geometry, Manifest, Role, RoleName, Source

ROOT = Path(__file__).resolve().parent.parent
RECIPE = "tiny-1m"


def write_bundle(folder: Path) -> None:
    """A bundle that Manifest.load accepts, renamed into place like the export's."""
    work = folder.parent / f"{folder.name}.{os.getpid()}"
    work.mkdir(parents=True)
    (work / "tokenizer.json").write_bytes(b"{}")
    geometry = Geometry(
        layers=1,
        hidden=2,
        intermediate=2,
        heads=1,
        kv_heads=1,
        head_size=2,
        vocabulary=4,
        context=8,
        rope_base=1e4,
        norm_epsilon=1e-5,
    )
    Manifest(
        name="tiny",
        source=Source(kind="gguf", file="tiny.gguf", sha256="0" * 64, licence="unknown"),
        files={"tokenizer.json": FileEntry(file_sha256(work / "tokenizer.json"), 2)},
        target=Role(geometry=geometry, graphs={}, end_tokens=[0]),
    ).save(work)
    try:
        work.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


class Builder:
    """Stands for the export's child process: records its arguments, then builds or fails."""

    def __init__(self, *, code: int = 0, builds: bool = True) -> None:
        self.code = code
        self.builds = builds
        self.calls: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> int:
        self.calls.append(list(arguments))
        if self.builds:
            write_bundle(Path(arguments[arguments.index("--out") + 1]))
        return self.code


def locate(
    model: str | Path,
    cache: Path,
    build: Builder,
    *,
    offline: bool = False,
    graphs: Mapping[RoleName, str] = USUAL_GRAPHS,
) -> tuple[Path, list[str]]:
    said: list[str] = []
    folder = locate_bundle(
        model,
        cache_dir=cache,
        offline=offline,
        progress=said.append,
        recipes=write_recipe(cache.parent / "recipes"),
        build=build,
        graphs=graphs,
    )
    return folder, said


def write_recipe(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    graphs = ["target/fused-int8", "target/portable-fp32", "draft/portable-fp32"]
    (folder / f"{RECIPE}.json").write_text(json.dumps({"source": {}, "graphs": graphs}))
    return folder


def write_gguf(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF\x03\0\0\0")
    return path


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"HOME": "/h"}, "linux", "/h/.cache/mirror-sd"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "linux", "/x/mirror-sd"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "linux", "/h/.cache/mirror-sd"),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, "linux", "/h/.cache/mirror-sd"),
        ({"HOME": "/h"}, "darwin", "/h/Library/Caches/mirror-sd"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "darwin", "/x/mirror-sd"),
        ({"HOME": "/h", "LOCALAPPDATA": "/l"}, "win32", "/l/mirror-sd"),
        ({"USERPROFILE": "/u"}, "win32", "/u/AppData/Local/mirror-sd"),
    ],
)
def test_cache_folder_by_platform(environ: dict[str, str], platform: str, expected: str) -> None:
    assert default_cache_dir(environ, platform) == Path(expected)


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


def test_a_failing_child_is_an_error_with_its_code(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="exit code 3"):
        locate(RECIPE, tmp_path, Builder(code=3, builds=False))
    with pytest.raises(BuildError, match="There is no bundle"):
        locate(RECIPE, tmp_path, Builder(builds=False))


def test_a_bundle_that_another_process_built_meanwhile_is_taken(tmp_path: Path) -> None:
    folder, _ = locate(RECIPE, tmp_path, Builder(code=1, builds=True))
    assert Manifest.load(folder).name == "tiny"


def test_a_bundle_that_appears_before_the_build_is_not_thrown_away(tmp_path: Path) -> None:
    folder, _ = locate(RECIPE, tmp_path, Builder())
    aside = folder.rename(tmp_path / "aside")

    def another_process_finishes(_: str) -> None:
        aside.rename(folder)

    found = locate_bundle(
        RECIPE,
        cache_dir=tmp_path,
        offline=False,
        progress=another_process_finishes,
        recipes=write_recipe(tmp_path.parent / "recipes"),
        build=Builder(code=1, builds=False),
    )
    assert Manifest.load(found).name == "tiny"


@pytest.mark.parametrize("content", [b"{", b"[]"])
def test_a_damaged_cached_bundle_is_built_again(tmp_path: Path, content: bytes) -> None:
    build = Builder()
    folder, _ = locate(RECIPE, tmp_path, build)
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(BundleError, match="offline"):
        locate(RECIPE, tmp_path, build, offline=True)
    again, said = locate(RECIPE, tmp_path, build)
    assert again == folder
    assert "cannot be used" in said[0]
    assert Manifest.load(folder).name == "tiny"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_damaged_bundle_that_was_named_is_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    (tmp_path / "bundle" / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(BundleError, match=r"tokenizer\.json is damaged"):
        locate(tmp_path / "bundle", tmp_path, Builder())


def test_a_cache_that_cannot_be_written_says_so_and_promises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file", Path("/proc")):
        said: list[str] = []
        with pytest.raises(BuildError, match=rf"The cache folder {cache}.*--cache-dir"):
            locate_bundle(
                RECIPE,
                cache_dir=cache,
                offline=False,
                progress=said.append,
                recipes=write_recipe(tmp_path / "recipes"),
                build=Builder(),
            )
        assert said == []


def test_a_cache_with_too_long_a_name_is_a_sentence(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "model.gguf")
    with pytest.raises(BundleError, match=r"cannot be used .*--cache-dir"):
        locate(model, tmp_path / ("a" * 300), Builder())


def test_two_processes_at_once_both_get_the_bundle(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from runtime.locate import locate_bundle\n"
        "from tests.test_locate import Builder\n"
        "print(locate_bundle(sys.argv[1], cache_dir=Path(sys.argv[2]), offline=False,\n"
        "                    progress=lambda line: None,\n"
        "                    recipes=Path(sys.argv[3]), build=Builder()))\n"
    )
    recipes = write_recipe(tmp_path / "recipes")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, RECIPE, str(tmp_path), str(recipes)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    folders = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert len(folders) == 1
    assert json.loads((Path(folders.pop()) / FILE_NAME).read_text())["name"] == "tiny"


def test_the_export_runs_whatever_lies_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "export.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert run_export(["--help"]) == 0
    assert run_export(["--no-such-flag"]) == 2
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert stderr == "error: unrecognized arguments: --no-such-flag\n"


def test_a_user_without_a_home_is_told_to_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(UsageError, match="--cache-dir"):
        default_cache_dir({}, "linux")
    assert default_cache_dir({"HOME": "/h"}, "linux") == Path("/h/.cache/mirror-sd")


def test_a_name_too_long_for_the_file_system_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        locate_bundle("x" * 9999, cache_dir=tmp_path, offline=True, progress=print)


@pytest.mark.parametrize(("code", "messages"), [(130, 1), (1, 0)])
def test_an_interrupt_that_the_export_told_of_bears_a_message(
    code: int, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Child:
        def __init__(self, *_: object, **__: object) -> None:
            self.waits = 0

        def __enter__(self) -> "Child":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def wait(self, _limit: float | None = None) -> int:
            self.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            return code

    monkeypatch.setattr(subprocess, "Popen", Child)
    with pytest.raises(KeyboardInterrupt) as caught:
        run_export(["--help"])
    assert len(caught.value.args) == messages
