"""What one case of the fuzzer is: a broken input made from its number, and the program's own entry.

A case ends well in success or in one of this project's errors; anything else is a finding.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

import numpy as np

from export import gguf_file, tokenizer
from export.__main__ import main as export_main
from runtime import open_session
from runtime.bundle_files import file_sha256
from runtime.manifest import FILE_NAME, FileEntry, Manifest
from scripts.broken_gguf import break_gguf, cut_gguf
from scripts.broken_manifest import break_manifest
from tests import tiny
from tests.drafts import write_draft

BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16")
OPENED = 0.4  # the share of the manifests that load of which a session is opened


class Cases(Protocol):
    """The cases of one kind; `suffix` is that of a file which keeps one."""

    suffix: str

    def make(self, number: int) -> bytes:
        """The input of one case."""

    def run(self, number: int, content: bytes) -> None:
        """Give it to the program."""


class GgufCases:
    """Headers of GGUF files of every family and several block types."""

    suffix = ".gguf"

    def __init__(self, shared: Path, folder: Path) -> None:
        """`folder` is the worker's own; nothing is shared."""
        self._folder = folder
        parts = []
        for place, family in enumerate(tiny.FAMILIES.values()):
            for quantized in (False, True):
                kind = BLOCKS[place % len(BLOCKS)]
                path = folder / "sound.gguf"
                tiny.write_gguf(
                    path,
                    weights=family.weights(),
                    pairs=family.pairs(),
                    quantized=quantized,
                    kind=kind,
                )
                parts.append(cut_gguf(path.read_bytes()))
        self._parts = parts

    def make(self, number: int) -> bytes:
        """A sound file, changed in one place to six."""
        random = Random(number)
        return break_gguf(random.choice(self._parts), random)

    def run(self, number: int, content: bytes) -> None:
        """Read it, and write what belongs to its tokenizer."""
        path = self._folder / "case.gguf"
        # Another file each time, since the one before may still be mapped.
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        tokenizer.write(gguf_file.read(path).metadata, self._folder, generation={})


class ManifestCases:
    """Manifests of a bundle that is sound but for them."""

    suffix = ".json"

    def __init__(self, shared: Path, folder: Path) -> None:
        """`shared` holds the sound bundle, `folder` is the worker's own."""
        self._bundle, self._cache = folder / "bundle", folder / "cache"
        shutil.copytree(shared / "bundle", self._bundle)
        self._manifest = json.loads((self._bundle / FILE_NAME).read_bytes())
        (self._bundle / "link").symlink_to("/etc/hostname")
        (self._bundle / "loop").symlink_to("loop")
        (self._bundle / "up").symlink_to("..")

    def make(self, number: int) -> bytes:
        """The sound manifest, changed in one place to six."""
        return break_manifest(self._manifest, Random(number))

    def run(self, number: int, content: bytes) -> None:
        """Load it; of a share of those that load, open a session and let it write two tokens."""
        (self._bundle / FILE_NAME).write_bytes(content)
        Manifest.load(self._bundle)
        random = Random(f"session {number}")
        if random.random() > OPENED:
            return
        with open_session(
            self._bundle,
            precision=random.choice(["int8", "fp32"]),
            draft=random.choice(["none", "lookup", "model"]),
            threads=1,
            cache_dir=self._cache,
        ) as session:
            list(session.generate("the sea", max_new_tokens=2))


def prepare(shared: Path) -> None:
    """Build what the workers of every kind copy: a target with a lens, and a trained draft."""
    path = tiny.write_gguf(shared / "sound.gguf")
    draft = write_draft(shared / "draft.safetensors", gguf_file.read(path).model)
    graphs = "target/fused-int8,target/fused-fp32,draft/fused-int8"
    command = ["gguf", str(path), "--out", str(shared / "bundle"), "--graphs", graphs]
    if export_main([*command, "--draft", str(draft)]):
        raise RuntimeError("the bundle to mutate could not be built")
    _add_lens(shared / "bundle")


def _add_lens(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    path = bundle / "target" / "lens-1.npy"
    np.save(path, np.eye(manifest.target.geometry.hidden, dtype=np.float16))
    name = path.relative_to(bundle).as_posix()
    dataclasses.replace(
        manifest,
        files={**manifest.files, name: FileEntry(file_sha256(path), path.stat().st_size)},
        target=dataclasses.replace(manifest.target, lenses={"1": name}),
    ).save(bundle)


KINDS: dict[str, Callable[[Path, Path], Cases]] = {"gguf": GgufCases, "manifest": ManifestCases}
