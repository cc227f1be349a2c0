"""One model's graph and cache, behind prefill, extend and crop, whatever its flavour."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches, Rows
from runtime.cache import Cache
from runtime.errors import BundleError, ContextError, ProviderError
from runtime.manifest import Geometry

NO_HALVES = "requires f16 but the device does not support it"  # a GPU without float16 says so
C = TypeVar("C", bound=Cache)
Pace = Callable[[str, int], AbstractContextManager[None]]


def unpaced(_part: str, _rows: int) -> AbstractContextManager[None]:
    """Let a call take its own time."""
    return nullcontext()


class GraphSession(ABC, Generic[C]):
    """A model with one sequence's cache; one thread uses it.

    chunk: rows in a call that reads a long text. logits_width: columns of its logits, fewer than
    `vocabulary` in a draft whose head is about few tokens. pace: every call of a graph runs inside
    `pace(part, rows)`, `part` of the model being "whole" and `rows` those really fed.
    """

    chunk: int

    def __init__(self, geometry: Geometry, cache: C, *, logits_width: int) -> None:
        self.geometry = geometry
        self.vocabulary = geometry.vocabulary
        self.logits_width = logits_width
        self.cache = cache
        self.pace: Pace = unpaced
        self._run_options = ort.RunOptions()

    @property
    def context(self) -> int:
        """How many tokens fit."""
        return self.cache.context

    @property
    def length(self) -> int:
        """How many tokens' keys and values are cached."""
        return self.cache.length

    def stop(self) -> None:
        """End a call that is under way, and every later one, by an error; from any thread.

        Only the CPU provider heeds it.
        """
        self._run_options.terminate = True

    @abstractmethod
    def new_cache(self, context: int) -> C:
        """An empty cache for another sequence of at most `context` tokens."""

    def use(self, cache: C) -> None:
        """Go on with another sequence."""
        self.cache = cache

    def crop(self, length: int) -> None:
        """Forget keys and values past `length`; what is shorter already stays as it is."""
        self.cache.crop(length)

    def prefill(self, tokens: NDArray[np.int64], *, num_logits: int = 1) -> bool:
        """Feed a chunk of `tokens`, where `extend` would need more than one call.

        Takes what `extend` takes and raises what it raises; True when one call is enough now.
        """
        if len(tokens) > self.context:
            raise ContextError(
                f"A text of {len(tokens)} tokens does not fit in the context of {self.context}."
            )
        self.crop(min(self.cache.shared_with(tokens), len(tokens) - num_logits))
        if len(tokens) - self.length - num_logits >= self.chunk:
            chunk = tokens[self.length : self.length + self.chunk]
            self._feed(chunk, 1, NO_BRANCHES.behind(self.length + len(chunk)))
        return len(tokens) - self.length - num_logits < self.chunk

    def extend(
        self, tokens: NDArray[np.int64], *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        """Feed what is not cached yet of `tokens` [n] int64, the whole text from its start.

        The nodes of `branches` are fed behind it in the same call. Keys and values of other tokens
        past the common start are forgotten, those of nodes after the call. Returns the logits of
        the last `num_logits` tokens, then of the nodes, [num_logits + nodes, logits_width]
        float32, in a buffer that the next call writes again. Raises ContextError when text and
        nodes do not fit, ValueError for branches that are no trees, BundleError when the graph does
        not fit its manifest; only by the last has anything run.
        """
        nodes = branches.behind(len(tokens))
        if branches and len(tokens) + len(nodes) > self.context:
            raise ContextError(
                f"A text of {len(tokens)} tokens with {len(nodes)} nodes behind it does not fit in "
                f"the context of {self.context}."
            )
        while not self.prefill(tokens, num_logits=num_logits):
            pass
        return self._feed(tokens[self.length :], num_logits, nodes)

    @abstractmethod
    def _feed(self, tokens: NDArray[np.int64], num_logits: int, nodes: Rows) -> NDArray[np.float32]:
        """Feed `tokens` after what is cached and cache them; then `nodes`, which are forgotten.

        The logits of the last `num_logits` tokens and of all nodes.
        """


def width_of_logits(geometry: Geometry, *sessions: ort.InferenceSession) -> int:
    """How many columns the logits of one model's graphs have; BundleError when they do not agree.

    Nor may these be none, or more than the vocabulary.
    """
    outputs = [item for session in sessions for item in session.get_outputs()]
    widths = {item.shape[-1] if item.shape else None for item in outputs if item.name == "logits"}
    width = next(iter(widths), None)
    if len(widths) != 1 or not isinstance(width, int) or not 1 <= width <= geometry.vocabulary:
        raise BundleError(
            "A graph does not fit its manifest (its logits have "
            f"{' or '.join(sorted(map(str, widths))) or 'no'} columns and its vocabulary "
            f"{geometry.vocabulary} tokens); build the bundle again."
        )
    return width


@contextmanager
def misfits_named() -> Iterator[None]:
    """Raise BundleError for what onnxruntime raises when names or shapes are not a graph's own.

    ProviderError where the device lacks the numbers that the graph computes in.
    """
    try:
        yield
    except Exception as error:  # onnxruntime's own classes have no other base
        reason = str(error).strip().partition("\n")[0]
        if NO_HALVES in reason:
            raise ProviderError(
                f"The device does not compute in float16 ({reason}): take --precision fp32 "
                "(precision in a program) for a target there, and another device for a draft."
            ) from error
        raise BundleError(
            f"A graph does not fit its manifest ({reason}); build the bundle again."
        ) from error
