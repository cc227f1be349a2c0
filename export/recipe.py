"""Recipes: where a named model comes from, and how to fetch its file."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.plan import Plan, check_exit, check_graphs
from export.trained import Trained
from export.workshop import Workshop
from runtime.bundle_files import file_sha256
from runtime.errors import BuildError, UsageError
from runtime.manifest import Source

Progress = Callable[[str], None]
PROGRESS_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """One file of models/: a model file inside a Python wheel, and what to build from it.

    `draft` and `lenses` lie beside it: what was trained for this model.
    """

    name: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    licence: str
    generation: dict[str, float]
    graphs: tuple[str, ...]
    draft: Trained | None = None
    lenses: Trained | None = None
    early_exit_layer: int | None = None

    @property
    def plan(self) -> Plan:
        """What to build, and the source that the manifest will name."""
        file = f"{self.package}=={self.version}: {self.member}"
        source = Source("python-wheel", file, self.member_sha256, self.licence)
        return Plan(
            self.name,
            source,
            self.generation,
            self.graphs,
            optional=False,
            draft=self.draft,
            lenses=self.lenses,
            early_exit_layer=self.early_exit_layer,
        )


def find(name: str, folder: Path) -> Recipe:
    """Read the recipe `name` of `folder`; UsageError, naming those there are, if it has none."""
    path = folder / f"{name}.json"
    known = sorted(found.stem for found in folder.glob("*.json"))
    if name not in known:
        raise UsageError(f"There is no recipe {name!r}; there is {', '.join(known) or 'none'}.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return _parse(data, folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(f"{path} is not a recipe that can be read: {error!r}.") from error


def _parse(data: dict[str, Any], folder: Path) -> Recipe:
    source = data["source"]
    if source["kind"] != "python-wheel":
        raise ValueError(f"unknown source kind {source['kind']!r}")
    graphs = check_graphs(data["graphs"])
    layer = data.get("early_exit_layer")
    if layer is not None and type(layer) is not int:
        raise ValueError("early_exit_layer must be a whole number")
    check_exit(layer, graphs)
    draft = _trained(data, "draft", folder)
    if draft and not any(graph.startswith("draft/") for graph in graphs):
        raise ValueError("a draft without a graph")
    return Recipe(
        name=data["name"],
        package=source["package"],
        version=source["version"],
        wheel_sha256=source["wheel_sha256"],
        wheel_bytes=source["wheel_bytes"],
        member=source["member"],
        member_sha256=source["member_sha256"],
        licence=data["licence"],
        generation=data["generation"],
        graphs=graphs,
        draft=draft,
        lenses=_trained(data, "lenses", folder),
        early_exit_layer=layer,
    )


def _trained(data: dict[str, Any], what: str, folder: Path) -> Trained | None:
    """The file of `what` that a recipe names beside it, if it names one."""
    if what not in data:
        return None
    name, sha256 = data[what]["file"], data[what]["sha256"]
    if not name or Path(name).name != name or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(f"{what} must be a file beside the recipe, and its sha256")
    return Trained(folder / name, Source("safetensors", name, sha256, data["licence"]))


def fetched(
    recipe: Recipe, work: Workshop, *, keep: Path | None, offline: bool, progress: Progress
) -> Path:
    """The recipe's model file, from an earlier build or else fetched.

    keep: a folder where it stays for later builds, under its sha256; where that cannot be written
    it goes with the workshop. Raises BuildError as `fetch`.
    """
    kept = None
    if keep is not None:
        kept = keep / recipe.member_sha256 / Path(recipe.member).name
        if kept.is_file() and file_sha256(kept) == recipe.member_sha256:
            progress(f"{kept} was fetched before")
            return kept
    part = work.find(recipe.member_sha256)
    if part is None:
        part = work.make(
            recipe.member_sha256,
            lambda folder: fetch(recipe, folder, offline=offline, progress=progress).name,
        )
    path = part.folder / str(part.result)
    if kept is None:
        return path
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        path.replace(kept)
        return kept
    return path


def fetch(recipe: Recipe, folder: Path, *, offline: bool, progress: Progress) -> Path:
    """Put the recipe's model file, alone, into the empty `folder` and return its path.

    pip brings the wheel, alone; with `offline` it looks only into the folders that its own
    find-links setting names. The wheel and the model file must have the recipe's sha256.
    Raises BuildError.
    """
    size = f"{recipe.wheel_bytes / 1e6:.1f} MB"
    wheel_name = f"{recipe.package} {recipe.version}"
    where = "looking for" if offline else "downloading"
    progress(f"{where} the Python wheel {wheel_name}, {size}, licence {recipe.licence}")
    downloads = folder / "downloads"
    downloads.mkdir()
    _pip_download(recipe, downloads, offline=offline, progress=progress)
    wheel = next(downloads.glob("*.whl"), None)
    if wheel is None or file_sha256(wheel) != recipe.wheel_sha256:
        raise BuildError(f"The wheel {wheel_name} is not the one that the recipe pins.")
    target = folder / Path(recipe.member).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(recipe.member) as packed,
            target.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise BuildError(f"The wheel {wheel_name} does not hold {recipe.member}.") from error
    shutil.rmtree(downloads)
    if file_sha256(target) != recipe.member_sha256:
        raise BuildError(f"{recipe.member} in {wheel_name} is not the file that the recipe pins.")
    return target


def _pip_download(recipe: Recipe, folder: Path, *, offline: bool, progress: Progress) -> None:
    pin = folder / "requirement.txt"
    pin.write_text(
        f"{recipe.package}=={recipe.version} --hash=sha256:{recipe.wheel_sha256}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--disable-pip-version-check"]
    command += ["--dest", str(folder), "--requirement", str(pin)]
    # pip writes what it is receiving into its folder for temporary files: that tells how far it is.
    arriving = folder / "arriving"
    arriving.mkdir()
    with (folder / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        child = subprocess.Popen(
            [*command, "--no-index"] if offline else command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(arriving), "TEMP": str(arriving)},
        )
        try:
            code = _watch(child, arriving, recipe.wheel_bytes, progress)
        except BaseException:
            child.kill()
            child.wait()
            raise
        log.seek(0)
        said = [line.strip().removeprefix("ERROR: ").rstrip(".") for line in log if line.strip()]
    if code:
        hint = (
            "run once without --offline, or set PIP_FIND_LINKS to a folder that holds the wheel"
            if offline
            else "check the network and try again"
        )
        reason = said[-1] if said else f"exit code {code}"
        raise BuildError(f"pip could not bring {recipe.package} ({reason}); {hint}.")


def _watch(child: subprocess.Popen[bytes], folder: Path, total: int, progress: Progress) -> int:
    """Wait for the child, saying every few seconds how much of `total` bytes has arrived.

    pip copies what it has brought, and removes the first: the largest file so far is what counts.
    """
    received = 0
    while True:
        try:
            return child.wait(PROGRESS_INTERVAL_S)
        except subprocess.TimeoutExpired:
            for path in folder.rglob("*"):
                with contextlib.suppress(OSError):  # it has gone
                    received = max(received, path.stat().st_size)
            progress(f"  {received / 1e6:.1f} of {total / 1e6:.1f} MB")
