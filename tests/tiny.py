"""Random two-layer GGUF files with a byte-level vocabulary, small enough to build in a second."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n'"
    " + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "e r", "a n", "o n", "Ġ a", "o r", "Ġ Ġ", "ĠĠ ĠĠ", "1 2")

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, CONTEXT = 2, 64, 96, 4, 2, 256


def byte_alphabet() -> list[str]:
    """The 256 characters by which byte-level vocabularies write bytes 0 to 255 (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    table |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


def vocabulary() -> list[str]:
    """Control tokens 0 to 2, then 256 bytes, then one token for each merge."""
    return [*CONTROL_TOKENS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def metadata(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The key-value pairs of the file with some changed; a change to None drops its key."""
    tokens = vocabulary()
    pairs: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.license": "apache-2.0",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(tokens),
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL_TOKENS) + [1] * (256 + len(MERGES)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    pairs |= changes or {}
    return {key: value for key, value in pairs.items() if value is not None}


def tensors(*, seed: int = 0, tied: bool = False) -> dict[str, NDArray[np.float32]]:
    """The weights that go with `metadata`, as those of a family."""
    return Family("llama", tied=tied, head_size=HIDDEN // HEADS, gain=2.0).weights(seed=seed)


@dataclass(frozen=True, slots=True)
class Family:
    """What sets a small model of one architecture apart from the llama of `metadata`."""

    architecture: str
    tied: bool = False
    biases: bool = False
    head_norms: bool = False
    rope_factors: bool = False
    hidden: int = HIDDEN
    intermediate: int = INTERMEDIATE
    head_size: int = 32  # not hidden / heads
    gain: float = 1.0  # of every matrix; a larger one makes varied text, and magnifies rounding

    def pairs(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The key-value pairs of the file; `changes` as in `metadata`, without the architecture."""
        settings = {
            "embedding_length": self.hidden,
            "feed_forward_length": self.intermediate,
            "attention.key_length": self.head_size,
            "attention.value_length": self.head_size,
            "rope.dimension_count": self.head_size,
        } | dict(changes or {})
        llama = metadata({f"llama.{name}": value for name, value in settings.items()})
        pairs = {key.replace("llama.", f"{self.architecture}."): it for key, it in llama.items()}
        return pairs | {"general.architecture": self.architecture}

    def weights(self, *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
        """Random float32 weights by GGUF name, matrices [out, in]."""
        noise = np.random.default_rng(seed)

        def vector(size: int, middle: float, spread: float) -> NDArray[np.float32]:
            return (middle + spread * noise.standard_normal(size)).astype(np.float32)

        def matrix(rows: int, columns: int) -> NDArray[np.float32]:
            return vector(rows * columns, 0, self.gain / columns**0.5).reshape(rows, columns)

        hidden, query, key = self.hidden, HEADS * self.head_size, KV_HEADS * self.head_size
        found = {"token_embd.weight": matrix(len(vocabulary()), hidden)}
        found["output_norm.weight"] = vector(hidden, 1, 0.1)
        if self.rope_factors:
            found["rope_freqs.weight"] = np.linspace(1, 8, self.head_size // 2, dtype=np.float32)
        for name in (f"blk.{layer}" for layer in range(LAYERS)):
            found |= {
                f"{name}.attn_norm.weight": vector(hidden, 1, 0.1),
                f"{name}.attn_q.weight": matrix(query, hidden),
                f"{name}.attn_k.weight": matrix(key, hidden),
                f"{name}.attn_v.weight": matrix(key, hidden),
                f"{name}.attn_output.weight": matrix(hidden, query),
                f"{name}.ffn_norm.weight": vector(hidden, 1, 0.1),
                f"{name}.ffn_gate.weight": matrix(self.intermediate, hidden),
                f"{name}.ffn_up.weight": matrix(self.intermediate, hidden),
                f"{name}.ffn_down.weight": matrix(hidden, self.intermediate),
            }
            if self.biases:
                for part, size in (("q", query), ("k", key), ("v", key)):
                    found[f"{name}.attn_{part}.bias"] = vector(size, 0, 0.5)
            if self.head_norms:
                for part in "qk":
                    found[f"{name}.attn_{part}_norm.weight"] = vector(self.head_size, 1, 0.2)
        if not self.tied:
            found["output.weight"] = matrix(len(vocabulary()), hidden)
        return found


FAMILIES = {
    "llama": Family("llama", rope_factors=True),
    "llama-tied": Family("llama", tied=True),
    "llama-biases": Family("llama", biases=True, rope_factors=True),
    "mistral": Family("llama", head_size=48),
    "mistral3": Family("mistral3"),
    "qwen2": Family("qwen2", biases=True, tied=True),
    "qwen3": Family("qwen3", head_norms=True, tied=True),
    "qwen3-untied": Family("qwen3", head_norms=True, head_size=16),
}


def packed(weights: Mapping[str, NDArray[np.float32]], kind: str) -> dict[str, NDArray[Any]]:
    """The weights with every matrix in blocks of one kind, [rows, bytes] uint8."""
    block_type = gguf.GGMLQuantizationType[kind]
    return {
        name: gguf.quants.quantize(tensor, block_type).view(np.uint8)
        if tensor.ndim == 2
        else tensor
        for name, tensor in weights.items()
    }


def write_gguf(
    path: Path,
    *,
    weights: Mapping[str, NDArray[Any]] | None = None,
    pairs: Mapping[str, Any] | None = None,
    architecture: str | None = None,
    quantized: bool = False,
    kind: str = "Q8_0",
) -> Path:
    """Write a GGUF file of `weights` and `pairs`; matrices in Q8_0 blocks when `quantized`.

    Matrices of uint8, [rows, bytes], are blocks of the type `kind` already.
    """
    weights = tensors() if weights is None else weights
    pairs = metadata() if pairs is None else pairs
    writer = gguf.GGUFWriter(path, architecture or pairs["general.architecture"])
    for key, value in pairs.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, tensor in (packed(weights, kind) if quantized else weights).items():
        blocks = gguf.GGMLQuantizationType[kind] if tensor.dtype == np.uint8 else None
        writer.add_tensor(name, tensor, raw_dtype=blocks)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
