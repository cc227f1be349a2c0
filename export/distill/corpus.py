"""The corpus: conversations as token ids, in compressed files that appear when they are whole."""

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BuildError

Tokens = NDArray[np.int64]

OF_RECORDS = ("lengths", "starts", "temperatures", "templates")  # a number for each
ARRAYS = ("tokens", *OF_RECORDS, "names")


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
    texts = [record.tokens for record in records] or [np.empty(0, np.int64)]
    half = path.with_name(f"half-{path.name}")
    with half.open("wb") as stream:
        np.savez_compressed(
            stream,
            tokens=_narrow(np.concatenate(texts)),
            lengths=np.array([len(record.tokens) for record in records], np.uint32),
            starts=np.array([record.start for record in records], np.uint32),
            temperatures=np.array([record.temperature for record in records], np.float32),
            templates=np.array([names.index(record.template) for record in records], np.uint16),
            names=np.array(names, str),
        )
    half.replace(path)


def load(paths: Iterable[Path]) -> Iterator[Record]:
    """The records of files, in order.

    Raises BuildError for a file that is not sound, OSError for one that is not there.
    """
    for path in paths:
        data = _arrays(path)
        ends = np.cumsum(data["lengths"], dtype=np.int64)
        tokens = data["tokens"].astype(np.int64)
        for end, length, start, temperature, template in zip(
            ends.tolist(), *(data[name].tolist() for name in OF_RECORDS), strict=True
        ):
            yield Record(
                tokens[end - length : end], start, temperature, str(data["names"][template])
            )


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in ARRAYS}
    except (
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        RuntimeError,  # of an encrypted file, or of a newer form
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise BuildError(
            f"{path} is no file of answers that can be read: {error}. Remove it, or fetch it again."
        ) from error
    lengths, starts, templates = (data[name] for name in ("lengths", "starts", "templates"))
    sound = all(data[name].shape == lengths.shape for name in OF_RECORDS)
    sound = sound and all(data[name].ndim == 1 for name in ("tokens", "lengths", "names"))
    sound = sound and all(
        data[name].dtype.kind == "u" for name in ("tokens", "lengths", "starts", "templates")
    )
    if (
        not sound
        or lengths.sum(dtype=np.int64) != len(data["tokens"])
        or ((starts < 1) | (starts > lengths)).any()
        or (templates >= len(data["names"])).any()
    ):
        raise BuildError(
            f"{path} holds numbers that do not fit together. Remove it, or fetch it again."
        )
    return data


def _narrow(tokens: Tokens) -> NDArray[np.unsignedinteger[Any]]:
    return tokens.astype(np.uint16 if tokens.max(initial=0) < 1 << 16 else np.uint32)
