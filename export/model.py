"""A decoder-only model in memory: geometry and float32 weights, whatever file they came from."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.manifest import Geometry


@dataclass(frozen=True, slots=True)
class Model:
    """One llama-family model.

    `weights` maps these names to float32 arrays, matrices as [out, in] so that y = x @ w.T:

        embedding [vocabulary, hidden]          head [vocabulary, hidden], absent when tied
        norm [hidden]
        layers.{i}.attention_norm [hidden]      layers.{i}.feed_forward_norm [hidden]
        layers.{i}.q [heads * head_size, hidden]
        layers.{i}.k, layers.{i}.v [kv_heads * head_size, hidden]
        layers.{i}.o [hidden, heads * head_size]
        layers.{i}.gate, layers.{i}.up [intermediate, hidden]
        layers.{i}.down [hidden, intermediate]

    The rows of q and k are in the half-split order of rotary embeddings (x[:d/2], x[d/2:] are the
    two parts of a pair), not the interleaved order in which a GGUF file stores them.
    """

    geometry: Geometry
    weights: Mapping[str, NDArray[np.float32]]

    @property
    def head(self) -> NDArray[np.float32]:
        """The output matrix [vocabulary, hidden]; the embedding when the two are tied."""
        return self.weights.get("head", self.weights["embedding"])
