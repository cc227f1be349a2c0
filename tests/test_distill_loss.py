"""Each loss and its gradient are those of plain torch, whatever the rows and their weights."""

import pytest
import torch
from torch import Tensor

from export.distill.loss import ROWS, SHARPNESS, distance
from export.distill.settings import Aim

pytestmark = pytest.mark.usefixtures("one_thread")
HIDDEN, TOKENS = 8, 19


def plainly(states: Tensor, aims: Tensor, weights: Tensor, head: Tensor, aim: Aim) -> Tensor:
    """The same, written with torch's own losses."""
    logits, wanted = states @ head.T, aims @ head.T
    if aim == "tv":
        parts = (logits.softmax(-1) - wanted.softmax(-1)).abs().sum(-1) / 2
    else:
        wanted = wanted * (SHARPNESS if aim == "sharp" else 1)
        parts = torch.nn.functional.kl_div(
            logits.log_softmax(-1), wanted.log_softmax(-1), reduction="none", log_target=True
        ).sum(-1)
    return (parts * weights).sum()


def case(rows: int) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    states, aims = (torch.randn(rows, HIDDEN, generator=random) for _ in range(2))
    head = torch.randn(TOKENS, HIDDEN, generator=random)
    return states, aims, torch.rand(rows, generator=random), head


def slopes(value: Tensor, states: Tensor) -> Tensor:
    return torch.autograd.grad(value, states)[0]


@pytest.mark.parametrize("rows", [1, 7, ROWS, ROWS + 1, 2 * ROWS + 3])
@pytest.mark.parametrize("aim", ["kl", "sharp", "tv"])
def test_value_and_gradient_are_those_of_autograd(aim: Aim, rows: int) -> None:
    states, aims, weights, head = case(rows)
    states.requires_grad_()
    value = distance(states, aims, weights, head, aim=aim)
    due = plainly(states, aims, weights, head, aim)
    torch.testing.assert_close(value, due, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(slopes(value, states), slopes(due, states), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("aim", ["kl", "tv"])
def test_there_is_no_distance_from_oneself(aim: Aim) -> None:
    states, _, weights, head = case(5)
    own = states.clone().requires_grad_()
    value = distance(own, states, weights, head, aim=aim)
    assert abs(value.item()) < 1e-6
    assert slopes(value, own).abs().max() < 1e-6


def test_a_row_without_weight_changes_nothing_and_a_double_weight_counts_twice() -> None:
    states, aims, weights, head = case(6)
    weights[2] = 0
    kept = torch.tensor([0, 1, 3, 4, 5])
    whole = distance(states, aims, weights, head)
    torch.testing.assert_close(distance(states[kept], aims[kept], weights[kept], head), whole)
    torch.testing.assert_close(distance(states, aims, 2 * weights, head), 2 * whole)


def test_the_gradient_of_what_follows_is_passed_on() -> None:
    states, aims, weights, head = case(4)
    states.requires_grad_()
    one, three = (distance(states, aims, weights, head) for _ in range(2))
    torch.testing.assert_close(slopes(3 * three, states), 3 * slopes(one, states))


def test_states_of_two_bytes_get_a_gradient_of_two_bytes_near_the_exact_one() -> None:
    states, aims, weights, head = (each.bfloat16().float() for each in case(40))
    exact = slopes(distance(states.requires_grad_(), aims, weights, head), states)
    rough = states.detach().bfloat16().requires_grad_()
    value = distance(rough, aims.bfloat16(), weights, head.bfloat16())
    found = slopes(value, rough)
    assert (value.dtype, found.dtype) == (torch.float32, torch.bfloat16)
    assert (found.float() - exact).abs().max() < 0.02 * exact.abs().max()


def test_no_logits_are_kept_for_the_way_back() -> None:
    states, aims, weights, head = case(ROWS + 9)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        distance(states.requires_grad_(), aims, weights, head)
    assert [each.shape for each in kept] == [states.shape]
