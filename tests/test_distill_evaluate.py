"""Agreement is counted place by place, against the text that the target wrote."""

import numpy as np
import pytest
import torch

from export.distill.corpus import Record
from export.distill.decoder import Decoder
from export.distill.evaluate import EXIT_TOPS, agreement, lens_agreement
from export.model import Model
from tests.students import VOCABULARY, in_float32, random_records, random_target, rows

pytestmark = pytest.mark.usefixtures("one_thread")
EVERY = torch.arange(VOCABULARY)


def written(target: Model, count: int) -> list[Record]:
    """What the target answers greedily to random prompts."""
    decoder = in_float32(Decoder(target, range(target.geometry.layers)))
    records: list[Record] = []
    for record in random_records(count, longest=12):
        text = record.tokens.tolist()
        start = len(text)
        for _ in range(10 + len(records) % 3):
            with torch.no_grad():
                text.append(int((decoder(rows(text))[0, -1] @ decoder.head(EVERY).T).argmax()))
        records.append(Record(np.array(text), start, 0.0, "x"))
    return records


@pytest.mark.parametrize("tied", [True, False])
def test_the_target_agrees_with_its_own_greedy_text(tied: bool) -> None:  # noqa: FBT001
    target = random_target(tied=tied)
    records = written(target, 9)
    found = agreement(in_float32(Decoder(target, range(3))), records, EVERY)
    assert found.first == found.among_five == (1.0,)
    assert found.tokens == (sum(len(each.tokens) - each.start for each in records),)


def test_every_place_is_counted_as_by_hand() -> None:
    target = random_target()
    student = in_float32(Decoder(target, [0, 2], masks=2))
    head_tokens = torch.arange(0, VOCABULARY, 3)
    records = written(target, 10)
    found = agreement(student, records, head_tokens, blocks=1.0)
    counts = np.zeros((3, 3))
    for record in records:
        text = record.tokens.tolist()
        for place in range(record.start - 1, len(text) - 1):
            block = [VOCABULARY, VOCABULARY + 1] if place < len(text) - 3 else []
            with torch.no_grad():
                states = student(rows([*text[: place + 1], *block]))[0]
            ranked = (states[place:] @ student.head(head_tokens).T).argsort(descending=True)
            for ahead, row in enumerate(head_tokens[ranked[:, :5]].tolist()):
                due = text[place + 1 + ahead]
                counts[:, ahead] += [1, row[0] == due, due in row]
    assert found.tokens == tuple(counts[0])
    assert found.first == pytest.approx(counts[1] / counts[0])
    assert found.among_five == pytest.approx(counts[2] / counts[0])
    assert 0 < found.first[0] < found.among_five[0] < 1


def test_a_token_that_is_not_on_the_list_is_never_named() -> None:
    target = random_target()
    records = written(target, 4)
    used = np.unique(np.concatenate([each.tokens[each.start :] for each in records]))
    unused = torch.from_numpy(np.setdiff1d(np.arange(VOCABULARY), used))
    found = agreement(in_float32(Decoder(target, range(3))), records, unused)
    assert found.first == found.among_five == (0.0,)


def test_places_that_no_text_reaches_count_nothing() -> None:
    record = Record(np.array([1, 2, 3]), 2, 0.0, "x")
    found = agreement(Decoder(random_target(), [0], masks=2), [record], EVERY)
    assert found.tokens == (1, 0, 0)
    assert found.first[1:] == found.among_five[1:] == (0.0, 0.0)


def test_a_lens_is_counted_as_by_hand() -> None:
    target = random_target()
    teacher = in_float32(Decoder(target, range(3)))
    head_tokens = torch.arange(0, VOCABULARY, 2)
    records = written(target, 9)
    turned = torch.eye(32).flip(0)
    found = lens_agreement(teacher, {3: torch.eye(32), 1: turned}, records, head_tokens)
    counts = {1: np.zeros(len(EXIT_TOPS)), 3: np.zeros(len(EXIT_TOPS))}
    for record in records:
        text = record.tokens.tolist()
        with torch.no_grad():
            states = teacher.states(rows(text))
            for layer, lens in ((1, turned), (3, torch.eye(32))):
                read = teacher.normed(states[layer][0] @ lens.T) @ teacher.head(head_tokens).T
                ranked = head_tokens[read.argsort(descending=True)].tolist()
                for place in range(record.start, len(text)):
                    counts[layer] += [text[place] in ranked[place - 1][:top] for top in EXIT_TOPS]
    tokens = sum(len(each.tokens) - each.start for each in records)
    for layer, due in counts.items():
        assert found[layer] == pytest.approx(due / tokens)
    assert found[3][-1] > found[1][-1]
    narrow = lens_agreement(teacher, {3: torch.eye(32)}, records, head_tokens[:3])
    assert narrow[3][2] == narrow[3][4]  # there are but three
