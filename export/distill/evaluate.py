"""How often a student names the very token that the target wrote, place by place."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor

from export.distill.batches import batch, padded
from export.distill.corpus import Record
from export.distill.decoder import Decoder
from export.distill.settings import TOP

TOGETHER = 8  # records of a pass
EXIT_TOPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of the tokens at each place that were the first choice, and among the first five.

    Place 1 is predicted by the last real token, place i + 1 by the i-th mask after it.
    """

    tokens: tuple[int, ...]
    first: tuple[float, ...]
    among_five: tuple[float, ...]


@torch.inference_mode()
def agreement(
    student: Decoder, records: Sequence[Record], head_tokens: Tensor, *, blocks: float = 0.25
) -> Agreement:
    """Of the answers of `records`, with masks after a share `blocks` of the places.

    head_tokens [n] int64: the student's short list. Meant for answers at temperature 0.
    """
    head_tokens = head_tokens.to(student.embedding.device)
    head = student.head(head_tokens)
    places = 1 + len(student.masks)
    counts = torch.zeros(3, places)
    for group, offsets in _groups(records):
        made = batch(
            group,
            offsets,
            vocabulary=len(student.embedding),
            masks=places - 1,
            blocks=blocks,
            random=np.random.default_rng(0),
        ).to(head.device)
        text = torch.from_numpy(np.concatenate([record.tokens for record in group]))
        answer = torch.nonzero(made.weights == 1)[:, 0]
        states = student(made.rows).flatten(0, 1)[made.chosen[answer]]
        best = head_tokens[(states @ head.T).topk(TOP).indices]
        right = best == text.to(head.device)[made.wanted[answer] + 1][:, None]
        for place in range(places):
            rows = right[made.place[answer] == place]
            found = torch.stack([torch.ones(len(rows)), rows[:, 0].cpu(), rows.any(1).cpu()])
            counts[:, place] += found.sum(1)
    total = counts[0].clamp(min=1)
    return Agreement(
        tuple(map(int, counts[0].tolist())),
        tuple((counts[1] / total).tolist()),
        tuple((counts[2] / total).tolist()),
    )


@torch.inference_mode()
def lens_agreement(
    teacher: Decoder,
    lenses: Mapping[int, Tensor],
    records: Sequence[Record],
    head_tokens: Tensor,
) -> dict[int, tuple[float, ...]]:
    """Shares of the answers' tokens among the first 1, 2, 4, 8, 16 that each layer's lens reads.

    lenses [hidden, hidden] by how many layers the teacher has run.
    """
    head_tokens = head_tokens.to(teacher.embedding.device)
    head = teacher.head(head_tokens)
    most = min(EXIT_TOPS[-1], len(head_tokens))
    found = {layer: torch.zeros(len(EXIT_TOPS)) for layer in lenses}
    count = 0
    for group, offsets in _groups(records):
        rows, real = padded([record.tokens for record in group], head.device)
        before = np.concatenate(
            [
                np.arange(offset + record.start - 1, offset + len(record.tokens) - 1)
                for offset, record in zip(offsets, group, strict=True)
            ]
        )
        text = np.concatenate([record.tokens for record in group])
        due = torch.from_numpy(text[before + 1]).to(head.device)[:, None]
        chosen = real[torch.from_numpy(before).to(head.device)]
        states = teacher.states(rows)
        count += len(before)
        for layer, lens in lenses.items():
            read = F.linear(states[layer].flatten(0, 1)[chosen], lens.to(head.dtype))
            best = head_tokens[(teacher.normed(read) @ head.T).topk(most).indices]
            right = (best == due).cumsum(1)[:, [min(top, most) - 1 for top in EXIT_TOPS]]
            found[layer] += right.sum(0).cpu()
    return {layer: tuple((shares / max(count, 1)).tolist()) for layer, shares in found.items()}


def _groups(records: Sequence[Record]) -> Iterator[tuple[list[Record], list[int]]]:
    """Records of like length, and where each begins in the joined text of its group."""
    ordered = sorted(records, key=lambda record: len(record.tokens))
    for start in range(0, len(ordered), TOGETHER):
        group = ordered[start : start + TOGETHER]
        ends = np.cumsum([len(record.tokens) for record in group])
        yield group, [0, *ends[:-1].tolist()]
