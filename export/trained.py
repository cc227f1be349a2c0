"""The safetensors files of what was trained for a target: its draft, its lenses."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from runtime.bundle_files import file_sha256
from runtime.errors import BuildError
from runtime.manifest import Source
from runtime.strict_json import is_lfs_pointer, lfs_sentence

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Trained:
    """Such a file, and what the manifest is to say of it."""

    path: Path
    source: Source

    @classmethod
    def read(cls, path: Path) -> "Trained":
        """A file as it is, with the licence that it names; raises as `read_tensors`."""
        with _opened(path) as file:
            licence = (file.metadata() or {}).get("licence", "unknown")
        return cls(path, Source("safetensors", path.name, file_sha256(path), licence))

    def check(self) -> None:
        """Raise BuildError where it is missing or not the file of its source."""
        if not self.path.is_file():
            raise BuildError(f"{self.path} is missing; fetch it, or build without it.")
        _refuse_pointer(self.path)
        if file_sha256(self.path) != self.source.sha256:
            raise BuildError(
                f"{self.path} is not the file that was asked for: its sha256 is not "
                f"{self.source.sha256}. Fetch it again."
            )


def read_tensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """The tensors and the metadata of such a file.

    Raises BuildError for a file that is not sound, OSError for one that cannot be read.
    """
    with _opened(path) as file:
        names = list(file.keys())
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


def check_target(metadata: Mapping[str, str], target_sha256: str, path: Path) -> None:
    """Raise BuildError where metadata names another target than that of the hash."""
    wanted = metadata.get("target_sha256", target_sha256)
    if wanted != target_sha256:
        raise BuildError(
            f"{path} was trained for another target: the one of the model file with sha256 "
            f"{wanted:.80}, not {target_sha256}. Build it with that model file."
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    _refuse_pointer(path)
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, ValueError, TypeError) as error:
        raise BuildError(
            f"{path} is no safetensors file that can be read: {error}. Fetch or make it again."
        ) from error


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as stream:
        if is_lfs_pointer(stream.read(100)):
            raise BuildError(lfs_sentence(path))
