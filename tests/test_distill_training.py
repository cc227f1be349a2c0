"""Training: the loss falls, budgets hold, and going on is as going through."""

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from export.distill import kept, training
from export.distill.corpus import Record
from export.distill.decoder import Decoder
from export.distill.settings import Aim, Optimizer, Settings
from export.distill.teacher import think
from export.distill.training import Trainer, counted, train
from runtime.errors import BuildError
from tests.students import VOCABULARY, random_records, random_target

pytestmark = pytest.mark.usefixtures("one_thread")
HEAD = torch.arange(0, VOCABULARY, 2)
RECORDS = random_records(24)
ALL = sum(len(record.tokens) for record in RECORDS)


def trainer(
    tokens: int,
    *,
    layers: Sequence[int] = (0, 2),
    masks: int = 2,
    aim: Aim = "kl",
    masks_from: float = 0.0,
    records: Sequence[Record] = RECORDS,
    optimizer: Optimizer = "adamw",
) -> Trainer:
    target = random_target()
    settings = Settings(
        "tiny",
        tokens=tokens,
        batch_tokens=120,
        optimizer=optimizer,
        rate=3e-3,
        masks_from=masks_from,
        blocks=0.2,
        aim=aim,
        seed=3,
    )
    states = think(Decoder(target, range(3)).eval(), records)
    return Trainer(Decoder(target, layers, masks=masks), records, states, HEAD, settings)


def weights(found: Trainer) -> dict[str, torch.Tensor]:
    return {name: it.clone() for name, it in found.student.state_dict().items()}


def same(one: Trainer, other: Trainer) -> bool:
    first, second = weights(one), weights(other)
    return asdict(one.state) == asdict(other.state) and all(
        torch.equal(it, second[name]) for name, it in first.items()
    )


@pytest.mark.parametrize(
    ("aim", "optimizer"), [("kl", "adamw"), ("kl", "muon"), ("sharp", "adamw"), ("tv", "adamw")]
)
def test_the_loss_falls_and_agreement_rises(aim: Aim, optimizer: Optimizer) -> None:
    found = trainer(3 * ALL, aim=aim, masks=1, optimizer=optimizer)
    losses = [state.loss for state in found.steps()]
    assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5])
    assert len(found.state.agreement) == 2
    assert found.state.agreement[0] > 0.3  # of 30 tokens
    assert found.done


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_place_learns_and_all_layers_with_it(optimizer: Optimizer) -> None:
    found = trainer(2 * ALL, optimizer=optimizer)
    before = weights(found)
    assert list(found.steps())
    assert all(not torch.equal(it, before[name]) for name, it in weights(found).items())


def test_a_whole_model_has_nothing_to_learn_at_the_first_place() -> None:
    found = trainer(1, layers=range(3), masks=0)
    (state,) = found.steps()
    assert state.loss < 1e-3


@pytest.mark.parametrize(("stop", "optimizer"), [(1, "adamw"), (7, "adamw"), (7, "muon")])
def test_going_on_is_as_going_through(stop: int, optimizer: Optimizer, tmp_path: Path) -> None:
    through, begun, resumed = (trainer(2 * ALL, optimizer=optimizer) for _ in range(3))
    train(through, tmp_path / "through.pt", minutes=None, progress=lambda _: None)
    for state in begun.steps():
        if state.step == stop:
            break
    begun.save(tmp_path / "x.pt")
    assert not same(begun, through)
    said: list[str] = []
    train(resumed, tmp_path / "x.pt", minutes=None, progress=said.append)
    assert said[0] == f"going on after {begun.state.tokens} tokens"
    assert same(resumed, through)


