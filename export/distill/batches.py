"""What a training step sees: conversations of like length, and where masks are tried in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from export.distill.corpus import Record
from export.distill.decoder import Rows

PROMPT_WEIGHT = 0.2  # of a row that predicts a prompt, beside 1 for one that predicts an answer


@dataclass(frozen=True, slots=True)
class Batch:
    """One pass: its rows, and for those that count what they should predict.

    chosen [n] int64: flat places of the rows among [B * T]; wanted [n] int64: for each the flat
    place in the corpus of the target's state that predicts the same token; place [n] int64: 0 for
    real tokens, i for the i-th mask; weights [n] float32; tokens: how many real ones there are.
    """

    rows: Rows
    chosen: Tensor
    wanted: Tensor
    place: Tensor
    weights: Tensor
    tokens: int

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        seen = self.rows.seen
        return Batch(
            Rows(
                self.rows.tokens.to(device),
                self.rows.positions.to(device),
                None if seen is None else seen.to(device),
            ),
            self.chosen.to(device),
            self.wanted.to(device),
            self.place.to(device),
            self.weights.to(device),
            self.tokens,
        )


def padded(texts: Sequence[NDArray[np.int64]], device: torch.device) -> tuple[Rows, Tensor]:
    """The rows of whole texts, the shorter ones followed by zeros, and which are of the texts.

    The latter [n] int64 are flat places among [B * T], text by text.
    """
    width = max(map(len, texts))
    tokens = np.zeros((len(texts), width), np.int64)
    real = np.zeros((len(texts), width), bool)
    for index, text in enumerate(texts):
        tokens[index, : len(text)], real[index, : len(text)] = text, True
    positions = torch.arange(width, device=device).expand(len(texts), -1)
    places = torch.from_numpy(np.flatnonzero(real)).to(device)
    return Rows(torch.from_numpy(tokens).to(device), positions), places


def shuffled(records: Sequence[Record], tokens: int, *, seed: int) -> Iterator[NDArray[np.int64]]:
    """Batches for one time through the records: indices of records of like length, in any order.

    Each holds at most about `tokens` tokens, padding counted.
    """
    random = np.random.default_rng(seed)
    lengths = np.array([len(record.tokens) for record in records])
    order = np.argsort(lengths + random.uniform(0, 32, len(lengths)))
    found, start = [], 0
    while start < len(order):
        end = start + 1
        while (
            end < len(order) and (end + 1 - start) * lengths[order[start : end + 1]].max() <= tokens
        ):
            end += 1
        found.append(order[start:end])
        start = end
    for place in random.permutation(len(found)):
        yield found[place]


def batch(
    records: Sequence[Record],
    offsets: Sequence[int],
    *,
    vocabulary: int,
    masks: int,
    blocks: float,
    random: np.random.Generator,
) -> Batch:
    """The rows of some records, which begin at `offsets` in the corpus's states.

    masks: how many follow a place where they are tried; blocks: at what share of the places of an
    answer. A block sees the text up to its place, and itself; its positions go on from there.
    """
    length = max(len(record.tokens) for record in records)
    starts = [_block_starts(record, masks, blocks, random) for record in records]
    width = length + masks * max(map(len, starts))
    tokens = np.zeros((len(records), width), np.int64)
    positions = np.zeros_like(tokens)
    seen = np.zeros((len(records), width, width), bool) if width > length else None
    chosen, wanted, place, weights = [], [], [], []
    for index, (record, offset, blocks_at) in enumerate(zip(records, offsets, starts, strict=True)):
        count = len(record.tokens)
        tokens[index, :count] = record.tokens
        positions[index, :length] = np.arange(length)
        real = np.arange(count - 1)
        chosen.append(index * width + real)
        wanted.append(offset + real)
        place.append(np.zeros(count - 1, np.int64))
        weights.append(np.where(real >= record.start - 1, 1.0, PROMPT_WEIGHT))
        if seen is not None:
            seen[index, :length, :length] = np.tri(length, dtype=bool)
            _add_blocks(
                (tokens[index], positions[index], seen[index]), blocks_at, length, masks, vocabulary
            )
            steps = np.arange(1, masks + 1)
            chosen.append(index * width + length + np.arange(len(blocks_at) * masks))
            wanted.append(offset + (blocks_at[:, None] + steps).ravel())
            place.append(np.tile(steps, len(blocks_at)))
            weights.append(np.ones(len(blocks_at) * masks))
    return Batch(
        Rows(
            torch.from_numpy(tokens),
            torch.from_numpy(positions),
            None if seen is None else torch.from_numpy(seen)[:, None],
        ),
        torch.from_numpy(np.concatenate(chosen)),
        torch.from_numpy(np.concatenate(wanted)),
        torch.from_numpy(np.concatenate(place)),
        torch.from_numpy(np.concatenate(weights)).float(),
        sum(len(record.tokens) for record in records),
    )


def _block_starts(
    record: Record, masks: int, blocks: float, random: np.random.Generator
) -> NDArray[np.int64]:
    """Places of the answer after which masks are tried: a share of those with enough text left."""
    first, end = record.start - 1, len(record.tokens) - masks - 1
    if not masks or end <= first:
        return np.empty(0, np.int64)
    count = min(end - first, max(1, round(blocks * (end - first))))
    return np.sort(random.choice(np.arange(first, end), count, replace=False))


def _add_blocks(
    rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]],
    starts: NDArray[np.int64],
    length: int,
    masks: int,
    vocabulary: int,
) -> None:
    """Fill in blocks of masks behind the first `length` rows; spare rows see themselves."""
    tokens, positions, seen = rows
    np.fill_diagonal(seen, val=True)
    for number, start in enumerate(starts.tolist()):
        block = slice(length + number * masks, length + (number + 1) * masks)
        tokens[block] = vocabulary + np.arange(masks)
        positions[block] = start + np.arange(1, masks + 1)
        seen[block, : start + 1] = True
        seen[block, block] = np.tri(masks, dtype=bool)
