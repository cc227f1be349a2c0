"""How large the rows of every product get on real text: what their levels must reach."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from export.model import Model
from export.reference import Array, read_off, states_of_texts

# Other texts go further than these: one of sixteen bits is spent on room for them.
ROOM = 2.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the largest number that goes into a product, and that comes out."""

    low_in: float
    high_in: float
    low_out: float
    high_out: float


def bounds_of(model: Model, texts: Sequence[Sequence[int]]) -> dict[str, Bounds]:
    """Bounds of every product on `texts`, with ROOM, by the names that `export.linear` knows.

    texts: ids of tokens, of mask tokens too where the model has such.
    """
    found: dict[str, list[float]] = {}

    def watch(name: str, rows: Array, product: Array) -> None:
        low_in, high_in, low_out, high_out = found.get(name, [0.0] * 4)
        found[name] = [
            min(low_in, float(rows.min())),
            max(high_in, float(rows.max())),
            min(low_out, float(product.min())),
            max(high_out, float(product.max())),
        ]

    states: Iterator[list[Array]] = states_of_texts(model, texts, watch)
    for rows in deque(states, maxlen=1).pop():
        read_off(model, rows, watch)
    return {name: Bounds(*(ROOM * value for value in four)) for name, four in found.items()}
