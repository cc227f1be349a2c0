"""Which layers of the target a shallow student should start from."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from export.distill.batches import padded
from export.distill.corpus import Record
from export.distill.decoder import Decoder
from export.distill.loss import distance


@torch.inference_mode()
def best_layers(
    teacher: Decoder,
    records: Sequence[Record],
    head_tokens: Tensor,
    depth: int,
    progress: Callable[[str], None],
) -> list[int]:
    """Leave out layer after layer, each time the one whose loss changes the output least.

    Measured by the KL from the whole model's distribution over `head_tokens` [n] int64 at every
    place of `records`; what stands before the layer left out is computed once a round (greedy layer
    dropping, as in Zhong et al. 2024, BlockPruner, 2406.10594). Returns `depth` layers, ascending.
    """
    head = teacher.head(head_tokens)
    rows, real = padded([record.tokens for record in records], head.device)
    layers = list(range(len(teacher.layers)))
    aims = teacher(rows).flatten(0, 1)[real]
    weights = torch.full((len(aims),), 1 / len(aims), device=head.device)
    turn = teacher.turn(rows.positions)

    def missed(x: Tensor, rest: Sequence[int]) -> float:
        for layer in rest:
            x = teacher.layers[layer](x, turn, rows.seen)
        return distance(teacher.normed(x).flatten(0, 1)[real], aims, weights, head).item()

    while len(layers) > depth:
        x, losses = teacher.embed(rows.tokens), []
        for place, layer in enumerate(layers):
            losses.append(missed(x, layers[place + 1 :]))
            x = teacher.layers[layer](x, turn, rows.seen)
        worst = min(range(len(layers)), key=losses.__getitem__)
        progress(f"without layer {layers[worst]}: {losses[worst]:.3f}, {len(layers) - 1} are left")
        del layers[worst]
    return layers
