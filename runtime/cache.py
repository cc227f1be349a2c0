"""Where the keys and values of a text lie: a buffer that grows, or an arena of slots."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from runtime import providers
from runtime.manifest import Geometry
from runtime.providers import Place


class Cache:
    """The tokens of one sequence whose keys and values are known; at most `context` of them."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.length = 0
        self._tokens: NDArray[np.int64] = np.empty(context, np.int64)

    def shared_with(self, tokens: NDArray[np.int64]) -> int:
        """How many tokens of the start of `tokens` are cached."""
        most = min(self.length, len(tokens))
        different = self._tokens[:most] != tokens[:most]
        return int(different.argmax()) if different.any() else most

    def append(self, tokens: NDArray[np.int64] | int) -> None:
        """Note that the keys and values of `tokens` were written after what was cached."""
        end = self.length + np.size(tokens)
        self._tokens[self.length : end] = tokens
        self.length = end

    def crop(self, length: int) -> None:
        """Forget keys and values past `length`; what is shorter already stays as it is."""
        self.length = min(self.length, max(length, 0))


class Buffers(Cache):
    """The cache of a fused graph: a token's place is its position.

    buffers: for each layer keys and values, [1, kv_heads, context + 1, head_size] real: one array
    [layers, 2, ..] on the host, or on a device with memory of its own an OrtValue each there. The
    host takes memory a page at a time as it is written; where pages are large, that is soon all of
    it. The slot past the context is for the copy of a lone row.
    """

    def __init__(
        self,
        geometry: Geometry,
        context: int,
        real: DTypeLike = np.float32,
        place: str | Place = "CPU",
    ) -> None:
        super().__init__(context)
        shape = (1, geometry.kv_heads, context + 1, geometry.head_size)
        self.buffers: Any
        if providers.has_own_memory(place):
            self.buffers = [
                [providers.allocate(place, shape, real) for _ in range(2)]
                for _ in range(geometry.layers)
            ]
        else:
            self.buffers = np.empty((geometry.layers, 2, *shape), real)


class Arena(Cache):
    """The cache of a portable graph: `slots` slots, a token's place being its slot.

    keys: [layers, kv_heads, head_size, slots] real, values: [layers, kv_heads, slots, head_size].
    What lies past the text is free. All zeros at first: what is masked is still multiplied.
    """

    def __init__(
        self, geometry: Geometry, context: int, slots: int, real: DTypeLike = np.float32
    ) -> None:
        super().__init__(min(context, slots))
        layers, heads, size = geometry.layers, geometry.kv_heads, geometry.head_size
        self.keys: NDArray[Any] = np.zeros((layers, heads, size, slots), real)
        self.values: NDArray[Any] = np.zeros((layers, heads, slots, size), real)

    def write(self, start: int, *, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Put new keys [layers, kv_heads, head_size, n] and values [.., n, head_size] in slots."""
        end = start + keys.shape[-1]
        self.keys[..., start:end] = keys
        self.values[..., start:end, :] = values
