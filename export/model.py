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

    and, in the families that have them,

        layers.{i}.q_bias [heads * head_size]
        layers.{i}.k_bias, layers.{i}.v_bias [kv_heads * head_size]     all three or none
        layers.{i}.q_norm, layers.{i}.k_norm [head_size]    RMS norm of each head
        rope_factors [head_size / 2]     by which each rotary frequency is divided

    The rows of q and k, and their biases, are in the half-split order of rotary embeddings
    (x[:d/2], x[d/2:] are the two parts of a pair), not interleaved as in some GGUF files.
    """

    geometry: Geometry
    weights: Mapping[str, NDArray[np.float32]]

    @property
    def head(self) -> NDArray[np.float32]:
        """The output matrix [vocabulary, hidden]; the embedding when the two are tied."""
        return self.weights.get("head", self.weights["embedding"])
