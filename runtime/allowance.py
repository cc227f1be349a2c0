"""The work that a stranger's template may do in one rendering, in units of about a character."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

STEP = 50  # a turn of a loop, a call, an operator
ITEM = 20  # an element of a list: its reference and the object behind it
MOST_BITS = 4096  # of a whole number
MOST_DEPTH = 64  # of lists in lists
_END = object()


class Allowance:
    """An amount of work that is spent; SecurityError when none is left.

    Whatever is made is paid for by its size, so that an allowance bounds memory too.
    """

    def __init__(self) -> None:
        """Nothing to spend yet; see `refill`."""
        self._whole = self._left = 0

    def refill(self, units: int) -> None:
        """Begin anew with `units`."""
        self._whole = self._left = units

    def spend(self, units: int) -> None:
        """Take `units` off; before the work, where that may be long."""
        self._left -= units
        if self._left < 0:
            raise SecurityError(f"it takes more than {self._whole:,} steps")

    def hold(self, value: object) -> None:
        """Spend what it takes to make a value of parts that exist: its characters or elements."""
        self.spend(STEP + _extent(value))

    def read(self, value: object, *, share: int = 1) -> int:
        """Spend what it takes to read a value to its last leaf; returns how much that was.

        A list that holds one list many times over counts it as often, as writing or comparing it
        does. `share` is the number of characters for a unit.
        """
        before = self._left
        stack: list[Iterator[Any]] = [iter((value,))]
        while stack:
            item = next(stack[-1], _END)
            if item is _END:
                stack.pop()
                continue
            parts = _parts(item)
            self.spend(ITEM + (_extent(item) // share if parts is None else 0))
            if parts is not None:
                if len(stack) > MOST_DEPTH:
                    raise SecurityError(f"lists lie more than {MOST_DEPTH} deep in each other")
                stack.append(iter(parts))
        return before - self._left

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each at the cost of a step."""
        for item in items:
            self.spend(STEP)
            yield item


def check_number(value: object) -> None:
    """Refuse a whole number so large that its arithmetic is slow."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise SecurityError(f"a number has more than {MOST_BITS:,} bits")


def _extent(value: object) -> int:
    """The units that a value itself takes, whatever its elements take."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Sequence | Set | Mapping):
        return ITEM * len(value)
    check_number(value)
    if value is None or isinstance(value, int | float | Undefined | Iterator):
        return 0
    raise SecurityError(f"a {type(value).__name__} cannot be read as a value")


def _parts(value: object) -> Iterable[Any] | None:
    """What a container holds; None for a leaf."""
    if isinstance(value, Mapping):
        return chain(value.keys(), value.values())
    if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes | range):
        return value
    return None
