"""How far a student's next-token distribution is from its target's, over the short list.

The head is frozen, so each loss gives the gradient of the student's states at once, and the
logits, far larger than the states, are never kept. Aims, by what is matched at each row:

    kl      forward KL from the target's distribution (Hinton et al. 2015)
    sharp   the same from the target's distribution at a lower temperature, nearer to its choice
    tv      the total variation between the two, which is the share of rejections under rejection
            sampling (Zhou et al. 2024, DistillSpec, 2310.08461)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from export.distill.settings import Aim

ROWS = 512  # whose logits are in memory at once
SHARPNESS = 2.0  # an inverse temperature


def distance(
    states: Tensor, aims: Tensor, weights: Tensor, head: Tensor, *, aim: Aim = "kl"
) -> Tensor:
    """The weighted sum of the losses of rows, with a gradient for `states` only.

    states, aims [n, hidden]: the student's and the target's normed last states; weights [n]
    float32; head [tokens, hidden] in the states' dtype.
    """
    value: Tensor = _Distance.apply(states, aims, weights, head, _LOSSES[aim])
    return value


class _Distance(torch.autograd.Function):
    """Loss and gradient in one go, a few rows at a time."""

    @staticmethod
    def forward(
        context: Any,
        states: Tensor,
        aims: Tensor,
        weights: Tensor,
        head: Tensor,
        loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    ) -> Tensor:
        total = torch.zeros((), device=states.device)
        gradient = torch.empty_like(states)
        for rows in torch.arange(len(states)).split(ROWS):
            cut = slice(int(rows[0]), int(rows[-1]) + 1)
            losses, slopes = loss((states[cut] @ head.T).float(), (aims[cut] @ head.T).float())
            total += losses @ weights[cut]
            gradient[cut] = (slopes.to(head.dtype) @ head) * weights[cut, None]
        context.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(context: Any, *outputs: Any) -> Any:
        (gradient,) = context.saved_tensors
        return gradient * outputs[0], None, None, None, None


def _kl(logits: Tensor, aims: Tensor) -> tuple[Tensor, Tensor]:
    """Forward KL [n] and its slopes by the student's logits [n, tokens]."""
    p, log_q = aims.softmax(-1), logits.log_softmax(-1)
    negentropy = torch.linalg.vecdot(p, aims) - aims.logsumexp(-1)
    losses = negentropy - torch.linalg.vecdot(p, log_q)
    return losses, log_q.exp_().sub_(p)


def _sharp(logits: Tensor, aims: Tensor) -> tuple[Tensor, Tensor]:
    return _kl(logits, aims * SHARPNESS)


def _tv(logits: Tensor, aims: Tensor) -> tuple[Tensor, Tensor]:
    p, q = aims.softmax(-1), logits.softmax(-1)
    sign = (q - p).sign_()
    slopes = q * (sign - (q * sign).sum(-1, keepdim=True)) / 2
    return (p - q).abs().sum(-1) / 2, slopes


_LOSSES: dict[Aim, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "kl": _kl,
    "sharp": _sharp,
    "tv": _tv,
}
