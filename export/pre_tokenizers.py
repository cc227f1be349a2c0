"""How byte-level families cut a text before its letters are merged, by the names of converters."""

from pathlib import Path
from typing import Any

from tokenizers import Regex
from tokenizers import pre_tokenizers as splitters

from runtime.errors import BuildError

# Families that cut their text alike, by the names that converters write for them.
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "codeshell")
GPT_2 = ("gpt-2", "phi-2")
LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")
QWEN_2 = ("qwen2", "deepseek-r1-qwen")
TEKKEN = ("tekken",)
GPT_2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def pre_tokenizer_for(path: Path, name: str) -> Any:
    """The cutter of the family `name`; BuildError, naming those there are, for an unknown one."""
    if name in SINGLE_DIGITS:
        steps: list[Any] = [splitters.Digits(individual_digits=True)]
        return splitters.Sequence([*steps, splitters.ByteLevel(add_prefix_space=False)])
    if name in GPT_2:
        return splitters.ByteLevel(add_prefix_space=False)
    if name in LLAMA_3:
        patterns = [WORDS % r"\p{N}{1,3}"]
    elif name in QWEN_2:
        patterns = [WORDS % r"\p{N}"]
    elif name in TEKKEN:
        patterns = [CASED_WORDS]
    elif name == "default":
        patterns = [r"[\p{P}\$\+<=>\^~\|]+", GPT_2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"]
    else:
        known = ", ".join(sorted((*SINGLE_DIGITS, *GPT_2, *LLAMA_3, *QWEN_2, *TEKKEN, "default")))
        raise BuildError(
            f"{path} cuts its text by the pre-tokenizer {name!r}, which is unknown; "
            f"known are {known}."
        )
    steps = [splitters.Split(Regex(pattern), "isolated") for pattern in patterns]
    return splitters.Sequence(
        [*steps, splitters.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
