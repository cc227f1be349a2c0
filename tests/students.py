"""Small random targets, students of them in torch, and records of random text."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from export.distill.corpus import Record
from export.distill.decoder import Decoder, Rows
from export.model import Model
from runtime.manifest import Geometry

VOCABULARY = 60
CPU = torch.device("cpu")


def random_target(layers: int = 3, *, tied: bool = True, seed: int = 0) -> Model:
    """Random weights; the embedding and the head are as bfloat16 holds them."""
    noise = np.random.default_rng(seed)
    geometry = Geometry(
        layers=layers,
        hidden=32,
        intermediate=64,
        heads=4,
        kv_heads=2,
        head_size=8,
        vocabulary=VOCABULARY,
        context=64,
        rope_base=1e4,
        norm_epsilon=1e-5,
    )

    def matrix(out: int, width: int, gain: float = 1.0) -> NDArray[np.float32]:
        found: NDArray[np.float32] = noise.standard_normal((out, width)).astype(np.float32)
        return found * np.float32(gain / width**0.5)

    def norm() -> NDArray[np.float32]:
        return (1 + noise.standard_normal(32) / 10).astype(np.float32)

    weights = {"embedding": _halved(matrix(VOCABULARY, 32, 2.0)), "norm": norm()}
    if not tied:
        weights["head"] = _halved(matrix(VOCABULARY, 32, 2.0))
    for name in (f"layers.{layer}" for layer in range(layers)):
        weights |= {f"{name}.attention_norm": norm(), f"{name}.feed_forward_norm": norm()}
        weights |= {f"{name}.{part}": matrix(32, 32) for part in "qo"}
        weights |= {f"{name}.{part}": matrix(16, 32) for part in "kv"}
        weights |= {f"{name}.{part}": matrix(64, 32) for part in ("gate", "up")}
        weights[f"{name}.down"] = matrix(32, 64)
    return Model(geometry, weights)


def in_float32(decoder: Decoder) -> Decoder:
    """The same decoder, which then computes in float32 throughout."""
    decoder.embedding, decoder.output = decoder.embedding.float(), decoder.output.float()
    return decoder


def rows(*texts: Sequence[int]) -> Rows:
    """Texts of one length, each row of which sees all before it."""
    tokens = torch.tensor(texts)
    return Rows(tokens, torch.arange(tokens.shape[1]).expand(len(texts), -1))


def random_records(count: int, *, seed: int = 0, longest: int = 40) -> list[Record]:
    """Records of random text of 8 to `longest` tokens, whose answers begin about half-way."""
    noise = np.random.default_rng(seed)
    records = []
    for _ in range(count):
        length = int(noise.integers(8, longest + 1))
        tokens = noise.integers(0, VOCABULARY, length)
        records.append(Record(tokens, int(noise.integers(2, length - 2)), 0.0, "random"))
    return records


def _halved(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    halved: NDArray[np.float32] = (weight.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return halved
