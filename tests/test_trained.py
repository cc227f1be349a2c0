"""Files of what was trained are read whole or refused, and known by their hash."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from export.trained import Trained, check_target, read_tensors
from runtime.bundle_files import file_sha256
from runtime.errors import BuildError
from runtime.manifest import Source

TENSORS: dict[str, NDArray[Any]] = {
    "a": np.arange(6, dtype=np.float16).reshape(2, 3),
    "b": np.array([3], np.int32),
}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "trained", {"licence": "MIT"})
    return tmp_path / "trained"


def test_tensors_and_metadata_come_back(path: Path) -> None:
    tensors, metadata = read_tensors(path)
    assert metadata == {"licence": "MIT"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, TENSORS[name], strict=True)


def test_a_file_says_what_it_is(path: Path) -> None:
    source = Source("safetensors", "trained", file_sha256(path), "MIT")
    assert Trained.read(path) == Trained(path, source)
    save_file(TENSORS, path)
    assert Trained.read(path).source.licence == "unknown"
    assert read_tensors(path)[1] == {}


def test_another_file_in_its_place_is_refused(path: Path) -> None:
    found = Trained.read(path)
    found.check()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\1")
    with pytest.raises(BuildError, match="not the file that was asked for"):
        found.check()
    path.write_bytes(POINTER)
    with pytest.raises(BuildError, match="git lfs pull"):
        found.check()
    path.unlink()
    with pytest.raises(BuildError, match="is missing"):
        found.check()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no safetensors file"),
        (b"GGUF" * 100, "no safetensors file"),
        (b"\xff" * 8, "no safetensors file"),
        (POINTER, "git lfs pull"),
    ],
)
def test_what_is_no_such_file_is_named(content: bytes, message: str, path: Path) -> None:
    path.write_bytes(content)
    for read in (read_tensors, Trained.read):
        with pytest.raises(BuildError, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_a_file_that_was_cut_short_is_named(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BuildError, match="no safetensors file"):
        read_tensors(path)


def test_a_file_may_be_for_one_target_or_for_any(path: Path) -> None:
    check_target({}, "a", path)
    check_target({"target_sha256": "a"}, "a", path)
    with pytest.raises(BuildError, match=r"trained for another target: .* sha256 b, not a"):
        check_target({"target_sha256": "b"}, "a", path)
