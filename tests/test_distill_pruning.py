"""The layer that matters least goes first."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from export import reference
from export.distill.corpus import Record
from export.distill.decoder import Decoder
from export.distill.pruning import best_layers
from export.model import Model
from tests.students import in_float32, random_records, random_target

pytestmark = pytest.mark.usefixtures("one_thread")
HEAD = torch.arange(0, 60, 2)


def best(target: Model, depth: int, records: Sequence[Record]) -> tuple[list[int], list[str]]:
    said: list[str] = []
    teacher = in_float32(Decoder(target, range(target.geometry.layers)))
    return best_layers(teacher, records, HEAD, depth, said.append), said


@pytest.mark.parametrize("idle", [0, 2, 3])
def test_a_layer_that_does_nothing_goes_first(idle: int) -> None:
    target = random_target(4)
    nothing = {
        f"layers.{idle}.{part}": np.zeros_like(target.weights[f"layers.{idle}.{part}"])
        for part in ("o", "down")
    }
    target = replace(target, weights={**target.weights, **nothing})
    layers, said = best(target, 3, random_records(3))
    assert layers == [layer for layer in range(4) if layer != idle]
    assert said == [f"without layer {idle}: {'-' * (': -' in said[0])}0.000, 3 are left"]


def kl_without(target: Model, layer: int, records: Sequence[Record]) -> float:
    """By the numpy reference, with the layer made to do nothing."""
    nothing = {
        f"layers.{layer}.{part}": 0 * target.weights[f"layers.{layer}.{part}"]
        for part in ("o", "down")
    }
    texts = [record.tokens.tolist() for record in records]
    whole, rest = (
        np.concatenate(reference.logits_of_texts(model, texts))[:, HEAD].astype(np.float64)
        for model in (target, replace(target, weights={**target.weights, **nothing}))
    )
    log_p, log_q = (each - np.log(np.exp(each).sum(1, keepdims=True)) for each in (whole, rest))
    return float((np.exp(log_p) * (log_p - log_q)).sum(1).mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_first_to_go_is_the_best_of_all_by_the_reference(seed: int) -> None:
    target, records = random_target(4, seed=seed), random_records(4, seed=seed)
    losses = [kl_without(target, layer, records) for layer in range(4)]
    first = int(np.argmin(losses))
    layers, said = best(target, 3, records)
    assert layers == [layer for layer in range(4) if layer != first]
    assert said == [f"without layer {first}: {losses[first]:.3f}, 3 are left"]


def test_each_round_leaves_out_one_more() -> None:
    target, records = random_target(4), random_records(2)
    chosen = [best(target, depth, records)[0] for depth in (4, 3, 2, 1)]
    assert chosen[0] == [0, 1, 2, 3]
    for more, fewer in pairwise(chosen):
        assert len(fewer) == len(more) - 1
        assert set(fewer) < set(more)
        assert fewer == sorted(fewer)
