"""A file of a bundle lies in the bundle, is whole, and is the one that was built."""

import os
from pathlib import Path

import pytest

from runtime import bundle_files
from runtime.bundle_files import check_file, check_names, check_sha256, file_sha256
from runtime.errors import BundleError

POINTER = b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 540272896\n"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "a bundle ü"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")
    return folder


@pytest.mark.parametrize(
    "name", ["file", "target/fp32/weights.data", "a b/ü", ".hidden", "console", "com10", "x" * 255]
)
def test_plain_names_are_allowed(name: str) -> None:
    check_names([name], "it")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/etc/passwd",
        "//host/share",
        "..",
        "../x",
        "a/../../x",
        "a/./b",
        "a//b",
        "a/",
        "a\\b",
        "\\\\host\\share",
        "C:x",
        "C:/x",
        "file:stream",
        "con",
        "a/NUL",
        "aux.json",
        "Com1.onnx",
        "prn .x",
        "lpt9",
        "name.",
        "name ",
        "wh?t",
        "a*",
        "<a>",
        "x" * 256,
        "ü" * 128,
        "a/" * 500 + "b",
    ],
)
def test_names_that_leave_the_bundle_or_mean_something_else(name: str) -> None:
    with pytest.raises(BundleError, match=r"^it names .* outside the bundle"):
        check_names(["file", name], "it")


def test_names_that_differ_in_case_only_are_one_file_to_some_systems() -> None:
    with pytest.raises(BundleError, match="'File' and 'file'"):
        check_names(["File", "file"], "it")


def test_a_whole_file_passes(bundle: Path) -> None:
    check_file(bundle, "file", 7)
    check_sha256(bundle, "file", file_sha256(bundle / "file"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing; build the bundle again"),
        (b"conten", "has 6 bytes where the manifest says 7"),
        (b"", "has 0 bytes"),
        (POINTER, "is a Git LFS pointer, not the file itself: fetch it with git lfs pull"),
        (b"version 2 of the weights", "has 24 bytes"),
    ],
)
def test_what_is_missing_cut_short_or_stands_for_a_file(
    bundle: Path, content: bytes | None, message: str
) -> None:
    (bundle / "file").unlink()
    if content is not None:
        (bundle / "file").write_bytes(content)
    with pytest.raises(BundleError, match=message) as caught:
        check_file(bundle, "file", 7)
    assert str(bundle / "file") in str(caught.value)


def test_links_stay_in_the_bundle(bundle: Path, tmp_path: Path) -> None:
    (bundle / "inner").symlink_to("file")
    check_file(bundle, "inner", 7)
    (tmp_path / "outside").write_bytes(b"content")
    (bundle / "outer").symlink_to(tmp_path / "outside")
    (bundle / "above").symlink_to("..")
    (bundle / "circle").symlink_to("circle")
    for name in ("outer", "above/outside"):
        with pytest.raises(BundleError, match="outside the bundle"):
            check_file(bundle, name, 7)
    with pytest.raises(BundleError, match="missing"):
        check_file(bundle, "circle", 7)


def test_a_bundle_reached_by_a_link_is_a_bundle(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bundle)
    check_file(tmp_path / "link", "file", 7)


def test_what_is_no_plain_file_is_missing(bundle: Path) -> None:
    (bundle / "folder").mkdir()
    os.mkfifo(bundle / "pipe")
    for name in ("folder", "pipe", "file/inner"):
        with pytest.raises(BundleError, match="missing"):
            check_file(bundle, name, 7)


def test_an_altered_file_of_equal_size_is_damaged(bundle: Path) -> None:
    sha256 = file_sha256(bundle / "file")
    (bundle / "file").write_bytes(b"c0ntent")
    with pytest.raises(BundleError, match=r"file is damaged.*build the bundle again"):
        check_sha256(bundle, "file", sha256)
    with pytest.raises(BundleError, match="cannot be read"):
        check_sha256(bundle, "gone", sha256)


def test_large_files_are_told(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    check_sha256(bundle, "file", file_sha256(bundle / "file"), said.append)
    assert said == []
    monkeypatch.setattr(bundle_files, "LARGE_BYTES", 7)
    check_sha256(bundle, "file", file_sha256(bundle / "file"), said.append)
    assert said == ["checking file, 0 MB"]
