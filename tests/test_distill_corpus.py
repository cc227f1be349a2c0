"""The corpus: what is saved comes back, whole or not at all."""

import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from numpy.typing import NDArray

from export.distill import corpus
from export.distill.corpus import Record
from runtime.errors import BuildError


def record(
    tokens: list[int], start: int, temperature: float = 0.0, template: str = "qa-x"
) -> Record:
    return Record(np.array(tokens, np.int64), start, temperature, template)


def plain(records: list[Record]) -> list[tuple[list[int], int, float, str]]:
    return [(each.tokens.tolist(), each.start, each.temperature, each.template) for each in records]


SHORT = [record([1, 2, 3], 1), record([4], 1, 0.5, "chat-y"), record([65535, 0, 7, 7, 7], 4, 1.0)]
LONG = [record([65536, 1 << 21], 1, 0.25, "größe")]


@pytest.mark.parametrize("records", [SHORT, LONG, SHORT + LONG, []])
def test_records_come_back(records: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "answers-0000.npz"
    corpus.save(path, records)
    assert plain(list(corpus.load([path]))) == plain(records)
    assert all(each.tokens.dtype == np.int64 for each in corpus.load([path]))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_files_follow_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b.npz", "a.npz")]
    corpus.save(paths[0], SHORT)
    corpus.save(paths[1], LONG)
    assert plain(list(corpus.load(paths))) == plain(SHORT + LONG)


def test_two_bytes_hold_a_token_where_they_can(tmp_path: Path) -> None:
    for records, kind in ((SHORT, np.uint16), (LONG, np.uint32)):
        corpus.save(tmp_path / "x.npz", records)
        with np.load(tmp_path / "x.npz") as file:
            assert file["tokens"].dtype == kind


def test_an_interruption_leaves_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers-0000.npz"
    corpus.save(path, SHORT)

    def interrupted(stream: BinaryIO, **arrays: object) -> None:
        stream.write(b"half of it"[: len(arrays)])
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        corpus.save(path, LONG)
    assert plain(list(corpus.load([path]))) == plain(SHORT)
    assert list(tmp_path.glob("*.npz")) != [path]
    assert sorted(tmp_path.glob("answers-*.npz")) == [path]


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        path.write_bytes(content.replace(b"starts.npy", b"sTarts.npy"))
    elif how == "no array":
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    elif how == "an array":
        np.save(path.open("wb"), np.arange(3))
    elif how == "less":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tokens.npy", b"")
    else:
        objects: dict[str, Any] = {name: np.array(["x"], object) for name in corpus.ARRAYS}
        np.savez(path, **objects)


@pytest.mark.parametrize(
    "how", ["empty", "truncated", "flipped", "no array", "an array", "less", "objects"]
)
def test_a_damaged_file_is_named(how: str, tmp_path: Path) -> None:
    path = tmp_path / "answers-0003.npz"
    corpus.save(path, SHORT)
    damaged(path, how)
    with pytest.raises(BuildError, match=r"answers-0003\.npz .*(Remove it|fetch it)"):
        list(corpus.load([path]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lengths", np.array([3, 1, 4], np.uint32)),
        ("lengths", np.array([3, 1, 6], np.uint32)),
        ("starts", np.array([1, 1, 6], np.uint32)),
        ("starts", np.array([0, 1, 4], np.uint32)),
        ("starts", np.array([1, 0], np.uint32)),
        ("templates", np.array([0, 2, 0], np.uint16)),
        ("temperatures", np.zeros(4, np.float32)),
        ("tokens", np.zeros((3, 3), np.uint16)),
        ("tokens", np.zeros(9, np.float32)),
    ],
)
def test_arrays_that_do_not_fit_together_are_told(
    name: str, values: NDArray[Any], tmp_path: Path
) -> None:
    path = tmp_path / "x.npz"
    corpus.save(path, SHORT)
    with np.load(path) as file:
        arrays = {each: file[each] for each in file.files}
    np.savez(path, **{**arrays, name: values})
    with pytest.raises(BuildError, match=r"x\.npz"):
        list(corpus.load([path]))


def test_a_missing_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(corpus.load([tmp_path / "none.npz"]))
