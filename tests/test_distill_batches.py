"""Batches: every record once, the right rows wanted, and masks that see just what they should."""

from itertools import chain

import numpy as np
import pytest
import torch

from export.distill.batches import PROMPT_WEIGHT, Batch, batch, padded, shuffled
from export.distill.corpus import Record
from export.distill.decoder import Decoder
from tests.students import CPU, VOCABULARY, in_float32, random_records, random_target, rows

pytestmark = pytest.mark.usefixtures("one_thread")


def record(tokens: list[int], start: int) -> Record:
    return Record(np.array(tokens, np.int64), start, 0.0, "x")


THREE = [record([5, 6, 7, 8, 9], 3), record([20, 21], 1), record([30, 31, 32, 33], 2)]
OFFSETS = [0, 5, 7]
CORPUS = np.concatenate([each.tokens for each in THREE])


def made(records: list[Record], offsets: list[int], masks: int, blocks: float) -> Batch:
    return batch(
        records,
        offsets,
        vocabulary=VOCABULARY,
        masks=masks,
        blocks=blocks,
        random=np.random.default_rng(0),
    )


def test_each_record_stands_in_one_batch_of_an_epoch() -> None:
    records = random_records(200)
    for seed in range(3):
        batches = list(shuffled(records, 150, seed=seed))
        assert sorted(np.concatenate(batches).tolist()) == list(range(200))
        for indices in batches:
            lengths = [len(records[index].tokens) for index in indices]
            assert len(indices) == 1 or max(lengths) * len(indices) <= 150
            assert max(lengths) - min(lengths) <= 33  # they are of like length


def test_the_order_depends_on_the_seed_alone() -> None:
    records = random_records(100)
    one, again, other = (
        [indices.tolist() for indices in shuffled(records, 200, seed=seed)] for seed in (1, 1, 2)
    )
    assert one == again != other
    assert {len(indices) for indices in one} != {1}
    assert [max(each) for each in one] != sorted(max(each) for each in one)


def test_a_record_that_is_longer_than_a_batch_stands_alone() -> None:
    records = [record(list(range(9)), 2), *THREE]
    batches = [indices.tolist() for indices in shuffled(records, 8, seed=0)]
    assert [0] in batches
    assert sorted(chain.from_iterable(batches)) == [0, 1, 2, 3]
    assert list(shuffled([], 8, seed=0)) == []


def test_rows_without_masks_predict_the_next_token() -> None:
    found = made(THREE, OFFSETS, 0, 0.5)
    assert found.rows.seen is None
    assert found.rows.tokens.tolist() == [[5, 6, 7, 8, 9], [20, 21, 0, 0, 0], [30, 31, 32, 33, 0]]
    assert found.rows.positions.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert found.chosen.tolist() == [0, 1, 2, 3, 5, 10, 11, 12]
    assert found.wanted.tolist() == [0, 1, 2, 3, 5, 7, 8, 9]
    assert found.place.tolist() == [0] * 8
    low = PROMPT_WEIGHT
    np.testing.assert_allclose(found.weights, [low, low, 1, 1, 1, low, 1, 1])
    assert found.tokens == 11
    # The state at a place predicts the token after it.
    after = [6, 7, 8, 9, 21, 31, 32, 33]
    assert CORPUS[found.wanted + 1].tolist() == after


def test_masks_follow_every_place_of_an_answer_that_leaves_enough_text() -> None:
    found = made(THREE, OFFSETS, 2, 1.0)
    # The answer of the first record is of two tokens: after place 2 there is no text for a third.
    assert found.rows.tokens.shape == (3, 5)
    assert set(found.place.tolist()) == {0}
    longer = [record([1, 2, 3, 4, 5, 6], 2), *THREE]
    found = made(longer, [0, 6, 11, 13], 2, 1.0)
    first, second = VOCABULARY, VOCABULARY + 1
    assert found.rows.tokens[0].tolist() == [1, 2, 3, 4, 5, 6, first, second, first, second]
    assert found.rows.positions[0].tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 3, 4]
    assert found.rows.tokens[1, 6:].tolist() == [0] * 4
    own = found.chosen < 10
    assert found.chosen[own].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert found.place[own].tolist() == [0, 0, 0, 0, 0, 1, 2, 1, 2]
    assert found.wanted[own].tolist() == [0, 1, 2, 3, 4, 2, 3, 3, 4]
    np.testing.assert_allclose(found.weights[own], [PROMPT_WEIGHT, 1, 1, 1, 1, 1, 1, 1, 1])
    assert found.tokens == 17


