"""Turn the residual stream, so that no channel stands out (QuaRot, Ashkboos et al. 2024).

A model whose norms carry no weights does not care in which basis its residual stream is written:
with an orthogonal matrix Q folded into every matrix that reads or writes the stream it computes the
same function. In a random basis a row's outliers are spread over all channels, which then look
normally distributed, and 8 bits are enough for them.
"""

import numpy as np
from numpy.typing import NDArray

from export.model import Model

READERS = {
    "attention_norm": ("q", "k", "v"),
    "feed_forward_norm": ("gate", "up"),
}
WRITERS = ("o", "down")


def rotated(model: Model, *, seed: int = 0) -> Model:
    """The same function with a rotated residual stream and norms of weight 1.

    A tied head stays tied: what the last norm's weights did goes into `head_map`. float32 weights,
    computed in float64; `seed` draws the rotation.
    """
    turn = random_rotation(model.geometry.hidden, seed=seed)
    ones = np.ones(model.geometry.hidden, np.float32)
    # What does not touch the stream, as biases and head norms, stays as it is.
    weights = {
        **model.weights,
        "embedding": _times(model.weights["embedding"], turn),
        "norm": ones,
    }
    if "head" in model.weights:
        weights["head"] = _times(model.weights["head"] * model.weights["norm"], turn)
    else:
        weights["head_map"] = ((turn.T * model.weights["norm"]) @ turn).astype(np.float32)
    for layer in range(model.geometry.layers):
        for norm, readers in READERS.items():
            weights[f"layers.{layer}.{norm}"] = ones
            scale = model.weights[f"layers.{layer}.{norm}"]
            for reader in readers:
                name = f"layers.{layer}.{reader}"
                weights[name] = _times(model.weights[name] * scale, turn)
        for writer in WRITERS:
            name = f"layers.{layer}.{writer}"
            weights[name] = _times(model.weights[name].T, turn).T
    return Model(model.geometry, weights)


def random_rotation(size: int, *, seed: int) -> NDArray[np.float64]:
    """A uniformly drawn orthogonal matrix [size, size] (Mezzadri 2007: QR, signs made unique)."""
    noise = np.random.default_rng(seed).standard_normal((size, size))
    orthogonal, triangular = np.linalg.qr(noise)
    return np.asarray(orthogonal * np.sign(np.diag(triangular)))


def _times(matrix: NDArray[np.float32], turn: NDArray[np.float64]) -> NDArray[np.float32]:
    return (matrix.astype(np.float64) @ turn).astype(np.float32)
