"""The files of a bundle: which names are allowed, whether each is there, and its sha256."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from runtime.errors import BundleError
from runtime.strict_json import is_lfs_pointer, lfs_sentence

MOST_NAME_BYTES = 1000
MOST_PART_BYTES = 255  # of a name between slashes: what file systems allow
LARGE_BYTES = 100_000_000  # hashing more than this takes long enough to be told
_RESERVED = {"con", "prn", "aux", "nul"} | {
    f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)
}


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse names that leave the bundle, or that some system reads otherwise than others.

    Raises BundleError for parts "", "." and "..", backslashes, colons and other characters that
    Windows keeps for itself, its device names, names too long, and two that differ in case only.
    """
    seen: dict[str, str] = {}
    for name in names:
        parts = name.split("/")
        if not all(map(_is_plain, parts)) or len(name.encode()) > MOST_NAME_BYTES:
            raise BundleError(
                f"{where} names {name!r:.80}, which lies outside the bundle or is no name for a "
                "file on every system."
            )
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise BundleError(f"{where} names {other!r:.80} and {name!r:.80}, the same to some.")


def _is_plain(part: str) -> bool:
    stem = part.partition(".")[0].rstrip(" ").lower()
    return (
        0 < len(part.encode()) <= MOST_PART_BYTES
        and not set(part) & set('\\:*?"<>|')
        and part[-1] not in ". "
        and stem not in _RESERVED
    )


def check_file(folder: Path, name: str, size: int) -> None:
    """Raise BundleError unless the file lies in the bundle, links followed, with `size` bytes."""
    path = folder / name
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BundleError(f"{path} is a link to a place outside the bundle.")
        if not path.is_file():
            raise BundleError(f"{path} is missing; build the bundle again.")
        found = path.stat().st_size
        if found != size:
            with path.open("rb") as stream:
                if is_lfs_pointer(stream.read(100)):
                    raise BundleError(lfs_sentence(path))
            raise BundleError(
                f"{path} has {found} bytes where the manifest says {size}; build the bundle again."
            )
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error
    except RuntimeError as error:  # links in a circle
        raise BundleError(f"{path} is missing: {error}") from error


def check_sha256(
    folder: Path, name: str, sha256: str, progress: Callable[[str], None] | None = None
) -> None:
    """Raise BundleError unless the file's bytes have this sha256; a large one is told before."""
    path = folder / name
    try:
        size = path.stat().st_size
        if progress is not None and size >= LARGE_BYTES:
            progress(f"checking {name}, {size / 1e6:.0f} MB")
        if file_sha256(path) == sha256:
            return
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error
    raise BundleError(
        f"{path} is damaged: its sha256 is not the one in the manifest; build the bundle again."
    )


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in lower-case hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
