"""A student goes into a model of the export and back."""

from pathlib import Path

import numpy as np
import pytest
import torch

from export import draft_file, reference
from export.distill.decoder import Decoder
from export.distill.student import as_model, begin_as
from tests.students import VOCABULARY, in_float32, random_target, rows

pytestmark = pytest.mark.usefixtures("one_thread")
HEAD = torch.arange(1, VOCABULARY, 3)
TEXT = [5, 9, 2, 40, 41, VOCABULARY, VOCABULARY + 1]


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_computes_what_the_student_does(tied: bool) -> None:  # noqa: FBT001
    target = random_target(tied=tied)
    student = in_float32(Decoder(target, [0, 2], masks=2))
    model = as_model(student, target, HEAD)
    assert (model.tokens_per_pass, model.geometry.layers) == (3, 2)
    assert model.head_tokens is not None
    assert model.head_tokens.tolist() == HEAD.tolist()
    with torch.no_grad():
        found = student(rows(TEXT))[0] @ student.head(HEAD).T
    np.testing.assert_allclose(found.numpy(), reference.logits(model, TEXT), atol=2e-4)


def test_a_student_without_masks_is_a_model_without() -> None:
    target = random_target()
    assert "masks" not in as_model(Decoder(target, [1]), target, HEAD).weights


@pytest.mark.parametrize("masks", [0, 1, 2, 4])
def test_a_student_begins_as_a_draft(masks: int) -> None:
    target = random_target()
    earlier = Decoder(target, [0, 2], masks=2)
    with torch.no_grad():
        for each in earlier.parameters():
            each.add_(0.25)
    student = begin_as(as_model(earlier, target, HEAD), [0, 1], masks=masks)
    shared = min(masks, 2)
    for name, due in earlier.state_dict().items():
        found = student.state_dict()[name]
        if name == "masks":
            assert len(found) == masks
            assert torch.equal(found[:shared], due[:shared])
            assert torch.equal(found[2:], Decoder(target, [0], masks=masks).masks[2:])
        else:
            assert torch.equal(found, due)


def test_a_student_begins_as_some_layers_of_a_model() -> None:
    target = random_target()
    student = begin_as(target, [0, 2], masks=1).state_dict()
    for name, due in Decoder(target, [0, 2], masks=1).state_dict().items():
        assert torch.equal(student[name], due)


def test_a_draft_file_keeps_what_was_learnt_but_for_four_bits(tmp_path: Path) -> None:
    target, path = random_target(), tmp_path / "x.safetensors"
    student = Decoder(target, [0, 2], masks=2)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in student.parameters():
            each.add_(torch.randn(each.shape, generator=noise) * 0.02)
    model = as_model(student, target, HEAD)
    draft_file.save(path, model, target, [0, 2])
    found = draft_file.load(path, target, target_sha256="0" * 64)
    again = begin_as(found, [0, 1], masks=2)
    for name, due in student.state_dict().items():
        began = Decoder(target, [0, 2], masks=2).state_dict()[name]
        change = (due - began).abs().max()
        assert (again.state_dict()[name] - due).abs().max() < 0.15 * change, name
    assert draft_file.began_as(path) == [0, 2]
