"""A bundle is hashed once; a file that was touched since is hashed again, and a swap is noticed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime import bundle_files, integrity
from runtime.bundle_files import file_sha256
from runtime.errors import BundleError
from runtime.integrity import load_checked, sealed_sha256
from runtime.manifest import FileEntry, Geometry, Manifest, Role, Source

GEOMETRY = Geometry(1, 2, 2, 1, 1, 2, 4, 8, 1e4, 1e-5)
LONG_AGO_NS = 1_000_000_000 * 10**9
FILES = {"weights.data": b"0123456789", "tokenizer.json": b"{}"}


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle of two files, taken for old ones, and every hashing told."""
    monkeypatch.setattr(integrity, "COARSEST_TICK_NS", 0)
    monkeypatch.setattr(bundle_files, "LARGE_BYTES", 0)
    folder = tmp_path / "my bündle"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    Manifest(
        name="tiny",
        source=Source("gguf", "tiny.gguf", "0" * 64, "unknown"),
        files={
            name: FileEntry(file_sha256(folder / name), len(content))
            for name, content in FILES.items()
        },
        target=Role(GEOMETRY, {}, [0]),
    ).save(folder)
    return folder


def hashed(bundle: Path, *, records: Path | None = None, in_full: bool = False) -> list[str]:
    """The files that a load of the bundle hashes."""
    said: list[str] = []
    records = records or bundle.parent / "records"
    load_checked(bundle, records=records, in_full=in_full, progress=said.append)
    return [line.removeprefix("checking ").partition(",")[0] for line in said]


def test_the_first_load_hashes_and_later_ones_do_not(bundle: Path) -> None:
    assert hashed(bundle) == list(FILES)
    assert hashed(bundle) == hashed(bundle) == []
    assert hashed(bundle, in_full=True) == list(FILES)
    assert hashed(bundle) == []
    assert sorted(path.name for path in bundle.iterdir()) == sorted([*FILES, "manifest.json"])


def swap(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"9876543210")


def alter(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"X")


def alter_and_set_the_time_back(path: Path) -> None:
    before = path.stat()
    alter(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rename_another_over_it(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"9876543210")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize(
    "change", [swap, alter, alter_and_set_the_time_back, rename_another_over_it]
)
def test_another_file_of_equal_size_is_noticed_at_the_next_load(
    bundle: Path, change: Callable[[Path], None]
) -> None:
    hashed(bundle)
    change(bundle / "weights.data")
    for _ in range(2):
        with pytest.raises(BundleError, match=r"weights\.data is damaged"):
            hashed(bundle)


def test_a_touched_file_is_hashed_again_alone(bundle: Path) -> None:
    hashed(bundle)
    os.utime(bundle / "tokenizer.json", ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert hashed(bundle) == ["tokenizer.json"]
    assert hashed(bundle) == []


def test_a_file_that_was_written_just_now_is_not_trusted_yet(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "COARSEST_TICK_NS", 3600 * 10**9)
    assert hashed(bundle) == list(FILES)
    assert hashed(bundle) == list(FILES)


def test_a_file_that_changes_while_it_is_hashed_is_not_trusted(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = bundle_files.check_sha256

    def check_and_touch(folder: Path, name: str, *others: object) -> None:
        check(folder, name, *others)  # type: ignore[arg-type]
        os.utime(folder / name, ns=(LONG_AGO_NS, LONG_AGO_NS))

    monkeypatch.setattr(integrity, "check_sha256", check_and_touch)
    hashed(bundle)
    monkeypatch.undo()
    monkeypatch.setattr(bundle_files, "LARGE_BYTES", 0)
    assert hashed(bundle) == list(FILES)


def test_the_record_holds_for_one_place_and_one_manifest(bundle: Path) -> None:
    hashed(bundle)
    moved = bundle.rename(bundle.with_name("moved"))
    assert hashed(moved) == list(FILES)
    manifest = moved / "manifest.json"
    data = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(data | {"name": "other"}), encoding="utf-8")
    assert hashed(moved) == list(FILES)
    (moved.parent / "link").symlink_to(moved)
    assert hashed(moved.parent / "link") == []


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", "{", '{"weights.data": 3}', '{"weights.data": [1, 2]}', "[" * 10_000],
)
def test_a_broken_record_costs_only_time(bundle: Path, content: str) -> None:
    hashed(bundle)
    (record,) = (bundle.parent / "records").iterdir()
    record.write_text(content, encoding="utf-8")
    assert hashed(bundle) == list(FILES)
    assert hashed(bundle) == []


def test_a_cache_that_cannot_be_written_costs_only_time(bundle: Path) -> None:
    for records in (bundle / "weights.data" / "records", Path("/proc/records")):
        assert hashed(bundle, records=records) == list(FILES)
        assert hashed(bundle, records=records) == list(FILES)


def test_a_bundle_on_a_read_only_medium_is_read(bundle: Path) -> None:
    for path in [*bundle.iterdir(), bundle]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert hashed(bundle) == list(FILES)
        assert hashed(bundle) == []
    finally:
        bundle.chmod(0o755)


@pytest.mark.usefixtures("bundle")
def test_a_file_alone_is_hashed_once_and_again_when_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, records, count = tmp_path / "file", tmp_path / "records", 0

    def counting(path: Path) -> str:
        nonlocal count
        count += 1
        return file_sha256(path)

    monkeypatch.setattr(integrity, "file_sha256", counting)
    path.write_bytes(b"0123456789")
    first = sealed_sha256(path, records=records)
    assert (sealed_sha256(path, records=records), count) == (first, 1)
    swap(path)
    assert sealed_sha256(path, records=records) == file_sha256(path) != first
    for record in records.iterdir():
        record.write_text("[1]", encoding="utf-8")
    assert (sealed_sha256(path, records=records), count) == (file_sha256(path), 3)