def test_a_larger_budget_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    short, longer = trainer(ALL // 2), trainer(ALL)
    train(short, path, minutes=None, progress=lambda _: None)
    train(longer, path, minutes=None, progress=lambda _: None)
    assert longer.state.step > short.state.step
    # It saw each record once: the epoch went on where it had stopped.
    assert longer.state.tokens == ALL
    again = trainer(ALL)
    train(again, path, minutes=None, progress=lambda _: None)
    assert same(again, longer)


def test_an_interruption_leaves_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    found = trainer(1)  # which tells of its last step
    with pytest.raises(KeyboardInterrupt):
        train(found, path, minutes=None, progress=interrupt)
    again = trainer(1)
    again.load(path)
    assert same(again, found)
    assert again.state.step == 1


def test_an_interruption_in_a_step_keeps_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt"
    monkeypatch.setattr(training, "CHECKPOINT_S", -1.0)
    through = trainer(ALL)
    train(through, tmp_path / "through.pt", minutes=None, progress=lambda _: None)
    seen: list[object] = []

    def interrupt(*of: object) -> None:
        seen.append(of)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with (
        register_optimizer_step_post_hook(interrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train(trainer(ALL), path, minutes=None, progress=lambda _: None)
    assert kept.load(path)["state"]["step"] == 2
    resumed = trainer(ALL)
    train(resumed, path, minutes=None, progress=lambda _: None)
    assert same(resumed, through)


def test_a_loss_that_is_no_number_ends_it_before_the_step(tmp_path: Path) -> None:
    found = trainer(ALL)
    with torch.no_grad():
        found.student.norm.fill_(float("nan"))
    with pytest.raises(BuildError, match=r"The loss is nan after 0 steps: .*lower --rate than"):
        train(found, tmp_path / "x.pt", minutes=None, progress=lambda _: None)
    assert found.state.step == 0


def test_tokens_and_minutes_are_kept_to(tmp_path: Path) -> None:
    for tokens in (0, 1, ALL, ALL + 1):
        found = trainer(tokens)
        train(found, tmp_path / f"{tokens}.pt", minutes=None, progress=lambda _: None)
        assert tokens <= found.state.tokens < tokens + 160
    found = trainer(100 * ALL)
    train(found, tmp_path / "x.pt", minutes=1e-9, progress=lambda _: None)
    assert found.state.step == 1


def test_checkpoints_are_kept_now_and_then_and_progress_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt"
    monkeypatch.setattr(training, "PROGRESS_S", -1.0)
    monkeypatch.setattr(training, "CHECKPOINT_S", -1.0)
    steps = []

    def tell(line: str) -> None:
        steps.append(kept.load(path)["state"]["step"] if path.exists() else 0)
        assert line.startswith(f"step {len(steps)}, ")

    found = trainer(ALL)
    train(found, path, minutes=None, progress=tell)
    assert steps == list(range(found.state.step))


def test_the_rate_rises_holds_and_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "WARM_UP", 4)
    found = trainer(3 * ALL, layers=(0,), masks=0, optimizer="muon")
    rates: list[float] = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        rates.append(optimizer.param_groups[0]["lr"])

    with register_optimizer_step_pre_hook(keep):
        list(found.steps())
    assert rates[::2] == rates[1::2]  # of matrices, and of the rest
    rates = rates[::2]
    peak, third = max(rates), len(rates) // 3
    assert peak == found.settings.rate
    assert rates[0] == pytest.approx(peak / training.WARM_UP)
    assert set(rates[training.WARM_UP : third]) == {peak}
    falling = rates[2 * third :]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] < 0.1 * peak


def test_a_place_that_is_never_reached_does_not_count() -> None:
    """With masks that never agree, only the first of them is reached."""
    found = []
    for agreement in ([0.5, 0.0, 0.9], [0.0, 0.5, 0.9]):
        one = trainer(1, records=[each for each in RECORDS if len(each.tokens) > each.start + 8])
        one.state.agreement = agreement
        before = weights(one)["masks"]
        list(one.steps())
        found.append((weights(one)["masks"] - before).abs().amax(1).gt(0).tolist())
    assert found == [[True, False], [False, False]]


def test_a_masks_weight_is_what_it_counts() -> None:
    found = []
    for weight in (0.0, 1.0):
        one = trainer(1)
        one.settings = dataclasses.replace(one.settings, mask_weight=weight)
        before = weights(one)["masks"]
        list(one.steps())
        found.append(torch.equal(weights(one)["masks"], before))
    assert found == [True, False]


def test_masks_are_tried_after_their_share_of_the_budget() -> None:
    found = trainer(ALL, masks_from=0.5)
    before, due = weights(found)["masks"], []
    used = 0
    for state in found.steps():
        due.append(used >= ALL / 2)
        assert torch.equal(weights(found)["masks"], before) != due[-1]
        assert (state.agreement[1] == 0.5) != due[-1]
        used = state.tokens
    assert set(due) == {False, True}


@pytest.mark.parametrize(
    "other",
    [{"layers": (0, 1, 2)}, {"layers": (0,)}, {"masks": 1}, {"masks": 0}],
)
def test_a_checkpoint_of_another_student_is_refused(
    other: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    trainer(ALL).save(path)
    with pytest.raises(BuildError, match=r"x\.pt is of another student: .* Remove it"):
        trainer(ALL, **other).load(path)  # type: ignore[arg-type]
    kept.save(path, {"student": {}})
    with pytest.raises(BuildError, match="is of another student"):
        trainer(ALL).load(path)
    path.write_bytes(b"")
    with pytest.raises(BuildError, match="is damaged"):
        trainer(ALL).load(path)


@pytest.mark.parametrize(("count", "hidden"), [(ALL - 1, 32), (ALL + 1, 32), (ALL, 31)])
def test_states_of_another_text_are_refused(count: int, hidden: int) -> None:
    student = Decoder(random_target(), [0])
    with pytest.raises(BuildError, match="remove the folder states"):
        Trainer(student, RECORDS, torch.zeros(count, hidden), HEAD, Settings("tiny", tokens=1))


def test_nothing_to_train_on_is_refused() -> None:
    student = Decoder(random_target(), [0])
    with pytest.raises(BuildError, match="no text"):
        Trainer(student, [], torch.zeros(0, 32), HEAD, Settings("tiny", tokens=1))


def test_tokens_of_answers_count_twice_as_much() -> None:
    records = [
        Record(np.array([1, 1, 2, 3]), 2, 0.0, "x"),
        Record(np.array([4, 2]), 1, 0.0, "x"),
    ]
    assert counted(records, 6).tolist() == [0, 1, 2, 1, 0.5, 0]
