"""A random two-layer llama GGUF with a byte-level vocabulary, small enough to build in a second."""

from collections.abc import Mapping
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
    """Random float32 weights by GGUF name, matrices [out, in]; large enough for varied text."""
    noise = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        scale = 2.0 / np.sqrt(columns)
        values = noise.standard_normal((rows, columns)) * scale
        return np.asarray(values, dtype=np.float32)

    def norm() -> NDArray[np.float32]:
        return (1.0 + 0.1 * noise.standard_normal(HIDDEN)).astype(np.float32)

    size, kv_size = HIDDEN, KV_HEADS * (HIDDEN // HEADS)
    weights = {"token_embd.weight": matrix(len(vocabulary()), size), "output_norm.weight": norm()}
    for layer in range(LAYERS):
        weights |= {
            f"blk.{layer}.attn_norm.weight": norm(),
            f"blk.{layer}.attn_q.weight": matrix(size, size),
            f"blk.{layer}.attn_k.weight": matrix(kv_size, size),
            f"blk.{layer}.attn_v.weight": matrix(kv_size, size),
            f"blk.{layer}.attn_output.weight": matrix(size, size),
            f"blk.{layer}.ffn_norm.weight": norm(),
            f"blk.{layer}.ffn_gate.weight": matrix(INTERMEDIATE, size),
            f"blk.{layer}.ffn_up.weight": matrix(INTERMEDIATE, size),
            f"blk.{layer}.ffn_down.weight": matrix(size, INTERMEDIATE),
        }
    if not tied:
        weights["output.weight"] = matrix(len(vocabulary()), size)
    return weights


def write_gguf(
    path: Path,
    *,
    weights: dict[str, NDArray[np.float32]] | None = None,
    pairs: dict[str, Any] | None = None,
    architecture: str = "llama",
    quantized: bool = False,
) -> Path:
    """Write a GGUF file of `weights` and `pairs`; matrices in Q8_0 blocks when `quantized`."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata() if pairs is None else pairs).items():
        _add(writer, key, value)
    for name, tensor in (tensors() if weights is None else weights).items():
        if quantized and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
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
