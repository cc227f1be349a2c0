"""Drafts that fail at random, in every way that the tests know."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.drafter import Guess, ModelDrafter, Rollout, Start
from runtime.sampling import Sampling

FAULTS = ("raise", "hang", "late", "in time", "shape", "token", "rollouts", "nonsense")


class Faults:
    """Decides whether a draft's pass or guess, each to this share, fails and how; counts that."""

    def __init__(self, *, share: float, limit_s: float, seed: int = 5) -> None:
        self.met: Counter[str] = Counter()
        self._random = Random(seed)
        self._share, self._limit_s = share, limit_s
        self._hang = Event()
        self._ended = False

    def release(self) -> None:
        """Let every pass that hangs go on."""
        released, self._hang = self._hang, Event()
        released.set()

    def close(self) -> None:
        """Let no pass fail any more."""
        self._ended = True
        self._hang.set()

    def logits(self, logits: NDArray[np.float32]) -> NDArray[Any]:
        """What a pass gives for `logits`, if it gives anything and in time."""
        kind = self._kind(*FAULTS[:-2])
        if kind == "raise":
            raise self._random.choice([RuntimeError("no kernel"), MemoryError(), SystemExit(1)])
        if kind == "hang":
            self._hang.wait(60)
        elif kind in ("late", "in time"):
            time.sleep(self._limit_s * (3 if kind == "late" else 0.2))
        elif kind == "shape":
            bad = np.full_like(logits, np.nan)
            odd = [logits[:, 1:], logits[:0], logits[0], logits.astype(np.float64), bad]
            return self._random.choice(odd)
        return -logits if kind == "token" else logits

    def guess(self, guess: Guess, vocabulary: int) -> Any:
        """What a drafter gives for `guess`."""
        token = guess.token
        return self._random.choice(
            [Guess(vocabulary), Guess(-1), Guess(token, (vocabulary,)), Guess(token, (-1,)),
             Guess(1.5), Guess(2**70), Guess(token, (1.5,)), "token"]  # type: ignore[arg-type]
        ) if self._kind(FAULTS[-1]) else guess  # fmt: skip

    def rollouts(self, rollouts: list[Callable[[], Any]]) -> Any:
        """What a drafter gives for the rollouts of a pass."""
        odd = [rollouts[1:], [*rollouts, list], None, [None] * len(rollouts), iter(rollouts)]
        return self._random.choice(odd) if self._kind(FAULTS[-2]) else rollouts

    def _kind(self, *kinds: str) -> str | None:
        if self._ended or self._random.random() > self._share:
            return None
        kind = self._random.choice(kinds)
        self.met[kind] += 1
        return kind


class FaultySession:
    """A session of a draft with a whole head, some of whose passes fail."""

    def __init__(self, session: Any, faults: Faults) -> None:
        self._session, self._faults = session, faults
        self.context, self.vocabulary = session.context, session.vocabulary
        self.logits_width = session.vocabulary

    def prefill(self, tokens: NDArray[np.int64]) -> bool:
        return bool(self._session.prefill(tokens))

    def extend(self, tokens: NDArray[np.int64], **asked: Any) -> NDArray[Any]:
        return self._faults.logits(self._session.extend(tokens, **asked))

    def stop(self) -> None:
        pass


class FaultyDrafter(ModelDrafter):
    """A model that drafts on a faulty session, some of whose guesses are nonsense."""

    def __init__(self, session: Any, faults: Faults, *, vocabulary: int) -> None:
        super().__init__(FaultySession(session, faults), vocabulary=vocabulary)  # type: ignore[arg-type]
        self._faults = faults

    def draft(
        self, text: NDArray[np.int64], starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        found = super().draft(text, starts, count, sampling)
        given: Sequence[Rollout] = self._faults.rollouts([*map(self._spoilt, found)])
        return given

    def _spoilt(self, rollout: Rollout) -> Callable[[], Any]:
        return lambda: [self._faults.guess(guess, self._vocabulary) for guess in rollout()]
