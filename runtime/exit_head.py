"""The target's early exit: what its first layers take for the next tokens, read off a hidden state.

A session of its own, so that any thread may run it: the target's between its two graphs, or the
draft's, to which the hidden rows then go.
"""

from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime import providers
from runtime.errors import BundleError
from runtime.layout import Sharing
from runtime.session import Pace, misfits_named, unpaced


class ExitHead:
    """An exit's graph; one thread at a time uses it.

    most: how many guesses it can give for a row. pace: every call runs inside `pace("exit", rows)`.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        sharing: Sharing = "alone",
    ) -> None:
        """Load `path`, on the CPU; settings as for `providers.load`.

        Raises BundleError, ProviderError as that does, and BundleError for a graph of another kind.
        """
        self._session = providers.load(path, threads=threads, cores=cores, sharing=sharing)
        shapes = {item.name: item.shape for item in self._session.get_outputs()}
        if set(shapes) != {"tokens", "log_probabilities"}:
            raise BundleError(f"{path} is no graph of an early exit; build the bundle again.")
        self.most = int(shapes["tokens"][-1])
        self.pace: Pace = unpaced
        self._core = cores[0] if cores else None
        self._run_options = ort.RunOptions()

    def guesses(
        self, hidden: NDArray[np.float32], *, top: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `top` likeliest tokens after each of `hidden` [n, hidden], and log-probabilities.

        Both [n, top], best first, fewer where `most` is less; row i speaks for the place after the
        token that row i stands for. Probabilities are among the tokens that the head is about.
        Raises BundleError for rows that do not fit the graph.
        """
        with self.pace("exit", len(hidden)), misfits_named(), providers.pinned(self._core):
            tokens, shares = self._session.run(
                ["tokens", "log_probabilities"], {"hidden": hidden}, self._run_options
            )
        return tokens[:, :top], shares[:, :top]

    def stop(self) -> None:
        """End a call that is under way, and every later one, by an error; from any thread."""
        self._run_options.terminate = True
