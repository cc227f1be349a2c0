"""What torch keeps is there whole, or told to be damaged."""

from pathlib import Path

import pytest
import torch

from export.distill import kept
from runtime.errors import BuildError

CONTENT = {"a": torch.arange(5), "b": [1, 0.5, "x"]}


def test_what_is_kept_comes_back_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    kept.save(path, CONTENT)
    found = kept.load(path)
    assert torch.equal(found["a"], CONTENT["a"])  # type: ignore[arg-type]
    assert found["b"] == CONTENT["b"]
    assert list(tmp_path.iterdir()) == [path]


def test_an_interruption_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt"
    kept.save(path, 1)

    def interrupted(content: object, half: Path) -> None:
        half.write_bytes(b"half")
        raise KeyboardInterrupt(content)

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.save(path, 2)
    assert kept.load(path) == 1


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_that_is_cut_off_is_named(share: float, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    kept.save(path, CONTENT)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(BuildError, match=r"x\.pt is damaged: .* Remove it"):
        kept.load(path)


def test_nothing_but_tensors_and_plain_things_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    kept.save(path, Path)
    with pytest.raises(BuildError, match="is damaged"):
        kept.load(path)
