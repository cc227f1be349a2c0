"""A target's session over two graphs, between which it can be left early.

Attention, cache and logits are those of the whole graph, to the last bit on the CPU provider: the
second graph goes on with the very numbers that the first one left, in the same buffer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.fused import FusedSession, Load, Part
from runtime.manifest import Geometry


class SplitSession(FusedSession):
    """A fused graph of one lane in two parts with one cache; one thread uses it.

    on_exit: is called between the parts of a call of `extend`, in its thread, with what the first
    layers leave [num_logits + nodes, hidden] float32, the rows in the order of the logits. Not
    called for chunks of a long text. What it raises ends the call, and nothing is cached by it.
    """

    def __init__(
        self, prefix: Path, suffix: Path, geometry: Geometry, *, layer: int, **settings: Any
    ) -> None:
        """Load both graphs, cut after `layer` layers; settings and errors as of FusedSession."""
        self._suffix, self._layer = suffix, layer
        self.on_exit: Callable[[NDArray[np.float32]], None] | None = None
        super().__init__(prefix, geometry, **settings)

    def _load(self, load: Load, path: Path, layers: int) -> list[Part]:
        return [
            Part("prefix", load(path), range(self._layer)),
            Part("suffix", load(self._suffix), range(self._layer, layers)),
        ]

    def prefill(self, tokens: NDArray[np.int64], *, num_logits: int = 1) -> bool:
        """As of any session; nobody is told of the exits of a chunk."""
        told, self.on_exit = self.on_exit, None
        try:
            return super().prefill(tokens, num_logits=num_logits)
        finally:
            self.on_exit = told

    def _between(self, handed_over: NDArray[Any], wanted: int) -> None:
        if self.on_exit is not None:
            rows = handed_over[:, -wanted:, 0].astype(np.float32, copy=False)
            self.on_exit(rows[0] + rows[1])
