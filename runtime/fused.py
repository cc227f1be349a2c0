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
        self._calls: dict[tuple[int, int], _Call] = {}

    def new_cache(self, context: int) -> Buffers:
        """Empty buffers."""
        return Buffers(self.geometry, context, self._real)

    def use(self, cache: Buffers) -> None:
        """Go on with another sequence."""
        super().use(cache)
        self._calls.clear()

    def _feed(self, tokens: NDArray[np.int64], num_logits: int) -> NDArray[np.float32]:
        """One call of the graph."""
        with misfits_named():
            call = self._call(len(tokens), num_logits)
            call.feed(tokens, self.cache.length)
            with providers.pinned(self._core):
                self._session.run_with_iobinding(call.binding, self._run_options)
        self.cache.append(tokens)
        return self._logits[:num_logits]

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
            **{f"past.{name}": buffer for name, buffer in names},
        }
        outputs = {"logits": logits, **{f"present.{name}": buffer for name, buffer in names}}
        self.binding = session.io_binding()
        providers.bind(self.binding, inputs, outputs)
        self._kept = (inputs, outputs)  # the binding holds addresses only

    def feed(self, tokens: NDArray[np.int64], length: int) -> None:
        """Fill the inputs: `tokens` after `length` cached ones."""
        self._tokens[:] = tokens
        self._total_length[...] = length + self._attended
        self._key_length[0] = length + self._attended - 1
