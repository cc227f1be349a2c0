"""A portable graph's session: static widths, an additive mask, and a cache of slots.

A call has as many rows as one of the graphs; what spare rows compute is thrown away.
Rows may form a tree: each sees the cached text, its ancestors and itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime import providers
from runtime.cache import Arena
from runtime.errors import ContextError
from runtime.layout import Sharing
from runtime.manifest import Geometry
from runtime.session import GraphSession, misfits_named, width_of_logits

HIDDEN = -30000.0  # a score that no row can outweigh, finite also in float16
ROOT = -1  # the parent of a node that follows the cached text


class PortableSession(GraphSession[Arena]):
    """The portable graphs of one model with a shared arena; one thread uses it."""

    def __init__(
        self,
        graphs: Mapping[int, Path],
        geometry: Geometry,
        *,
        slots: int,
        threads: int,
        provider: str = "CPU",
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
            self._calls = [
                _Call(session, rows, slots, self.cache) for rows, session in sessions.items()
            ]
        self._branch = _NO_BRANCH

    def new_cache(self, context: int) -> Arena:
        """An empty arena."""
        return Arena(self.geometry, context, self._slots, self._real)

    def use(self, cache: Arena) -> None:
        """Go on with another sequence; the branches fed before are forgotten."""
        super().use(cache)
        self._branch = _NO_BRANCH

    def crop(self, length: int) -> None:
        """Forget keys and values past `length`, and the branches fed behind them."""
        if length < self.length:
            self._branch = _NO_BRANCH
        super().crop(length)

    def branch(self, tokens: Sequence[int], parents: Sequence[int]) -> NDArray[np.float32]:
        """Feed a tree of nodes after the cached text; the logits [n, logits_width] of all.

        parents: for each node the place of its parent among the nodes, before it, or ROOT for the
        end of the cached text. The branches fed before are forgotten; `keep` makes a path of these
        part of the text. Raises ContextError when the slots do not suffice or a path would leave
        the context.
        """
        self._branch = _NO_BRANCH
        if not tokens:
            return np.empty((0, self.logits_width), np.float32)
        seen = ancestry(parents)
        deepest = int(seen.sum(axis=1).max(initial=0))
        if self.length + deepest > self.context or self.length + len(tokens) > self._slots:
            raise ContextError(
                f"A tree of {len(tokens)} nodes does not fit behind {self.length} tokens in "
                f"{self._slots} slots and a context of {self.context}."
            )
        return self._run(tokens, parents, len(tokens))

    def keep(self, path: Sequence[int]) -> None:
        """Make nodes of the last branch, a path from the cached text down, part of the text."""
        branch, self._branch = self._branch, _NO_BRANCH
        parents = dict(enumerate(branch.parents))
        if [parents.get(node) for node in path] != [ROOT, *path][: len(path)]:
            raise ValueError(f"{list(path)} is no path of the last branch")
        slots = [branch.slots[node] for node in path]
        self.cache.keep(slots, [branch.tokens[node] for node in path])

    def _feed(self, tokens: NDArray[np.int64], num_logits: int) -> NDArray[np.float32]:
        """Feed a chain and keep it; the logits of its last `num_logits` tokens."""
        nodes = range(len(tokens))
        logits = self._run(tokens.tolist(), range(ROOT, len(tokens) - 1), num_logits)
        self.keep(nodes)
        return logits

    def _run(
        self, tokens: Sequence[int], parents: Sequence[int], num_logits: int
    ) -> NDArray[np.float32]:
        """Feed nodes, in as many calls as they need; the logits of the last `num_logits`."""
        seen = ancestry(parents)
        positions = self.length + seen.sum(axis=1) - 1
        slots = self.cache.free(len(tokens)).copy()
        logits: list[NDArray[np.float32]] = []
        start = 0
        self._branch = _NO_BRANCH  # its slots are written again, whatever comes of it
        while start < len(tokens):
            call, end = self._next_call(start, len(tokens), num_logits)
            rows = slice(start, end)
            slots_seen = np.zeros((end - start, self._slots), bool)
            slots_seen[:, self.cache.path] = True
            slots_seen[:, slots[:start]] = seen[rows, :start]
            call.feed(tokens[rows], positions[rows], slots_seen, seen[rows, rows])
            with misfits_named(), providers.pinned(self._core):
                found = call.run(self.cache, slots[rows], self._run_options)
            wanted = max(0, end - max(start, len(tokens) - num_logits))
            logits.append(found[len(found) - wanted :])
            start = end
        self._branch = _Branch(tuple(tokens), tuple(parents), tuple(slots.tolist()))
        return logits[0] if len(logits) == 1 else np.concatenate(logits)

    def _next_call(self, start: int, end: int, num_logits: int) -> tuple["_Call", int]:
        """The graph that feeds the nodes from `start`, and the node it ends before.

        The narrowest that does all of the rest; else the widest for nodes without logits; else the
        one that gives most logits.
        """
        rest, plain = end - start, end - num_logits - start
        for call in self._calls:
            if call.rows >= rest and call.num_logits >= min(rest, num_logits):
                return call, end
        if plain > 0:
            widest = next((call for call in self._calls if call.rows >= plain), self._calls[-1])
            return widest, start + min(plain, widest.rows)
        most = max(self._calls, key=lambda call: call.num_logits)
        return most, start + min(rest, most.num_logits)


@dataclass(frozen=True, slots=True)
class _Branch:
    """The nodes fed last: tokens, parents and the slots that hold their keys and values."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()


_NO_BRANCH = _Branch()


def ancestry(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Which nodes each node sees, [n, n]: its ancestors and itself.

    Raises ValueError for a parent that does not stand before its node.
    """
    seen = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise ValueError(f"node {node} has the parent {parent}")
        if parent != ROOT:
            seen[node] |= seen[parent]
    return seen


class _Call:
    """One graph with memory for its inputs.

    Nothing is bound: for providers with memory of their own onnxruntime copies a bound input when
    it is bound, and what is written into it afterwards is not seen.
    """

    def __init__(self, session: ort.InferenceSession, rows: int, slots: int, arena: Arena) -> None:
        self.rows = rows
        outputs = {item.name: item.shape for item in session.get_outputs()}
        self.num_logits = outputs["logits"][0]
        self._session = session
        self._slots = slots
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._mask = np.zeros((rows, slots + rows), arena.keys.dtype)
        layers = range(len(arena.keys))
        self._names = ["logits", *(f"new_keys.{layer}" for layer in layers)]
        self._names += [f"new_values.{layer}" for layer in layers]

    def feed(
        self,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        slots_seen: NDArray[np.bool_],
        rows_seen: NDArray[np.bool_],
    ) -> None:
        """Fill the inputs for n ≤ rows rows, which see [n, slots] and [n, n]."""
        count = len(tokens)
        self._tokens[:] = 0
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._mask[...] = HIDDEN
        self._mask[:count, : self._slots][slots_seen] = 0
        self._mask[:count, self._slots : self._slots + count][rows_seen] = 0
        self._wanted = np.arange(count - self.num_logits, count, dtype=np.int32).clip(0)

    def run(
        self, arena: Arena, slots: NDArray[np.intp], options: ort.RunOptions
    ) -> NDArray[np.float32]:
        """Run on what was fed, put its keys and values into `slots`; the logits [num_logits, ..].

        Those of the last row fed come last.
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
        count, layers = len(slots), len(arena.keys)
        arena.write(
            slots,
            keys=np.stack(new[:layers])[..., :count],
            values=np.stack(new[layers:])[..., :count, :],
        )
        return np.asarray(logits, np.float32)
