"""One model's graph and cache, behind prefill, extend and crop.

What it hides: the key and value buffers, the doubling of a lone row around attention, the shapes
of a call, and the binding of buffers, which happens once for every shape.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime import providers
from runtime.errors import BundleError, ContextError
from runtime.manifest import Geometry

PREFILL_CHUNK = 128  # rows in a prefill call: the product is compute-bound from about here
MOST_BOUND_SHAPES = 64


class Cache:
    """The keys and values of one sequence, and the tokens they belong to.

    buffers: [layers, 2, 1, kv_heads, context + 1, head_size] float32, keys then values; a page of
    memory is taken only when it is first written. The slot past the context is for the copy of a
    lone row.
    """

    def __init__(self, geometry: Geometry, context: int) -> None:
        shape = (geometry.layers, 2, 1, geometry.kv_heads, context + 1, geometry.head_size)
        self.context = context
        self.buffers: NDArray[np.float32] = np.empty(shape, np.float32)
        self.tokens: NDArray[np.int64] = np.empty(context, np.int64)
        self.length = 0

    def shared_with(self, tokens: NDArray[np.int64]) -> int:
        """How many tokens of the start of `tokens` are cached."""
        most = min(self.length, len(tokens))
        different = self.tokens[:most] != tokens[:most]
        return int(different.argmax()) if different.any() else most

    def append(self, tokens: NDArray[np.int64] | int) -> None:
        """Note that the keys and values of `tokens` were written after what was cached."""
        end = self.length + np.size(tokens)
        self.tokens[self.length : end] = tokens
        self.length = end


@contextmanager
def misfits_named() -> Iterator[None]:
    """Raise BundleError for what onnxruntime raises when names or shapes are not a graph's own."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise BundleError(
            f"A graph does not fit its manifest ({reason}); build the bundle again."
        ) from error


class GraphSession:
    """A fused graph of one lane with its own cache; one thread uses it."""

    def __init__(
        self,
        path: Path,
        geometry: Geometry,
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        context: int | None = None,
        share_cpu: bool = False,
        cache: Cache | None = None,
    ) -> None:
        """Load `path`; `context` (tokens) caps the cache below what the model allows.

        `cache`, from another session on a graph of the same model, is taken over as it is.

        Raises BundleError, ProviderError as `providers.load`.
        """
        self.geometry = geometry
        self.vocabulary = geometry.vocabulary
        self.cache = cache or Cache(geometry, min(context or geometry.context, geometry.context))
        self._session = providers.load(path, threads=threads, cores=cores, share_cpu=share_cpu)
        self._core = cores[0] if cores else None
        self._logits = np.empty((1, geometry.vocabulary), np.float32)
        self._calls: dict[tuple[int, int], _Call] = {}

    @property
    def context(self) -> int:
        """How many tokens fit."""
        return self.cache.context

    @property
    def length(self) -> int:
        """How many tokens' keys and values are cached."""
        return self.cache.length

    def use(self, cache: Cache) -> None:
        """Go on with another sequence."""
        self.cache = cache
        self._calls.clear()

    def crop(self, length: int) -> None:
        """Forget keys and values past `length`; what is shorter already stays as it is."""
        self.cache.length = min(self.cache.length, max(length, 0))

    def prefill(self, tokens: NDArray[np.int64], *, num_logits: int = 1) -> bool:
        """Feed a chunk of `tokens`, where `extend` would need more than one call.

        Takes what `extend` takes and raises what it raises; True when one call is enough now.
        """
        if len(tokens) > self.context:
            raise ContextError(
                f"A text of {len(tokens)} tokens does not fit in the context of {self.context}."
            )
        self.crop(min(self.cache.shared_with(tokens), len(tokens) - num_logits))
        if len(tokens) - self.length - num_logits >= PREFILL_CHUNK:
            self._run(tokens[self.length : self.length + PREFILL_CHUNK], 1)
        return len(tokens) - self.length - num_logits < PREFILL_CHUNK

    def extend(self, tokens: NDArray[np.int64], *, num_logits: int = 1) -> NDArray[np.float32]:
        """Feed what is not cached yet of `tokens` [n] int64, the whole text from its start.

        Keys and values of other tokens past the common start are forgotten. Returns the logits of
        the last `num_logits` tokens, [num_logits, vocabulary] float32, in a buffer that the next
        call writes again. Raises ContextError when the text does not fit, BundleError when the
        graph does not fit its manifest.
        """
        while not self.prefill(tokens, num_logits=num_logits):
            pass
        return self._run(tokens[self.length :], num_logits)

    def _run(self, tokens: NDArray[np.int64], num_logits: int) -> NDArray[np.float32]:
        """One call of the graph, on `tokens` after what is cached."""
        with misfits_named():
            call = self._call(len(tokens), num_logits)
            call.feed(tokens, self.cache.length)
            with providers.pinned(self._core):
                self._session.run_with_iobinding(call.binding)
        self.cache.append(tokens)
        return self._logits[:num_logits]

    def _call(self, width: int, num_logits: int) -> "_Call":
        """The bound buffers for calls of this shape, made at its first use."""
        if num_logits > len(self._logits):
            self._logits = np.empty((num_logits, self.vocabulary), np.float32)
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
        self, session: ort.InferenceSession, cache: Cache, width: int, logits: NDArray[np.float32]
    ) -> None:
        self.binding = session.io_binding()
        attended = max(width, 2)
        self._attended = attended
        self._tokens = np.zeros(width, np.int64)
        self._key_length = np.zeros(1, np.int32)
        self._total_length = np.zeros((), np.int32)
        self._kept: list[NDArray[Any]] = []
        self._bind_input("tokens", self._tokens)
        self._bind_input("attention_rows", np.minimum(np.arange(attended), width - 1))
        self._bind_input("attention_shape", np.array([1, attended, -1]))
        self._bind_input("attention_keep", np.arange(width))
        self._bind_input("logits_rows", np.arange(width - len(logits), width))
        self._bind_input("key_lengths.0", self._key_length)
        self._bind_input("total_lengths.0", self._total_length)
        self._bind_output("logits", logits)
        for layer, parts in enumerate(cache.buffers):
            for part, buffer in zip(("key", "value"), parts, strict=True):
                self._bind_input(f"past.0.{layer}.{part}", buffer)
                self._bind_output(f"present.0.{layer}.{part}", buffer)

    def feed(self, tokens: NDArray[np.int64], length: int) -> None:
        """Fill the inputs: `tokens` after `length` cached ones."""
        self._tokens[:] = tokens
        self._total_length[...] = length + self._attended
        self._key_length[0] = length + self._attended - 1

    def _bind_input(self, name: str, array: NDArray[Any]) -> None:
        self._kept.append(array)
        self.binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, array: NDArray[np.float32]) -> None:
        self._kept.append(array)
        self.binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
