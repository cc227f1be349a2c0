"""A decoder of the llama family in torch: the teacher whole, or the student that is trained.

A student has some of the target's layers to begin with, the target's frozen embedding, a head over
the most used tokens only, and an embedding of its own for each mask token. Rows of masks after the
last real token each predict one place further on (Bhendawade et al. 2024, speculative streaming,
2402.11131; An et al. 2025, PARD, 2504.18583).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from numpy.typing import NDArray
from torch import Tensor, nn

from export.model import Model
from export.rotary import rotary_tables
from runtime.manifest import Geometry

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
NORMS = ("attention_norm", "feed_forward_norm")


@dataclass(frozen=True, slots=True)
class Rows:
    """What one pass works on: tokens and positions [B, T] int64, and who sees whom.

    seen: [B, 1, T, T] bool, or None where each row sees all before it. Ids from the vocabulary's
    size up are mask tokens, in their order.
    """

    tokens: Tensor
    positions: Tensor
    seen: Tensor | None = None


class Layer(nn.Module):
    """One layer: attention and a gated feed-forward part, each after an RMS norm."""

    def __init__(self, model: Model, layer: int) -> None:
        """Begin with the weights of the model's `layer`."""
        super().__init__()
        self.geometry = model.geometry
        for name in (*MATRICES, *NORMS):
            value = torch.tensor(model.weights[f"layers.{layer}.{name}"])
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], seen: Tensor | None) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden] in x's dtype; weights are cast to it."""
        geometry, kind = self.geometry, x.dtype
        batch, length, _ = x.shape

        def cast(*names: str) -> Tensor:
            return torch.cat([getattr(self, name) for name in names]).to(kind)

        def heads(rows: Tensor) -> Tensor:
            return rows.view(batch, length, -1, geometry.head_size).transpose(1, 2)

        normed = self._norm(x, "attention_norm")
        queries, keys = geometry.heads * geometry.head_size, geometry.kv_heads * geometry.head_size
        q, k, v = torch.split(F.linear(normed, cast("q", "k", "v")), [queries, keys, keys], dim=-1)
        mixed = _attend(_turned(heads(q), turn), _turned(heads(k), turn), heads(v), seen)
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), cast("o"))
        gate, up = F.linear(self._norm(x, "feed_forward_norm"), cast("gate", "up")).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, cast("down"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = getattr(self, name).to(x.dtype)
        return F.rms_norm(x, weight.shape, weight, self.geometry.norm_epsilon)


class Decoder(nn.Module):
    """Layers between a frozen embedding and a final norm, before a frozen head."""

    embedding: Tensor
    output: Tensor
    cosine: Tensor
    sine: Tensor

    def __init__(self, model: Model, layers: Sequence[int], *, masks: int = 0) -> None:
        """Take these of the model's layers, and `masks` mask tokens near the mean embedding."""
        super().__init__()
        self.geometry: Geometry = model.geometry
        table = torch.tensor(model.weights["embedding"])
        halves = {"embedding": table.to(torch.bfloat16)}
        if model.head_name not in halves:
            halves["head"] = torch.tensor(model.weights["head"]).to(torch.bfloat16)
        self.register_buffer("embedding", halves["embedding"], persistent=False)
        self.register_buffer("output", halves[model.head_name], persistent=False)
        for name, angles in zip(
            ("cosine", "sine"), rotary_tables(model, model.geometry.context), strict=True
        ):
            self.register_buffer(name, torch.tensor(angles), persistent=False)
        self.layers = nn.ModuleList(Layer(model, layer) for layer in layers)
        self.norm = nn.Parameter(torch.tensor(model.weights["norm"]))
        mean = table.mean(0).expand(masks, -1)
        noise = torch.randn(masks, table.shape[1], generator=torch.Generator().manual_seed(0))
        self.masks = nn.Parameter(mean + noise * table.std(0) / 2)

    def forward(self, rows: Rows) -> Tensor:
        """The rows' normed last states [B, T, hidden] in bfloat16, which the head multiplies."""
        return self.normed(self.states(rows)[-1])

    def head(self, tokens: Tensor) -> Tensor:
        """The rows [n, hidden] of the output matrix that are for `tokens` [n] int64."""
        return self.output[tokens.to(self.output.device)]

    def normed(self, last: Tensor) -> Tensor:
        """The final norm of states [.., hidden]."""
        weight = self.norm.to(last.dtype)
        return F.rms_norm(last, weight.shape, weight, self.geometry.norm_epsilon)

    def states(self, rows: Rows) -> list[Tensor]:
        """The residual stream [B, T, hidden]: after the embedding, and after each layer."""
        states = [self.embed(rows.tokens)]
        turn = self.turn(rows.positions)
        for layer in self.layers:
            states.append(layer(states[-1], turn, rows.seen))
        return states

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] → [B, T, hidden] bfloat16, real ones and masks."""
        vocabulary = len(self.embedding)
        real = F.embedding(tokens.clamp(max=vocabulary - 1), self.embedding)
        if not len(self.masks):
            return real
        masked = F.embedding((tokens - vocabulary).clamp(min=0), self.masks.to(real.dtype))
        return torch.where((tokens < vocabulary)[..., None], real, masked)

    def turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The rotary factors [B, 1, T, head_size / 2] of `positions` [B, T]."""
        return self.cosine[positions][:, None], self.sine[positions][:, None]


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> Tensor:
    """Attention of heads [B, heads, T, head_size] over kv heads; seen as in `Rows`.

    Spelt out for training: torch's own kernel for a CPU takes twice as long on the way back.
    """
    if not query.requires_grad:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, is_causal=seen is None, enable_gqa=True
        )
    group, length = query.shape[1] // key.shape[1], query.shape[2]
    key, value = (part.repeat_interleave(group, 1) for part in (key, value))
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if seen is None:
        seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    mixed: Tensor = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value
    return mixed


def _turned(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the two halves of every head [B, heads, T, head_size]."""
    cosine, sine = (part.to(heads.dtype) for part in turn)
    first, second = heads.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def most_used(counts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """The `width` tokens of the highest `counts` [vocabulary], ascending; ties go to low ids."""
    order = np.argsort(-counts, kind="stable")[:width]
    return np.sort(order)
