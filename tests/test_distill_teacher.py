"""The target's states are those of each text alone, and are computed once."""

from pathlib import Path

import pytest
import torch

from export.distill import corpus, kept, teacher
from export.distill.decoder import Decoder
from export.distill.teacher import keep_states, states_file, think
from tests.students import in_float32, random_records, random_target, rows

pytestmark = pytest.mark.usefixtures("one_thread")


def thinker() -> Decoder:
    return in_float32(Decoder(random_target(), range(3)).eval())


@pytest.mark.parametrize("together", [4096, 100, 1])
def test_states_are_those_of_each_text_alone(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "ROWS", together)
    records = random_records(9)
    found = think(thinker(), records)
    assert found.dtype == torch.bfloat16
    with torch.no_grad():
        alone = torch.cat([thinker()(rows(each.tokens.tolist()))[0] for each in records])
    assert found.shape == alone.shape
    torch.testing.assert_close(found.float(), alone, atol=1e-4, rtol=2**-8)


def test_no_records_have_no_states() -> None:
    assert think(thinker(), []).shape == (0, 32)


def test_states_that_are_there_are_not_computed_again(tmp_path: Path) -> None:
    (folder := tmp_path / "states").mkdir()
    files = [tmp_path / f"answers-000{number}.npz" for number in range(3)]
    for seed, file in enumerate(files):
        corpus.save(file, random_records(3, seed=seed))
    kept.save(states_file(files[1], folder), "mine")
    (folder / f"half-{states_file(files[2], folder).name}").write_bytes(b"half")
    said: list[str] = []
    keep_states(thinker(), files, folder, said.append)
    assert [line.partition(":")[0] for line in said] == [
        "answers-0000.states.pt",
        "answers-0002.states.pt",
    ]
    assert kept.load(states_file(files[1], folder)) == "mine"
    for file in (files[0], files[2]):
        due = think(thinker(), list(corpus.load([file])))
        assert torch.equal(kept.load(states_file(file, folder)), due)
    keep_states(thinker(), files, folder, said.append)
    assert len(said) == 2
    assert sorted(folder.iterdir()) == sorted(states_file(file, folder) for file in files)


def test_a_text_that_is_longer_than_a_pass_is_thought_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(teacher, "ROWS", 5)
    assert think(thinker(), random_records(1, longest=9)).isfinite().all()
