"""A lens begins as the identity, is it after the last layer, and learns elsewhere."""

import pytest
import torch

from export.distill.decoder import Decoder
from export.distill.lens import train_lenses
from tests.students import in_float32, random_records, random_target

pytestmark = pytest.mark.usefixtures("one_thread")
HEAD = torch.arange(0, 60, 2)


def trained(
    layers: list[int], *, records: int = 60, tokens: int = 100
) -> tuple[dict[int, torch.Tensor], list[list[float]]]:
    """The lenses, and the losses told step by step."""
    said: list[str] = []
    lenses = train_lenses(
        in_float32(Decoder(random_target(), range(3)).eval()),
        random_records(records),
        layers,
        HEAD,
        batch_tokens=tokens,
        progress=said.append,
    )
    return lenses, [
        [float(number) for number in line.rpartition("losses ")[2].split(", ")] for line in said
    ]


def test_after_the_last_layer_the_identity_stays() -> None:
    lenses, losses = trained([3])
    assert all(loss[0] < 0.005 for loss in losses)
    assert (lenses[3] - torch.eye(32)).abs().max() < 0.05


def test_the_loss_falls_after_other_layers() -> None:
    lenses, losses = trained([1, 2], records=200)
    assert list(lenses) == [1, 2]
    for place, lens in enumerate(lenses.values()):
        own = [loss[place] for loss in losses]
        tenth = len(own) // 10
        assert sum(own[-tenth:]) < 0.9 * sum(own[:tenth])
        assert lens.shape == (32, 32)
        assert lens.dtype == torch.float32
        assert not lens.requires_grad
    # The later layer is the nearer one.
    assert sum(loss[1] for loss in losses) < sum(loss[0] for loss in losses)


def test_each_record_is_seen_once_and_the_teacher_stays() -> None:
    before = {
        name: it.clone() for name, it in Decoder(random_target(), range(3)).state_dict().items()
    }
    teacher = Decoder(random_target(), range(3)).eval()
    records = random_records(10)
    said: list[str] = []
    train_lenses(teacher, records, [2], HEAD, batch_tokens=1, progress=said.append)
    assert len(said) == 10
    assert all(torch.equal(it, before[name]) for name, it in teacher.state_dict().items())
    assert all(each.grad is None for each in teacher.parameters())
