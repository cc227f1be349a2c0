"""A graph of a few operators that every provider should run, and whether it runs right.

`scripts/make_smoke_graph.py` writes the files: in float32, and in float16, which not every GPU has.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.providers.loading import load
from runtime.providers.place import Place

FILE = Path(__file__).with_name("smoke.onnx")
HALVES = FILE.with_name("smoke-float16.onnx")
ROWS, WIDTH = 4, 16
MOST_SHARE = 0.01  # of the spread: float16 is off by a tenth of that, a wrong answer by far more


@dataclass(frozen=True, slots=True)
class Smoke:
    """How far a place is from numpy: the largest difference, and the right answer's spread."""

    largest_difference: float
    spread: float

    @property
    def right(self) -> bool:
        """Whether rounding explains it; what is no number is wrong."""
        return self.largest_difference <= MOST_SHARE * self.spread


def smoke_test(place: Place, *, halves: bool = False) -> Smoke:
    """Run the graph in a place, all of it there; raises as `load`, and what onnxruntime raises.

    halves: the one in float16.
    """
    session = load(HALVES if halves else FILE, threads=1, name=place)
    (found,) = session.run(["chances"], {"rows": rows().astype("f2" if halves else "f4")})
    known = answer()
    apart = np.abs(found - known).max() if found.shape == known.shape else np.nan
    return Smoke(float(apart), float(known.max() - known.min()))


def rows() -> NDArray[np.float32]:
    """What is put in [ROWS, WIDTH], exact in float16."""
    return _eighths(ROWS, seed=11)


def weights() -> NDArray[np.float32]:
    """The graph's own [WIDTH, WIDTH], exact in float16."""
    return _eighths(WIDTH, seed=5)


def answer() -> NDArray[np.float32]:
    """What comes out [ROWS, WIDTH]: the softmax of each row's product."""
    product = rows().astype(np.float64) @ weights()
    chances = np.exp(product - product.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    return np.asarray(chances, np.float32)


def _eighths(count: int, *, seed: int) -> NDArray[np.float32]:
    numbers = np.arange(count * WIDTH) * 7919 % 101 * seed % 17 - 8
    return (numbers.reshape(count, WIDTH) / 8).astype(np.float32)
