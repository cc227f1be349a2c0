"""Texts are cut where each family's own tokenizer cuts them."""

from pathlib import Path

import pytest

from export.pre_tokenizers import pre_tokenizer_for
from runtime.errors import BuildError

TEXT = "TwoWords ÉTÉété d'art/\n/25"


@pytest.mark.parametrize(
    ("names", "pieces"),
    [
        (["tekken"], ["Two", "Words", " ÉTÉété", " d", "'art", "/\n/", "2", "5"]),
        (
            ["llama-bpe", "llama3", "llama-v3"],
            ["TwoWords", " ÉTÉété", " d", "'art", "/\n", "/", "25"],
        ),
        (
            ["qwen2", "deepseek-r1-qwen"],
            ["TwoWords", " ÉTÉété", " d", "'art", "/\n", "/", "2", "5"],
        ),
        (["gpt-2", "phi-2"], ["TwoWords", " ÉTÉété", " d", "'", "art", "/", "\n", "/", "25"]),
        (
            ["smollm", "starcoder", "refact", "codeshell"],
            ["TwoWords", " ÉTÉété", " d", "'", "art", "/", "\n", "/", "2", "5"],
        ),
        (["default"], ["TwoWords", " ÉTÉété", " d", "'", "art", "/", "\n", "/", "25"]),
    ],
)
def test_how_families_cut_a_text(names: list[str], pieces: list[str]) -> None:
    for name in names:
        cuts = pre_tokenizer_for(Path("a.gguf"), name).pre_tokenize_str(TEXT)
        assert [TEXT[start:end] for _, (start, end) in cuts] == pieces, name


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(BuildError, match=r"'klingon', which is unknown; known are .*smollm"):
        pre_tokenizer_for(Path("a.gguf"), "klingon")
