"""The folder of built bundles: where it is, what is in it, and the process that fills it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import BuildError, BundleError, UsageError
from runtime.locate import default_cache_dir, locate_bundle, run_export
from runtime.manifest import FILE_NAME, Manifest
from tests.locating import RECIPE, Builder, locate, write_gguf, write_recipe

ROOT = Path(__file__).resolve().parent.parent


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
        "from tests.locating import Builder\n"
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
