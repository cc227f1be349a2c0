"""Tests of runtime/whole_file.py: what is refused, and what a failed write leaves."""

import os
from pathlib import Path

import pytest

from runtime.errors import MirrorError, UsageError
from runtime.whole_file import check_writable, write_whole


def test_a_file_is_written_whole_in_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a file é.txt"
    for text in ("ünø\n", "short"):
        check_writable("--trace", path)
        write_whole(path, text)
        assert path.read_text(encoding="utf-8") == text
        assert list(tmp_path.iterdir()) == [path]


def test_checking_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text("precious")
    check_writable("--trace", path)
    check_writable("--trace", tmp_path / "new")
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("absent/trace.json", "--trace {path}: there is no folder {folder}/absent."),
        (".", "that is no ordinary file"),
        ("file/trace.json", "there is no folder {folder}/file."),
        ("a\0b", "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused(name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / name
    with pytest.raises(UsageError) as caught:
        check_writable("--trace", path)
    assert sentence.format(path=path, folder=tmp_path) in str(caught.value)
    assert "--trace" in str(caught.value)


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="needs a device")
def test_a_device_is_never_replaced() -> None:
    with pytest.raises(UsageError, match="no ordinary file"):
        check_writable("--trace", Path(os.devnull))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files")
def test_a_folder_that_takes_no_files_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--plot /proc/x.svg cannot be written: .*; choose"):
        check_writable("--plot", Path("/proc/x.svg"))


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    check_writable("--trace", tmp_path / "link")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(MirrorError, match=r"file cannot be written: No space left on device."):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
