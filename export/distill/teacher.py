"""What the target thinks at every place of the corpus: its normed last states, kept on the disk.

With the frozen head they give its whole distribution over any short list. They are computed in
bfloat16 from the target's own weights; the text itself comes from the graph the target runs in.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from export.distill import kept
from export.distill.batches import padded
from export.distill.corpus import Record, load
from export.distill.decoder import Decoder

ROWS = 4096  # of a pass, padding counted


def states_file(corpus_file: Path, folder: Path) -> Path:
    """Where the states of one corpus file lie."""
    return folder / corpus_file.with_suffix(".states.pt").name


def keep_states(
    teacher: Decoder, files: Sequence[Path], folder: Path, progress: Callable[[str], None]
) -> None:
    """Compute the states of each corpus file that has none in `folder` yet."""
    for number, file in enumerate(files, 1):
        path = states_file(file, folder)
        if path.exists():
            continue
        states = think(teacher, list(load([file])))
        kept.save(path, states)
        progress(
            f"{path.name}: the target's states at {len(states)} places ({number}/{len(files)})"
        )


def think(teacher: Decoder, records: Sequence[Record]) -> Tensor:
    """The teacher's normed last states [tokens of all records, hidden] bfloat16, in their order."""
    lengths = np.array([len(record.tokens) for record in records], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    device = teacher.embedding.device
    states = torch.empty(int(offsets[-1]), teacher.geometry.hidden, dtype=torch.bfloat16)
    order = np.argsort(lengths, kind="stable")
    passes = min(len(order), 1 + int(lengths.max(initial=0)) * len(order) // ROWS)
    with torch.inference_mode():
        for indices in np.array_split(order, passes) if passes else ():
            rows, real = padded([records[index].tokens for index in indices], device)
            found = teacher(rows).flatten(0, 1)[real].cpu()
            parts = found.split(lengths[indices].tolist())
            for part, index in zip(parts, indices.tolist(), strict=True):
                states[offsets[index] : offsets[index + 1]] = part
    return states
