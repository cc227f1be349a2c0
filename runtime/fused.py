"""A fused graph's session: attention works on a buffer that is input and output at once.

What it hides: the doubling of a lone row around attention, the shapes of a call, and the binding
of buffers, which happens once for every shape.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime import providers
from runtime.branches import HIDDEN, Rows
from runtime.cache import Buffers
from runtime.layout import Sharing
from runtime.manifest import Geometry
from runtime.session import GraphSession, misfits_named, width_of_logits

MOST_BOUND_SHAPES = 64


class FusedSession(GraphSession[Buffers]):
    """A fused graph of one lane with its own cache; one thread uses it."""

    chunk = 128  # the product is compute-bound from about here

    def __init__(
        self,
        path: Path,
        geometry: Geometry,
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        context: int | None = None,
        sharing: Sharing = "alone",
        cache: Buffers | None = None,
    ) -> None:
        """Load `path`; `context` (tokens) caps the cache below what the model allows.

        `cache`, from another session on a graph of the same model, is taken over as it is.

        Raises BundleError, ProviderError as `providers.load`.
        """
        self._session = providers.load(path, threads=threads, cores=cores, sharing=sharing)
        self._real = providers.input_type(self._session, "past.0.0.key")
        if cache is None:
            longest = min(context or geometry.context, geometry.context)
            cache = Buffers(geometry, longest, self._real)
        super().__init__(geometry, cache, logits_width=width_of_logits(geometry, self._session))
        self._core = cores[0] if cores else None
        self._logits = np.empty((1, self.logits_width), np.float32)
        self._zeros = np.zeros(0, self._real)
        self._calls: dict[tuple[int, int], _Call] = {}

    def new_cache(self, context: int) -> Buffers:
        """Empty buffers."""
        return Buffers(self.geometry, context, self._real)

    def use(self, cache: Buffers) -> None:
        """Go on with another sequence."""
        super().use(cache)
        self._calls.clear()

    def _feed(self, tokens: NDArray[np.int64], num_logits: int, nodes: Rows) -> NDArray[np.float32]:
        """One call of the graph, in which the nodes come last."""
        rows, wanted = len(tokens) + len(nodes), num_logits + len(nodes)
        with self.pace("whole", rows), misfits_named():
            call = self._call(rows, wanted)
            call.feed(tokens, self.cache.length, nodes, self._bias(len(tokens), nodes))
            with providers.pinned(self._core):
                self._session.run_with_iobinding(call.binding, self._run_options)
        self.cache.append(tokens)
        return self._logits[:wanted]

    def _bias(self, width: int, nodes: Rows) -> NDArray[Any]:
        """What is added to the scores of a call: for a chain zeros that nobody had to write.

        [1, 1, rows that attention sees, keys that the operator is told of]
        """
        rows = max(width + len(nodes), 2)
        # Told of as many keys as rows, the operator counts the positions of a tree itself.
        keys = self.length + rows + (1 if nodes and not self.length else 0)
        if not nodes:
            most = rows * (self.context + 1)
            if most > len(self._zeros):
                self._zeros = np.zeros(most, self._real)
            return self._zeros[: rows * keys].reshape(1, 1, rows, keys)
        bias = np.zeros((1, 1, rows, keys), self._real)
        bias[0, 0, width:, : nodes.sees.shape[1]][~nodes.sees] = HIDDEN
        return bias

    def _call(self, width: int, num_logits: int) -> "_Call":
        """The bound buffers for calls of this shape, made at its first use."""
        if num_logits > len(self._logits):
            self._logits = np.empty((num_logits, self.logits_width), np.float32)
            self._calls.clear()
        if (width, num_logits) not in self._calls:
            if len(self._calls) >= MOST_BOUND_SHAPES:
                self._calls.clear()
            logits = self._logits[:num_logits]
            self._calls[width, num_logits] = _Call(self._session, self.cache, width, logits)
        return self._calls[width, num_logits]


class _Call:
    """The inputs and outputs of one shape of call, bound once."""

    def __init__(
        self, session: ort.InferenceSession, cache: Buffers, width: int, logits: NDArray[np.float32]
    ) -> None:
        self._attended = max(width, 2)
        self._positions = np.zeros((1, self._attended), np.int64)
        self._tokens = np.zeros(width, np.int64)
        self._key_length = np.zeros(1, np.int32)
        self._total_length = np.zeros((), np.int32)
        names = [
            (f"0.{layer}.{part}", buffer)
            for layer, parts in enumerate(cache.buffers)
            for part, buffer in zip(("key", "value"), parts, strict=True)
        ]
        inputs: dict[str, NDArray[Any]] = {
            "tokens": self._tokens,
            "attention_rows": np.minimum(np.arange(self._attended), width - 1),
            "attention_shape": np.array([1, self._attended, -1]),
            "attention_keep": np.arange(width),
            "logits_rows": np.arange(width - len(logits), width),
            "key_lengths.0": self._key_length,
            "total_lengths.0": self._total_length,
            "position_ids": self._positions,
            **{f"past.{name}": buffer for name, buffer in names},
        }
        outputs = {"logits": logits, **{f"present.{name}": buffer for name, buffer in names}}
        self.binding = session.io_binding()
        providers.bind(self.binding, inputs, outputs)
        self._kept = (inputs, outputs)  # the binding holds addresses only

    def feed(self, tokens: NDArray[np.int64], length: int, nodes: Rows, bias: NDArray[Any]) -> None:
        """Fill the inputs: `tokens` after `length` cached ones, then `nodes`."""
        width = len(tokens)
        self._tokens[:width], self._tokens[width:] = tokens, nodes.tokens
        self._positions[0] = np.arange(length, length + self._attended)
        if nodes:
            self._positions[0, width:] = nodes.positions
        self._key_length[0] = length + self._attended - 1
        self._total_length[...] = bias.shape[-1]
        providers.bind(self.binding, {"attention_bias": bias}, {})
        self._bias = bias