@pytest.mark.parametrize(("blocks", "count"), [(0.0, 1), (0.1, 2), (0.5, 10), (1.0, 19)])
def test_a_share_of_the_places_is_tried(blocks: float, count: int) -> None:
    long = record(list(range(30)), 8)  # places 7 to 25, of which the last leaves 4 tokens
    found = made([long], [100], 3, blocks)
    starts = found.wanted[found.place == 1] - 101
    assert len(set(starts.tolist())) == len(starts) == count
    assert 7 <= starts.min() <= starts.max() <= 25
    assert starts.tolist() == sorted(starts.tolist())
    for mask in (2, 3):
        assert (found.wanted[found.place == mask] - 100 - mask).tolist() == starts.tolist()


@pytest.mark.parametrize("masks", [1, 2, 4])
def test_a_block_of_masks_is_as_the_text_so_far_with_masks_behind_it(masks: int) -> None:
    student = in_float32(Decoder(random_target(), [0, 2], masks=masks))
    texts = [record(list(range(10, 22)), 3), record(list(range(40, 49)), 1)]
    found = made(texts, [0, 12], masks, 1.0)
    own_masks = list(range(VOCABULARY, VOCABULARY + masks))
    width = found.rows.tokens.shape[1]
    with torch.no_grad():
        states = student(found.rows)
        seen = 0
        for index, text in enumerate(texts):
            whole = student(rows(text.tokens.tolist()))[0]
            torch.testing.assert_close(
                states[index, : len(text.tokens)], whole, atol=1e-5, rtol=1e-5
            )
            chosen = found.chosen[(found.chosen // width == index) & (found.place == 1)]
            for first in chosen.tolist():
                place = int(found.rows.positions[index, first - index * width]) - 1
                alone = student(rows([*text.tokens[: place + 1].tolist(), *own_masks]))[0, -masks:]
                block = states[index, first - index * width :][:masks]
                torch.testing.assert_close(block, alone, atol=1e-5, rtol=1e-5)
                seen += 1
    assert seen == sum(len(text.tokens) - masks - text.start for text in texts)


def test_no_row_is_blind() -> None:
    found = made([record(list(range(20)), 2), record([1, 2], 1)], [0, 20], 3, 1.0)
    assert found.rows.seen is not None
    assert found.rows.seen.any(-1).all()
    student = Decoder(random_target(), [0], masks=3)
    assert student(found.rows).isfinite().all()


def test_the_same_chance_makes_the_same_batch() -> None:
    records, offsets = random_records(5), [0, 50, 100, 150, 200]
    one, again = (made(records, offsets, 2, 0.3) for _ in range(2))
    assert torch.equal(one.rows.tokens, again.rows.tokens)
    assert torch.equal(one.wanted, again.wanted)
    moved = one.to(CPU)
    assert torch.equal(moved.rows.tokens, one.rows.tokens)
    assert moved.tokens == one.tokens
    assert moved.rows.seen is not None


def test_shorter_texts_are_followed_by_zeros() -> None:
    found, real = padded([each.tokens for each in THREE], CPU)
    assert real.tolist() == [0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13]
    assert found.tokens.tolist() == [[5, 6, 7, 8, 9], [20, 21, 0, 0, 0], [30, 31, 32, 33, 0]]
    assert found.positions.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert found.seen is None
