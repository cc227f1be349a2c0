"""A fused or gpu graph's session: attention works on a buffer that is input and output at once.

What it hides: the doubling of a lone row around attention, the shapes of a call, and the binding
of buffers, which happens once for every shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime import providers
from runtime.branches import HIDDEN, Rows
from runtime.cache import Buffers
from runtime.errors import ProviderError
from runtime.layout import Sharing
from runtime.manifest import Geometry
from runtime.providers import Place
from runtime.session import GraphSession, misfits_named, width_of_logits

MOST_BOUND_SHAPES = 64
HANDED_OVER = ("hidden", "skip")  # by one part of a model to the next

Load = Callable[[Path], ort.InferenceSession]
Names = tuple[frozenset[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Part:
    """A graph of some of a model's layers, or of all; `name` is what `pace` is told."""

    name: str
    session: ort.InferenceSession
    layers: range


class FusedSession(GraphSession[Buffers]):
    """A fused graph of one lane, or a gpu graph, with its own cache; one thread uses it."""

    chunk = 128  # the product is compute-bound from about here

    def __init__(
        self,
        path: Path,
        geometry: Geometry,
        *,
        threads: int,
        provider: str | Place = "CPU",
        cores: tuple[int, ...] = (),
        context: int | None = None,
        sharing: Sharing = "alone",
        cache: Buffers | None = None,
    ) -> None:
        """Load `path`; `context` (tokens) caps the cache below what the model allows.

        `cache`, from another session on a graph of the same model, is taken over as it is.

        Raises BundleError, ProviderError as `providers.load`.
        """
        load = partial(providers.load, name=provider, threads=threads, cores=cores, sharing=sharing)
        self._place = providers.as_place(provider)
        self._parts = self._load(load, path, geometry.layers)
        first = self._parts[0].session
        self._real = providers.input_type(first, "past.0.0.key")
        self._whole = providers.input_type(first, "tokens")
        if cache is None:
            longest = min(context or geometry.context, geometry.context)
            cache = Buffers(geometry, longest, self._real, self._place)
        width = width_of_logits(geometry, self._parts[-1].session)
        super().__init__(geometry, cache, logits_width=width)
        self._names = [_names(part.session) for part in self._parts]
        inputs, _ = self._names[0]
        self._least = 2 if "attention_rows" in inputs else 1  # rows that attention sees
        self._counts = "position_ids" in inputs  # the operator, where it is told of no other keys
        self._widest = providers.most_rows(self._place)
        if self._widest is not None:
            self.chunk = min(self.chunk, self._widest // 2)
        self._core = cores[0] if cores else None
        self._logits = np.empty((1, self.logits_width), np.float32)
        self._zeros = np.zeros(0, self._real)
        self._calls: dict[tuple[int, int], _Call] = {}

    def _load(self, load: Load, path: Path, layers: int) -> list[Part]:
        """The graphs that one call runs, in their order."""
        return [Part("whole", load(path), range(layers))]

    def new_cache(self, context: int) -> Buffers:
        """Empty buffers."""
        return Buffers(self.geometry, context, self._real, self._place)

    def use(self, cache: Buffers) -> None:
        """Go on with another sequence."""
        super().use(cache)
        self._calls.clear()

    def _feed(self, tokens: NDArray[np.int64], num_logits: int, nodes: Rows) -> NDArray[np.float32]:
        """One call of the graph; trees for which it has no room follow in calls of their own."""
        if self._widest is None or len(tokens) + len(nodes) <= self._widest:
            return self._run(tokens, num_logits, nodes)
        found = np.empty((num_logits + len(nodes), self.logits_width), np.float32)
        groups, room = [np.zeros(0, np.int64)], self._widest - len(tokens)
        for tree in nodes.trees():
            if len(groups[-1]) + len(tree) > room:
                groups.append(np.zeros(0, np.int64))
                room = self._widest
            groups[-1] = np.append(groups[-1], tree)
        given = self._run(tokens, num_logits, nodes.some(groups[0]))
        found[:num_logits], found[num_logits + groups[0]] = given[:num_logits], given[num_logits:]
        for group in groups[1:]:
            found[num_logits + group] = self._run(tokens[:0], 0, nodes.some(group))
        return found

    def _run(self, tokens: NDArray[np.int64], num_logits: int, nodes: Rows) -> NDArray[np.float32]:
        """One call of the graph, in which the nodes come last."""
        rows, wanted = len(tokens) + len(nodes), num_logits + len(nodes)
        if self._widest is not None and rows > self._widest:
            raise ProviderError(
                f"A call of {rows} rows is more than {self._place} computes right, which is "
                f"{self._widest}: take a portable graph, or another device."
            )
        with misfits_named():
            call = self._call(rows, wanted)
        call.feed(tokens, self.cache.length, nodes, self._bias(len(tokens), nodes))
        for number, part in enumerate(self._parts):
            with self.pace(part.name, rows), misfits_named(), providers.pinned(self._core):
                part.session.run_with_iobinding(call.binding(number), self._run_options)
            if part is not self._parts[-1]:
                self._between(call.handed_over, wanted)
        self.cache.append(tokens)
        return self._logits[:wanted]

    def _between(self, handed_over: NDArray[Any], wanted: int) -> None:
        """Do what is due between two parts, of which the first left [2, rows, 1, hidden]."""

    def _bias(self, width: int, nodes: Rows) -> NDArray[Any]:
        """What is added to the scores of a call: for a chain zeros that nobody had to write.

        [1, 1, rows that attention sees, keys that the operator is told of]
        """
        rows = max(width + len(nodes), self._least)
        # Told of as many keys as rows, the operator counts the positions of a tree itself.
        keys = self.length + rows + (1 if self._counts and nodes and not self.length else 0)
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
            handed_over = np.empty((2, width, 1, self.geometry.hidden), self._real)
            self._calls[width, num_logits] = _Call(
                self._parts,
                self._names,
                self.cache,
                logits,
                handed_over,
                whole=self._whole,
                attended=max(width, self._least),
                copies=providers.has_own_memory(self._place),
            )
        return self._calls[width, num_logits]


def _names(session: ort.InferenceSession) -> Names:
    """What a graph takes and what it gives."""
    inputs, outputs = (
        frozenset(item.name for item in items)
        for items in (session.get_inputs(), session.get_outputs())
    )
    return inputs, outputs


class _Call:
    """The inputs and outputs of one shape of call, bound once.

    What one part of a model leaves the next one works on, in the same buffer. copies: the provider
    has memory of its own, and binding copies what is on the host, so what changes is bound anew.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        names: Sequence[Names],
        cache: Buffers,
        logits: NDArray[np.float32],
        handed_over: NDArray[Any],
        *,
        whole: np.dtype[Any],
        attended: int,
        copies: bool,
    ) -> None:
        """`handed_over` [2, rows, 1, hidden] is written by each part but the last.

        whole: the type of a graph's tokens.
        """
        width = handed_over.shape[1]
        self.handed_over = handed_over
        self._attended = attended
        self._tokens = np.zeros(width, whole)
        self._key_length = np.zeros(1, np.int32)
        self._total_length = np.zeros((), np.int32)
        self._positions = np.zeros((1, attended), np.int64)
        fixed: dict[str, Any] = {
            "attention_rows": np.minimum(np.arange(attended), width - 1),
            "attention_shape": np.array([1, attended, -1]),
            "attention_keep": np.arange(width),
            "logits_rows": np.arange(width - len(logits), width),
        }
        changing: dict[str, Any] = {
            "tokens": self._tokens,
            "key_lengths.0": self._key_length,
            "total_lengths.0": self._total_length,
            "position_ids": self._positions,
            **dict(zip(HANDED_OVER, handed_over, strict=True)),
        }
        written = {"logits": logits, **dict(zip(HANDED_OVER, handed_over, strict=True))}
        self._parts: list[tuple[ort.IOBinding, dict[str, Any], frozenset[str]]] = []
        self._kept: list[object] = []  # a binding holds addresses only
        for part, (taken, given) in zip(parts, names, strict=True):
            caches = {
                f"0.{layer}.{name}": buffer
                for layer in part.layers
                for name, buffer in zip(("key", "value"), cache.buffers[layer], strict=True)
            }
            own = fixed | changing | {f"past.{name}": it for name, it in caches.items()}
            own = {name: it for name, it in own.items() if name in taken}
            outputs = written | {f"present.{name}": it for name, it in caches.items()}
            outputs = {name: it for name, it in outputs.items() if name in given}
            binding = part.session.io_binding()
            providers.bind(binding, own, outputs)
            self._kept.append((own, outputs))
            anew = {name: it for name, it in changing.items() if copies and name in taken}
            self._parts.append((binding, anew, taken))

    def feed(self, tokens: NDArray[np.int64], length: int, nodes: Rows, bias: NDArray[Any]) -> None:
        """Fill the inputs: `tokens` after `length` cached ones, then `nodes`."""
        width, keys = len(tokens), bias.shape[-1]
        self._tokens[:width], self._tokens[width:] = tokens, nodes.tokens
        places = np.arange(keys)
        if nodes:
            places[length + width : length + len(self._tokens)] = nodes.positions
        self._positions[0] = places[length : length + self._attended]
        self._key_length[0] = length + self._attended - 1
        self._total_length[...] = keys
        self._sized = {"places": places, "attention_bias": bias}  # as many as there are keys

    def binding(self, part: int) -> ort.IOBinding:
        """What a part runs on: what was fed, and what the part before it left."""
        binding, anew, taken = self._parts[part]
        sized = {name: it for name, it in self._sized.items() if name in taken}
        providers.bind(binding, anew | sized, {})
        return binding
