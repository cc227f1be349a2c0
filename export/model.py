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

    and, in a draft that was distilled to give several tokens in one pass,

        masks [tokens_per_pass - 1, hidden]     embeddings of the mask tokens

    The rows of q and k, and their biases, are in the half-split order of rotary embeddings
    (x[:d/2], x[d/2:] are the two parts of a pair), not interleaved as in some GGUF files.

    The mask tokens have the ids that follow the vocabulary. A distilled draft has logits for its
    `head_tokens` only, [n] ascending.
    """

    geometry: Geometry
    weights: Mapping[str, NDArray[np.float32]]
    head_tokens: NDArray[np.int64] | None = None

    @property
    def head_name(self) -> str:
        """Which of the weights the output matrix is, or is cut from: tied, it is the embedding."""
        return "head" if "head" in self.weights else "embedding"

    @property
    def head(self) -> NDArray[np.float32]:
        """The output matrix [logits, hidden], in which each row stands for a token."""
        whole = self.weights[self.head_name]
        return whole if self.head_tokens is None else whole[self.head_tokens]

    @property
    def logits(self) -> int:
        """How many logits a row has."""
        return len(self.weights[self.head_name] if self.head_tokens is None else self.head_tokens)

    @property
    def distilled(self) -> bool:
        """Whether it is a draft that was trained: it shares its embedding and head with another."""
        return self.head_tokens is not None

    @property
    def tokens_per_pass(self) -> int:
        """How many tokens one pass predicts: one, and one for each mask token."""
        return 1 + len(self.weights.get("masks", ()))

    @property
    def mask_tokens(self) -> list[int]:
        """The ids of the mask tokens, in their order."""
        first = self.geometry.vocabulary
        return list(range(first, first + self.tokens_per_pass - 1))
