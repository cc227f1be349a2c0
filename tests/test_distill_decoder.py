"""The decoder in torch computes what the numpy reference does, masks and all."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from export import reference
from export.distill.decoder import MATRICES, NORMS, Decoder, Rows, most_used
from export.model import Model
from tests.graphs import TEXT, tiny_model
from tests.students import VOCABULARY, in_float32, random_target, rows

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = np.random.default_rng(7).integers(0, VOCABULARY, 30).tolist()


def logits(decoder: Decoder, seen: Rows) -> NDArray[np.float32]:
    """Over the whole vocabulary, [T, vocabulary] of the first text."""
    with torch.no_grad():
        found = decoder(seen)[0] @ decoder.head(torch.arange(len(decoder.output))).T
    return np.asarray(found.float().numpy())


@pytest.mark.parametrize("tied", [True, False])
def test_all_layers_are_the_reference(tied: bool) -> None:  # noqa: FBT001
    target = random_target(tied=tied)
    decoder = in_float32(Decoder(target, range(3)))
    due = reference.logits(target, TOKENS)
    np.testing.assert_allclose(logits(decoder, rows(TOKENS)), due, atol=2e-4)


def test_two_bytes_cost_what_two_bytes_cost(tmp_path: Path) -> None:
    target = tiny_model(tmp_path)
    text = TEXT.tolist()
    due = reference.logits(target, text)
    found = logits(Decoder(target, range(2)), rows(text))
    assert np.abs(found - due).max() < 0.05 * np.ptp(due)
    assert np.abs(found - due).mean() < 0.005 * np.ptp(due)


def test_rotary_factors_count() -> None:
    target = random_target()
    stretched = replace(
        target, weights={**target.weights, "rope_factors": np.array([1, 1, 4, 8], np.float32)}
    )
    found = logits(in_float32(Decoder(stretched, range(3))), rows(TOKENS))
    np.testing.assert_allclose(found, reference.logits(stretched, TOKENS), atol=2e-4)
    assert np.abs(found - reference.logits(target, TOKENS)).max() > 0.01


def shallow(target: Model, layers: list[int], masks: Tensor | None = None) -> Model:
    """Some layers of the target as a model of their own."""
    weights = {name: it for name, it in target.weights.items() if not name.startswith("layers.")}
    for own, layer in enumerate(layers):
        weights |= {
            f"layers.{own}.{part}": target.weights[f"layers.{layer}.{part}"]
            for part in (*MATRICES, *NORMS)
        }
    if masks is not None:
        weights["masks"] = np.asarray(masks.detach().numpy())
    return Model(replace(target.geometry, layers=len(layers)), weights)


def test_some_layers_and_masks_are_the_reference() -> None:
    target = random_target()
    student = in_float32(Decoder(target, [0, 2], masks=3))
    text = [*TOKENS, VOCABULARY, VOCABULARY + 1, VOCABULARY + 2]
    due = reference.logits(shallow(target, [0, 2], student.masks), text)
    np.testing.assert_allclose(logits(student, rows(text)), due, atol=2e-4)
    assert np.abs(due[-1] - due[-2]).max() > 0.1


def test_texts_of_a_pass_do_not_see_each_other_nor_what_follows() -> None:
    target = random_target()
    decoder = in_float32(Decoder(target, range(3)))
    other = TOKENS[:4] + TOKENS[:-5:-1] + TOKENS[8:]
    with torch.no_grad():
        alone, both = decoder(rows(TOKENS))[0], decoder(rows(other, TOKENS))
    torch.testing.assert_close(both[1], alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(both[0, :4], alone[:4], atol=1e-5, rtol=0)
    assert (both[0, 8:] - alone[8:]).abs().max() > 0.01


def test_it_computes_the_same_whether_or_not_it_learns_and_who_sees_whom_is_said() -> None:
    decoder = in_float32(Decoder(random_target(), range(3)))
    plain = rows(TOKENS, TOKENS[::-1])
    said = replace(plain, seen=torch.ones(30, 30, dtype=torch.bool).tril()[None, None])
    learning = decoder(plain)
    assert learning.requires_grad
    with torch.no_grad():
        for found in (decoder(plain), decoder(said)):
            torch.testing.assert_close(found, learning.detach(), atol=1e-5, rtol=1e-5)
        only = replace(plain, seen=torch.eye(30, dtype=torch.bool)[None, None])
        assert (decoder(only) - learning).abs().max() > 0.01
    torch.testing.assert_close(decoder(said), learning, atol=1e-5, rtol=1e-5)


def test_positions_may_lie_anywhere() -> None:
    decoder = in_float32(Decoder(random_target(), range(3)))
    later = Rows(torch.tensor([TOKENS]), torch.arange(30)[None] + 34)
    with torch.no_grad():  # only how far two rows are apart counts
        torch.testing.assert_close(decoder(later), decoder(rows(TOKENS)), atol=1e-4, rtol=1e-4)
        spread = replace(later, positions=torch.arange(30)[None] * 2)
        assert (decoder(spread) - decoder(later)).abs().max() > 0.01


def test_states_begin_with_the_embedding_and_end_before_the_norm() -> None:
    decoder = Decoder(random_target(), range(3), masks=1)
    with torch.no_grad():
        states = decoder.states(rows([1, 2, VOCABULARY]))
        assert len(states) == 4
        assert torch.equal(states[0][0, :2], decoder.embedding[1:3])
        assert torch.equal(states[0][0, 2], decoder.masks[0].bfloat16())
        assert torch.equal(decoder.normed(states[-1]), decoder(rows([1, 2, VOCABULARY])))
    assert all(state.dtype == torch.bfloat16 for state in states)


def test_tables_are_frozen_and_not_kept_and_the_rest_learns() -> None:
    student = Decoder(random_target(tied=False), [1, 2], masks=2)
    student(rows([1, VOCABULARY, VOCABULARY + 1])).float().sum().backward()
    names = {f"layers.{layer}.{part}" for layer in (0, 1) for part in (*MATRICES, *NORMS)}
    learnt = dict(student.named_parameters())
    assert set(learnt) == names | {"norm", "masks"} == set(student.state_dict())
    assert all(each.grad is not None and each.grad.abs().max() > 0 for each in learnt.values())
    assert all(each.dtype == torch.float32 for each in learnt.values())


def test_masks_begin_near_the_mean_embedding_and_apart_from_each_other() -> None:
    target = random_target()
    table = target.weights["embedding"]
    students = [Decoder(target, [0], masks=4) for _ in range(2)]
    masks = students[0].masks.detach().numpy()
    assert torch.equal(students[0].masks, students[1].masks)
    assert np.abs((masks - table.mean(0)) / table.std(0)).max() < 2.5
    assert np.abs(np.diff(masks, axis=0)).max() > 0.05
    assert len(Decoder(target, [0]).masks) == 0


def test_the_most_used_ascend_and_ties_go_to_low_ids() -> None:
    counts = np.array([3, 0, 5, 3, 3, 0, 9])
    assert most_used(counts, 1).tolist() == [6]
    assert most_used(counts, 3).tolist() == [0, 2, 6]
    assert most_used(counts, 4).tolist() == [0, 2, 3, 6]
    assert most_used(counts, 6).tolist() == [0, 1, 2, 3, 4, 6]
    assert most_used(counts, 7).tolist() == most_used(counts, 99).tolist() == list(range(7))
    assert most_used(np.array([0.5, 1.0, 0.5]), 2).tolist() == [0, 1]
