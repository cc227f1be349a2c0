"""Two small tokenizers, byte-level and SentencePiece-style, and a chat template, as `Text`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from tokenizers.pre_tokenizers import ByteLevel

from runtime.text import Text

CONTROL = ("<|end|>", "<|user|>", "<|bot|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|user|>' + m.role + ':' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)
MERGES = ("Ġ t", "h e", "Ġt he", "a a", "aa b", "S T", "O P", "ST OP")


def byte_level(
    control: Sequence[AddedToken | str] = CONTROL, plain: Sequence[str] = ()
) -> Tokenizer:
    """Control tokens, 256 bytes, one token for each merge; nothing cuts the text before merging."""
    names = [str(getattr(token, "content", token)) for token in control]
    alphabet = sorted(ByteLevel.alphabet())
    pieces = [*names, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(control))
    tokenizer.add_tokens(list(plain))
    return tokenizer


def sentence_piece() -> Tokenizer:
    """Control tokens, 256 byte tokens, the space mark, letters a to e, and a few pieces."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", *"abcde", "\u2581a", "bc", "\u2581abc", "\u2581\u2581"]
    merges = [("\u2581", "a"), ("b", "c"), ("\u2581a", "bc"), ("\u2581", "\u2581")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)},
            merges=merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def small_text(tokenizer: Tokenizer | None = None, template: str | None = TEMPLATE) -> Text:
    """A `Text` with no file behind it."""
    config: dict[str, Any] = {"bos_token": "<|user|>", "eos_token": {"content": "<|end|>"}}
    if template is not None:
        config["chat_template"] = template
    return Text(byte_level() if tokenizer is None else tokenizer, config, origin="the small bundle")


def write(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the two files that `Text.load` reads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": "<|user|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
