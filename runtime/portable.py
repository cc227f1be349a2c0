"""A portable graph's session: static widths, an additive mask, and a cache of slots.

A call has as many rows as one of the graphs; what spare rows compute is thrown away.
Nodes of a tree lie in slots behind the text's, as far as later runs of their call must see them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime import providers
from runtime.branches import HIDDEN, Rows
from runtime.cache import Arena
from runtime.layout import Sharing
from runtime.manifest import Geometry
from runtime.runs import Runs
from runtime.session import GraphSession, misfits_named, width_of_logits


class PortableSession(GraphSession[Arena]):
    """The portable graphs of one model with a shared arena; one thread uses it."""

    def __init__(
        self,
        graphs: Mapping[int, Path],
        geometry: Geometry,
        *,
        slots: int,
        threads: int,
        provider: str | providers.Place = "CPU",
        cores: tuple[int, ...] = (),
        context: int | None = None,
        sharing: Sharing = "alone",
        cache: Arena | None = None,
    ) -> None:
        """Load `graphs`, keyed by their rows, which have `slots` slots.

        context (tokens) caps the text below that. `cache`, from another session on graphs of the
        same model, is taken over as it is. Raises BundleError, ProviderError as `providers.load`.
        """
        sessions = {
            rows: providers.load(path, name=provider, threads=threads, cores=cores, sharing=sharing)
            for rows, path in sorted(graphs.items())
        }
        self._slots = slots
        self._core = cores[0] if cores else None
        self._real = providers.input_type(sessions[min(sessions)], "mask")
        longest = min(context or geometry.context, geometry.context)
        super().__init__(
            geometry,
            cache or Arena(geometry, longest, slots, self._real),
            logits_width=width_of_logits(geometry, *sessions.values()),
        )
        self.chunk = max(sessions)
        with misfits_named():
            self._calls = {
                rows: _Call(session, rows, slots, self.cache) for rows, session in sessions.items()
            }
        self._runs = Runs({rows: call.num_logits for rows, call in self._calls.items()})

    def new_cache(self, context: int) -> Arena:
        """An empty arena."""
        return Arena(self.geometry, context, self._slots, self._real)

    def _feed(self, tokens: NDArray[np.int64], num_logits: int, nodes: Rows) -> NDArray[np.float32]:
        """As many runs as tokens and nodes need."""
        first, rows = self.length, nodes.after(tokens, self.length)
        wanted = num_logits + len(nodes)
        logits: list[NDArray[np.float32]] = []
        start = 0
        for width, done in self._runs.of(len(rows), len(rows) - wanted):
            call, end = self._calls[width], start + done
            with self.pace("whole", end - start), misfits_named(), providers.pinned(self._core):
                call.feed(rows, start, end, first + start)
                found, keys, values = call.run(self.cache, self._run_options)
            seen_later = end - start if end < len(rows) else max(0, len(tokens) - start)
            self.cache.write(
                first + start, keys=keys[..., :seen_later], values=values[..., :seen_later, :]
            )
            given = max(0, end - max(start, len(rows) - wanted))
            logits.append(found[len(found) - given :])
            start = end
        self.cache.append(tokens)
        return logits[0] if len(logits) == 1 else np.concatenate(logits)


class _Call:
    """One graph with memory for its inputs.

    Nothing is bound: for providers with memory of their own onnxruntime copies a bound input when
    it is bound, and what is written into it afterwards is not seen.
    """

    def __init__(self, session: ort.InferenceSession, rows: int, slots: int, arena: Arena) -> None:
        self.rows = rows
        outputs = {item.name: item.shape for item in session.get_outputs()}
        self.num_logits: int = outputs["logits"][0]
        self._session = session
        self._slots = slots
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._mask = np.zeros((rows, slots + rows), arena.keys.dtype)
        layers = range(len(arena.keys))
        self._names = ["logits", *(f"new_keys.{layer}" for layer in layers)]
        self._names += [f"new_values.{layer}" for layer in layers]

    def feed(self, rows: Rows, start: int, end: int, place: int) -> None:
        """Fill the inputs with rows from `start` to `end`, of which the first stands at `place`."""
        count, sees = end - start, rows.sees[start:end]
        self._tokens[:] = 0
        self._tokens[:count] = rows.tokens[start:end]
        self._positions[:count] = rows.positions[start:end]
        self._mask[...] = HIDDEN
        self._mask[:count, :place][sees[:, :place]] = 0
        own = self._mask[:count, self._slots : self._slots + count]
        own[sees[:, place : place + count]] = 0
        self._wanted = np.arange(count - self.num_logits, count, dtype=np.int32).clip(0)

    def run(
        self, arena: Arena, options: ort.RunOptions
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any]]:
        """Run on what was fed; logits [num_logits, ..], those of the last row fed come last.

        With them the new keys and values, as the arena has them.
        """
        inputs: dict[str, NDArray[Any]] = {
            "tokens": self._tokens,
            "positions": self._positions,
            "mask": self._mask,
            "logits_rows": self._wanted,
        }
        for layer, (keys, values) in enumerate(zip(arena.keys, arena.values, strict=True)):
            inputs |= {f"keys.{layer}": keys, f"values.{layer}": values}
        logits, *new = self._session.run(self._names, inputs, options)
        layers = len(arena.keys)
        return np.asarray(logits, np.float32), np.stack(new[:layers]), np.stack(new[layers:])
