"""What a drafter sees of a session, on a table of logits, mask tokens and a short head included."""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.drafter import ModelDrafter
from runtime.fused import FusedSession
from tests.table import TableTarget, paths

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]


class Fed(NamedTuple):
    """What a pass was fed: a text, of it what was not cached, and chains of nodes.

    Of each chain first behind how many tokens of the text it hangs.
    """

    text: list[int]
    new: list[int]
    chains: list[tuple[int, list[int]]]

    @property
    def rows(self) -> int:
        return len(self.new) + sum(len(tokens) for _, tokens in self.chains)


class TableSession:
    """Logits of a table; `fed` lists its passes.

    A mask's row depends on the last real token, the place and which mask it is. `head`: of which
    tokens the logits are.
    """

    def __init__(
        self, target: TableTarget, context: int, *, head: NDArray[np.int64] | None = None
    ) -> None:
        self.target = target
        self.context = context
        self.vocabulary = target.vocabulary
        self.head = np.arange(target.vocabulary) if head is None else head
        self.logits_width = len(self.head)
        self.chunks = 0
        self.fed: list[Fed] = []
        self._cached: list[int] = []
        size = target.vocabulary
        noise = np.random.default_rng(3).normal(size=(8, 2, size, size)) * 2
        self._masked = noise.astype(np.float32)

    def prefill(self, tokens: Tokens) -> bool:
        self.chunks += 1
        return self.chunks * 2 >= len(tokens)

    def row(self, text: Tokens, masks: int) -> Floats:
        """The full row of the last of so many masks behind a text, or of the text's last token."""
        if masks:
            return np.asarray(self._masked[masks - 1, len(text) % 2, text[-1]])
        return self.target.row(text)

    def extend(
        self, tokens: Tokens, *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> Floats:
        assert 0 < num_logits <= len(tokens) <= self.context - len(branches)
        self._note(tokens.tolist(), num_logits, branches)
        ends = range(len(tokens) - num_logits + 1, len(tokens) + 1)
        texts = [tokens[:end] for end in ends] + paths(tokens, branches)
        return np.stack([self._row_after(text)[self.head] for text in texts])

    def _note(self, text: list[int], num_logits: int, branches: Branches) -> None:
        """What a session with a cache feeds; nodes make chains, each in one piece."""
        same = [one == other for one, other in zip(text, self._cached, strict=False)]
        first = min([*same, False].index(False), len(text) - num_logits)
        chains: list[tuple[int, list[int]]] = []
        for node, (token, parent) in enumerate(zip(branches.tokens, branches.parents, strict=True)):
            if parent < len(text):
                chains.append((parent + 1, []))
            else:
                assert parent == len(text) + node - 1
            chains[-1][1].append(token)
        self.fed.append(Fed(text, text[first:], chains))
        self._cached = text

    def _row_after(self, text: Tokens) -> Floats:
        """The full row of what ends `text`; masks stand at its end, in order."""
        real = int((text < self.vocabulary).sum())
        masks = text[real:].tolist()
        assert masks == [self.vocabulary + each for each in range(len(masks))]
        return self.row(text[:real], len(masks))

    def stop(self) -> None:
        pass


def model_drafter(session: TableSession, *, vocabulary: int = 4, **settings: Any) -> ModelDrafter:
    """A drafter on `session`."""
    return ModelDrafter(cast("FusedSession", session), vocabulary=vocabulary, **settings)
