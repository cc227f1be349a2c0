"""Many sequences at once: a graph of several lanes, each lane with its own cache.

A lane's logits are bit-equal to those of the sequence run alone, since the products do not depend
on the number of rows and every lane has an attention node of its own. When a sequence ends, the
next one takes its lane.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import providers
from runtime.answer import Answer
from runtime.cache import Buffers
from runtime.committed import Committed
from runtime.engine import next_token
from runtime.fused import FusedSession
from runtime.manifest import Geometry
from runtime.sampling import Sampling
from runtime.session import misfits_named
from runtime.strategy import NOTHING
from runtime.timeline import Run
from runtime.verify import Outcome


class LaneSession:
    """A fused graph of `lanes` sequences that each feed one token a call."""

    def __init__(self, path: Path, geometry: Geometry, *, lanes: int, threads: int) -> None:
        """Load `path`; every lane starts idle. Raises BundleError, ProviderError."""
        self.lanes = lanes
        self._session = providers.load(path, threads=threads)
        self._binding = self._session.io_binding()
        self._bound: dict[str, NDArray[Any]] = {}
        self._idle = Buffers(geometry, 1, providers.input_type(self._session, "past.0.0.key"))
        self._caches = [self._idle] * lanes
        self._layers = range(geometry.layers)
        with misfits_named():
            self._bind(geometry)

    def _bind(self, geometry: Geometry) -> None:
        self._tokens = self._input("tokens", np.zeros(self.lanes, np.int64))
        self._input("attention_rows", np.repeat(np.arange(self.lanes), 2))
        self._input("attention_shape", np.array([1, 2, -1]))
        self._input("attention_keep", np.zeros(1, np.int64))
        self._input("logits_rows", np.arange(self.lanes))
        self._lengths = [
            (
                self._input(f"key_lengths.{lane}", np.ones(1, np.int32)),
                self._input(f"total_lengths.{lane}", np.full((), 2, np.int32)),
            )
            for lane in range(self.lanes)
        ]
        self._logits = np.empty((self.lanes, geometry.vocabulary), np.float32)
        self._output("logits", self._logits)
        for lane in range(self.lanes):
            self.seat(lane, None)

    def seat(self, lane: int, cache: Buffers | None) -> None:
        """Give a lane to a sequence; None leaves it idle."""
        self._caches[lane] = cache or self._idle
        for layer in self._layers:
            for part, buffer in zip(
                ("key", "value"), self._caches[lane].buffers[layer], strict=True
            ):
                self._input(f"past.{lane}.{layer}.{part}", buffer)
                self._output(f"present.{lane}.{layer}.{part}", buffer)

    def step(self, tokens: dict[int, int]) -> NDArray[np.float32]:
        """Feed one token to each lane named; return logits [lanes, vocabulary] float32.

        Every lane that is not idle must be named: the others write over the start of their cache,
        and their rows mean nothing. The next call writes the buffer again.
        """
        for lane, token in tokens.items():
            cache = self._caches[lane]
            key_length, total_length = self._lengths[lane]
            self._tokens[lane] = token
            key_length[0], total_length[...] = cache.length + 1, cache.length + 2
        for lane in set(range(self.lanes)) - set(tokens):
            self._lengths[lane][0][0], self._lengths[lane][1][...] = 1, 2
        with misfits_named():
            self._session.run_with_iobinding(self._binding)
        for lane, token in tokens.items():
            self._caches[lane].append(token)
        return self._logits

    def _input(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        self._bound[name] = array  # the binding holds an address only
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return array

    def _output(self, name: str, array: NDArray[np.float32]) -> None:
        self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence to write: its prompt [n] int64, its limits, and the answer to fill."""

    prompt: NDArray[np.int64]
    sampling: Sampling
    max_new_tokens: int
    answer: Answer


class _Seat:
    """A job under way: its committed text and, once its prompt is read, its cache."""

    def __init__(self, job: Job, context: int, ends: frozenset[int]) -> None:
        self.answer = job.answer
        self.metrics = job.answer.metrics
        self.text = Committed(job.prompt, context, job.max_new_tokens, ends, self.metrics)
        self.cache: Buffers | None = None
        self._longest = min(context, len(job.prompt) + job.max_new_tokens)
        self._sampling = job.sampling

    @property
    def pending(self) -> int:
        """The last committed token."""
        return int(self.text.followed_by(())[-1])

    def read_prompt(self, single: FusedSession) -> None:
        """Fill the cache through the one-lane graph and commit the first token."""
        self.metrics.started = time.perf_counter()
        self.cache = single.new_cache(self._longest)
        single.use(self.cache)
        with self.metrics.target_run("read"):
            logits = single.extend(self.text.followed_by(()))
        self.commit(self._choose(logits[0]))

    def take(self, logits: NDArray[np.float32], run: Run) -> None:
        """Commit the token that `logits` [vocabulary] choose, of the pass at `run`."""
        self.metrics.target_runs.append(run)
        token = self._choose(logits)
        self.metrics.verified(NOTHING, Outcome(-1, token))
        self.commit(token)

    def commit(self, token: int) -> None:
        """Add a token to the text and to the answer."""
        self.answer.push(self.text.commit((token,)))
        if self.text.finished:
            self.answer.finish()

    def _choose(self, logits: NDArray[np.float32]) -> int:
        return next_token(logits, self.text.followed_by(()), self._sampling, self.metrics)


def decode_many(
    jobs: Sequence[Job],
    single: FusedSession,
    lanes: LaneSession,
    *,
    end_tokens: frozenset[int],
) -> None:
    """Fill the jobs' answers, as many at once as there are lanes.

    `single` reads the prompts; its own cache is put back in the end. Raises ContextError for a
    prompt that does not fit, before anything has run.
    """
    own = single.cache
    waiting = deque(_Seat(job, single.context, end_tokens) for job in jobs)
    seated: dict[int, _Seat] = {}
    try:
        while True:
            for lane in range(lanes.lanes):
                if lane not in seated and (seat := _next_seat(waiting, single)):
                    lanes.seat(lane, seat.cache)
                    seated[lane] = seat
            if not seated:
                break
            started = time.perf_counter()
            logits = lanes.step({lane: seat.pending for lane, seat in seated.items()})
            run = Run(started, time.perf_counter(), "verify", 1)
            for lane, seat in list(seated.items()):
                seat.take(logits[lane], run)
                if seat.text.finished:
                    lanes.seat(lane, None)
                    del seated[lane]
    finally:
        for lane in seated:
            lanes.seat(lane, None)
        single.use(own)


def _next_seat(waiting: deque[_Seat], single: FusedSession) -> _Seat | None:
    """The next job that is not over with its first token, its prompt read."""
    while waiting:
        seat = waiting.popleft()
        if not seat.text.finished:
            seat.read_prompt(single)
        if not seat.text.finished:
            return seat
    return None
