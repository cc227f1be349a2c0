"""Bundles that many tests share; no test writes into them."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from export.__main__ import main as export_main
from export.recipe import find
from runtime.locate import default_cache_dir
from tests import tiny

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of a random model of two layers."""
    return tiny.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_bundle(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the random model, with the usual graphs and a draft."""
    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    assert export_main(["gguf", str(tiny_gguf), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def with_exit(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an early exit after its first layer."""
    folder = tmp_path_factory.mktemp("exit") / "bundle"
    flags = ["--out", str(folder), "--early-exit-layer", "1"]
    assert export_main(["gguf", str(tiny_gguf), *flags]) == 0
    return folder


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The reference model's bundle."""
    return _built("smollm2-135m")


@pytest.fixture(scope="session")
def smollm_shallow() -> Path:
    """The reference model's bundle with its shallow draft, for the CPU, a GPU and an NPU."""
    usual = ("target/usual", "draft/usual")
    return _built("smollm2-135m-shallow", *usual, "target/gpu-fp32", "draft/portable-fp16")


def _built(name: str, *graphs: str) -> Path:
    """The bundle of a recipe, built by the command line when recipe or builder changed.

    graphs: others than the recipe's. It is kept between runs in MIRROR_SD_TEST_CACHE, by default in
    the user's cache folder.
    """
    default = default_cache_dir(os.environ, sys.platform) / "test-bundles"
    cache = Path(os.environ.get("MIRROR_SD_TEST_CACHE", default)) / name
    folder = cache / _builder_hash(name, graphs)
    if folder.is_dir():
        return folder
    shutil.rmtree(cache, ignore_errors=True)
    command = [sys.executable, "-m", "export", "recipe", name, "--out", str(folder)]
    command += [flag for graph in graphs for flag in ("--graphs", graph)]
    built = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch with a thread, as it is as fast for small things and always adds in one order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _builder_hash(name: str, graphs: Sequence[str]) -> str:
    """A hash of everything that decides what a bundle of the recipe holds."""
    recipes = ROOT / "models"
    plan = find(name, recipes).plan
    sources = sorted((ROOT / "export").glob("*.py"))
    sources += [recipes / f"{name}.json", ROOT / "runtime" / "manifest.py"]
    sources += [file.path for file in (plan.draft, plan.lenses) if file is not None]
    digest = hashlib.sha256(" ".join(graphs).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]
