"""Tuned lenses: a linear map that makes the target's head read its middle layers.

y = x + (A - 1) x, by a matrix A [hidden, hidden] for each layer, then the model's own norm and
head (Belrose et al. 2023, 2303.08112), trained by KL to the whole model's distribution.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, nn

from export.distill.batches import padded
from export.distill.corpus import Record
from export.distill.decoder import Decoder
from export.distill.loss import distance

RATE = 1e-3


def train_lenses(
    teacher: Decoder,
    records: Sequence[Record],
    layers: Sequence[int],
    head_tokens: Tensor,
    *,
    batch_tokens: int,
    progress: Callable[[str], None],
) -> dict[int, Tensor]:
    """One time through the records; for each layer a matrix [hidden, hidden] float32.

    `layers` counts the layers that the target has run before a lens reads its states.
    """
    teacher.requires_grad_(requires_grad=False)
    head = teacher.head(head_tokens)
    size = teacher.geometry.hidden
    lenses = {layer: nn.Parameter(torch.eye(size, device=head.device)) for layer in layers}
    optimizer = torch.optim.AdamW(list(lenses.values()), lr=RATE, weight_decay=0.0)
    steps = _batches(records, batch_tokens)
    for number, texts in enumerate(steps, 1):
        rows, real = padded([record.tokens for record in texts], head.device)
        with torch.no_grad():
            states = teacher.states(rows)
            aims = teacher.normed(states[-1]).flatten(0, 1)[real]
        weights = torch.full((len(real),), 1 / len(real), device=head.device)
        losses = []
        for layer, lens in lenses.items():
            read = F.linear(states[layer].flatten(0, 1)[real], lens.to(head.dtype))
            losses.append(distance(teacher.normed(read), aims, weights, head))
        torch.stack(losses).sum().backward()
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - (number - 1) / len(steps))
        optimizer.step()
        optimizer.zero_grad()
        told = ", ".join(f"{loss.item():.2f}" for loss in losses)
        progress(f"lenses after layers {', '.join(map(str, layers))}: losses {told}")
    return {layer: lens.detach() for layer, lens in lenses.items()}


def _batches(records: Sequence[Record], tokens: int) -> list[list[Record]]:
    """The records in their order, about so many tokens together."""
    found: list[list[Record]] = [[]]
    for record in records:
        if found[-1] and sum(len(each.tokens) for each in found[-1]) + len(record.tokens) > tokens:
            found.append([])
        found[-1].append(record)
    return found
