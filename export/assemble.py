"""Puts a bundle together from its parts, the manifest last."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.plan import Plan
from export.workshop import Part
from runtime.bundle_files import file_sha256
from runtime.manifest import FileEntry, Manifest, Role, RoleName


def assemble(
    plan: Plan,
    roles: Mapping[RoleName, Role],
    folders: Mapping[str, Part],
    arrays: Mapping[str, NDArray[Any]],
    bundle: Path,
) -> int:
    """Move the graphs into `bundle`, where the tokenizer is, write `arrays` and the manifest there.

    folders: the graphs by their places. arrays: what .npy files are to hold, by their paths.
    Returns the bytes of all files.
    """
    for name, array in arrays.items():
        (bundle / name).parent.mkdir(exist_ok=True)
        np.save(bundle / name, array, allow_pickle=False)
    present = [path for path in bundle.rglob("*") if path.is_file()]
    hashes = {path.relative_to(bundle).as_posix(): file_sha256(path) for path in present}
    for place, part in folders.items():
        (bundle / place).parent.mkdir(exist_ok=True)
        (part.folder / place).rename(bundle / place)
        hashes |= part.sha256
    files = {
        name: FileEntry(sha256, (bundle / name).stat().st_size)
        for name, sha256 in sorted(hashes.items())
    }
    Manifest(
        plan.name,
        plan.source,
        files,
        roles["target"],
        roles["draft"] if roles["draft"].graphs else None,
        draft_source=plan.draft.source if plan.draft else None,
        lenses_source=plan.lenses.source if plan.lenses else None,
    ).save(bundle)
    return sum(entry.bytes for entry in files.values())
