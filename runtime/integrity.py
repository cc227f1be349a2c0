"""Are a bundle's files the ones that were built? Hashed once, then recognised by size and times.

Hashing a bundle takes seconds, asking the system about its files a millisecond. What was hashed is
therefore remembered in the user's cache: a file whose size, times and inode are the same as then
is not read again. The record is a matter of trust in this machine, so it is never part of a bundle.
"""

import contextlib
import dataclasses
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.bundle_files import check_sha256, file_sha256
from runtime.errors import BundleError
from runtime.manifest import FILE_NAME, Manifest
from runtime.records import read_record, write_record

# A file may be written twice within one tick of its file system's clock and bear the same times:
# one that is younger than the coarsest tick when it is hashed is hashed again the next time.
COARSEST_TICK_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Seal:
    """What tells a file from another that was put in its place: its size, times and inode."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def load_checked(
    folder: Path,
    *,
    records: Path,
    in_full: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Manifest:
    """The manifest of the bundle in `folder`, every file's sha256 checked.

    Files that are the same as when they were last hashed, by the record in the folder `records`,
    are not hashed again unless `in_full`. A record that cannot be read or written costs only time.
    Raises BundleError, naming the file, as `Manifest.load` and for one that is damaged.
    """
    manifest = Manifest.load(folder)
    record = records / f"{_key(folder)}.json"
    before = {} if in_full else _seals(read_record(record))
    after: dict[str, Seal] = {}
    try:
        for name, entry in manifest.files.items():
            seal, now_ns = _seal(folder / name), time.time_ns()
            if before.get(name) != seal:
                check_sha256(folder, name, entry.sha256, progress)
                if _seal(folder / name) != seal or _is_young(seal, now_ns):
                    continue
            after[name] = seal
    except OSError as error:
        raise BundleError(f"{folder} cannot be read: {error}.") from error
    if after != before:
        write_record(record, {name: dataclasses.astuple(seal) for name, seal in after.items()})
    return manifest


def sealed_sha256(path: Path, *, records: Path) -> str:
    """The sha256 of a file, from the record in the folder `records` where the file is the same.

    Raises OSError for a file that cannot be read.
    """
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    seal, now_ns = _seal(path), time.time_ns()
    before = read_record(records / f"{name}.json")
    if isinstance(before, list) and before[1:] == [*dataclasses.astuple(seal)]:
        return str(before[0])
    found = file_sha256(path)
    if _seal(path) == seal and not _is_young(seal, now_ns):
        write_record(records / f"{name}.json", [found, *dataclasses.astuple(seal)])
    return found


def _key(folder: Path) -> str:
    """A name for the record: it holds for one place and one manifest."""
    digest = hashlib.sha256((folder / FILE_NAME).read_bytes())
    digest.update(os.fsencode(folder.resolve()))
    return digest.hexdigest()[:32]


def _seal(path: Path) -> Seal:
    status = path.stat()
    return Seal(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _is_young(seal: Seal, now_ns: int) -> bool:
    return max(seal.mtime_ns, seal.ctime_ns) > now_ns - COARSEST_TICK_NS


def _seals(record: Any) -> dict[str, Seal]:
    """The seals that a record holds; none where it is broken."""
    with contextlib.suppress(AttributeError, TypeError):
        return {name: Seal(*numbers) for name, numbers in record.items()}
    return {}
