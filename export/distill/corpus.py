"""The corpus: conversations as token ids, in compressed files that appear when they are whole."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Record:
    """One conversation: `tokens` [n] int64, of which the last from `start` on are the answer.

    The answer is whole where the last token is an end token. `temperature` is what it was written
    at; `template` names what its prompt was made from.
    """

    tokens: Tokens
    start: int
    temperature: float
    template: str


def save(path: Path, records: Sequence[Record]) -> None:
    """Write records to `path`; whoever reads meanwhile sees all of them or no file."""
    names = sorted({record.template for record in records})
    half = path.with_name(f"half-{path.name}")
    with half.open("wb") as stream:
        np.savez_compressed(
            stream,
            tokens=_narrow(np.concatenate([record.tokens for record in records])),
            lengths=np.array([len(record.tokens) for record in records], np.uint32),
            starts=np.array([record.start for record in records], np.uint32),
            temperatures=np.array([record.temperature for record in records], np.float32),
            templates=np.array([names.index(record.template) for record in records], np.uint16),
            names=np.array(names),
        )
    half.replace(path)


def load(paths: Iterable[Path]) -> Iterator[Record]:
    """The records of files, in order; OSError or ValueError for one that is damaged."""
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
        ends = np.cumsum(data["lengths"], dtype=np.int64)
        tokens = data["tokens"].astype(np.int64)
        for end, length, start, temperature, template in zip(
            ends.tolist(),
            data["lengths"].tolist(),
            data["starts"].tolist(),
            data["temperatures"].tolist(),
            data["templates"].tolist(),
            strict=True,
        ):
            yield Record(
                tokens[end - length : end], start, temperature, str(data["names"][template])
            )


def _narrow(tokens: Tokens) -> NDArray[np.unsignedinteger[Any]]:
    return tokens.astype(np.uint16 if tokens.max(initial=0) < 1 << 16 else np.uint32)
