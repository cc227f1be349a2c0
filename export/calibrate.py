"""How large the rows of every product get on real text: what their levels must reach."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from export.model import Model
from export.reference import Array, read_off, states_of_texts

# Other texts go further than these: one of sixteen bits is spent on room for them.
ROOM = 2.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the largest number that goes into a product, and that comes out.

    spread: how many times the median size of the numbers on one of these sides its largest is.
    """

    low_in: float
    high_in: float
    low_out: float
    high_out: float
    spread: float


@dataclass(slots=True)
class _Side:
    """What goes into a product, or comes out."""

    low: float = 0.0
    high: float = 0.0
    sizes: float = 0.0
    count: int = 0

    def see(self, numbers: Array) -> None:
        self.low = min(self.low, float(numbers.min()))
        self.high = max(self.high, float(numbers.max()))
        self.sizes += float(np.median(np.abs(numbers))) * numbers.size
        self.count += numbers.size

    @property
    def spread(self) -> float:
        return max(self.high, -self.low) * self.count / self.sizes if self.sizes else 1.0


@dataclass(frozen=True, slots=True)
class _Sides:
    rows: _Side = field(default_factory=_Side)
    product: _Side = field(default_factory=_Side)

    @property
    def bounds(self) -> Bounds:
        rows, product = self.rows, self.product
        return Bounds(
            ROOM * rows.low,
            ROOM * rows.high,
            ROOM * product.low,
            ROOM * product.high,
            max(rows.spread, product.spread),
        )


def bounds_of(model: Model, texts: Sequence[Sequence[int]]) -> dict[str, Bounds]:
    """Bounds of every product on `texts`, with ROOM, by the names that `export.linear` knows.

    texts: ids of tokens, of mask tokens too where the model has such.
    """
    found: dict[str, _Sides] = {}

    def watch(name: str, rows: Array, product: Array) -> None:
        sides = found.setdefault(name, _Sides())
        sides.rows.see(rows)
        sides.product.see(product)

    states: Iterator[list[Array]] = states_of_texts(model, texts, watch)
    for rows in deque(states, maxlen=1).pop():
        read_off(model, rows, watch)
    return {name: sides.bounds for name, sides in found.items()}
