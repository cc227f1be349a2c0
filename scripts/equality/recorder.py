"""What a target was asked for while a text was written, and what two texts differ in."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.engine import Target
from runtime.metrics import Metrics

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Written:
    """A text: its tokens, and of each a digest of the logits that chose it.

    None: a row off the trunk chose it, which need not be the same to the last bit.
    """

    tokens: tuple[int, ...]
    digests: tuple[str | None, ...]
    metrics: Metrics

    @property
    def off_trunk(self) -> int:
        """How many tokens rows off the trunk chose."""
        return self.digests.count(None)


class Recorder:
    """A target that notes, for each text that was fed as text, a digest of the logits after it.

    Rows of branches are not noted, but it is that there were any, in `branched`. It runs every call
    `repeats` times, as a larger model would take longer.
    """

    def __init__(self, target: Target, *, repeats: int = 1) -> None:
        self.context = target.context
        self.branched = False
        self._target = target
        self._repeats = repeats
        self._digests: dict[bytes, str] = {}  # by the text, for it may be another than is written

    def prefill(self, tokens: Tokens) -> bool:
        """The target's own progress."""
        return self._target.prefill(tokens)

    def extend(
        self, tokens: Tokens, *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        """The target's own answer."""
        for _ in range(self._repeats):
            logits = self._target.extend(tokens, num_logits=num_logits, branches=branches)
        for end, row in enumerate(logits[:num_logits], len(tokens) - num_logits + 1):
            self._digests[tokens[:end].tobytes()] = hashlib.sha256(row.tobytes()).hexdigest()
        self.branched = self.branched or bool(branches)
        return logits

    def written(self, prompt: Sequence[int], tokens: Sequence[int], metrics: Metrics) -> Written:
        """The text `tokens` that was written after `prompt`, with the digests of its rows.

        Raises KeyError where no row can have chosen a token.
        """
        text = np.array([*prompt, *tokens], np.int64)
        keys = [text[:end].tobytes() for end in range(len(prompt), len(text))]
        digests = map(self._digests.get if self.branched else self._digests.__getitem__, keys)
        return Written(tuple(tokens), tuple(digests), metrics)


def differences(expected: Written, found: Written) -> Iterator[str]:
    """What two texts that should be equal differ in."""
    if found.metrics.draft_error is not None:
        yield f"the draft failed: {found.metrics.draft_error}"
    if expected.tokens != found.tokens:
        yield f"tokens {found.tokens} where alone it wrote {expected.tokens}"
        return
    for place, pair in enumerate(zip(expected.digests, found.digests, strict=True)):
        if None not in pair and pair[0] != pair[1]:
            yield f"the logits of token {place} have other bits"
            return
