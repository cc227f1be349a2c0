"""The early exit in a round: what the target leans to part-way through, told while it goes on.

The head runs in the target's thread between its two graphs, over the draft's short list; only
tokens leave it (the token channel of Mirror-SD, 2510.13161).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from runtime.exit_head import ExitHead
from runtime.split_session import SplitSession

TOP = 8  # tokens that are told of each place
Listener = Callable[[NDArray[np.int64]], None]


class EarlyExit:
    """A target in two parts and the head between them."""

    def __init__(self, target: SplitSession, head: ExitHead) -> None:
        """Nobody is told at first."""
        self._target, self._head = target, head

    def tell(self, listener: Listener | None) -> None:
        """Give `listener` the likeliest tokens [rows, TOP], best first, in every verification.

        Row i follows what row i of the logits follows; None: read nothing.
        """
        if listener is None:
            self._target.on_exit = None
            return

        def read(hidden: NDArray[np.float32]) -> None:
            tokens, _ = self._head.guesses(hidden, top=TOP)
            listener(tokens)

        self._target.on_exit = read
