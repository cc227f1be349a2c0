"""Rebuilds a tokenizer from the vocabulary, merges and pre-tokenizer that a GGUF file names."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from export.metadata import Metadata
from export.pre_tokenizers import LLAMA_3, QWEN_2, TEKKEN, pre_tokenizer_for
from runtime.errors import BuildError
from runtime.template import ChatTemplate

# The numbers that GGUF gives to kinds of tokens; byte tokens and unused ones need no care.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPECIAL = (UNKNOWN, CONTROL)

# Names under which chat models end a turn; a file often declares only one of those it was taught.
END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>")

# Above what these families have: up to 152,064 tokens, in SentencePiece 32,768.
MOST_TOKENS = 1 << 19
MOST_SPLIT_LETTERS = 1 << 26  # of all ways to split all tokens of SentencePiece in two
SPACE_MARK = "\u2581"


def build(metadata: Metadata) -> Tokenizer:
    """The tokenizer of the file: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").

    Control tokens become special added tokens, user-defined ones plain added tokens. Raises
    BuildError for another kind, an unknown pre-tokenizer, a vocabulary that holds a token twice or
    an empty one, merges that do not fit it, and texts that would end with a token of their own.
    """
    tokens = metadata.texts("tokenizer.ggml.tokens")
    kinds = metadata.integers("tokenizer.ggml.token_type")
    if len(kinds) != len(tokens):
        raise BuildError(
            f"{metadata.path} has {len(tokens)} tokens and {len(kinds)} token types; "
            "there must be as many."
        )
    if len(tokens) > MOST_TOKENS:
        raise BuildError(f"{metadata.path} has {len(tokens)} tokens; {MOST_TOKENS} are the most.")
    for name in ("eos", "sep"):
        if metadata.flag(f"tokenizer.ggml.add_{name}_token", default=False):
            raise BuildError(
                f"{metadata.path} sets tokenizer.ggml.add_{name}_token: every prompt would end "
                "with that token; use a model that answers prompts."
            )
    vocabulary = {token: place for place, token in enumerate(tokens)}
    if "" in vocabulary:
        raise BuildError(f"{metadata.path}: the token {vocabulary['']} of the vocabulary is empty.")
    if len(vocabulary) != len(tokens):
        twice = next(token for place, token in enumerate(tokens) if vocabulary[token] != place)
        raise BuildError(f"{metadata.path}: the vocabulary holds {twice!r} twice.")
    model = metadata.text("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(metadata, vocabulary)
    elif model == "llama":
        tokenizer = _sentence_piece(metadata, vocabulary, kinds)
    else:
        raise BuildError(
            f"{metadata.path} has a tokenizer of the kind {model!r}; 'gpt2' and 'llama' work."
        )
    if _adds_bos(metadata):
        _put_bos_first(metadata, tokenizer)
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind in SPECIAL]
    plain = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(it, special=True, normalized=False) for it in special])
    tokenizer.add_tokens([AddedToken(it, special=False, normalized=False) for it in plain])
    for place, token in enumerate(tokens):
        if tokenizer.token_to_id(token) != place:
            raise BuildError(f"{metadata.path}: the token {place}, {token!r}, cannot be kept.")
    return tokenizer


def end_tokens(metadata: Metadata) -> list[int]:
    """The ids that end an answer, ascending: those declared and control tokens known to do so."""
    tokens = metadata.texts("tokenizer.ggml.tokens")
    kinds = metadata.integers("tokenizer.ggml.token_type")
    found = {
        place
        for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == CONTROL and token in END_NAMES
    }
    for name in ("eos", "eot", "eom"):
        place = _special(metadata, name)
        if place is not None:
            found.add(place)
    if not found:
        raise BuildError(f"{metadata.path} names no end token; an answer would never end.")
    return sorted(found)


def write(metadata: Metadata, folder: Path, *, generation: dict[str, float]) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into `folder`.

    `generation` holds sampling defaults by their usual names, temperature and top_p among them.
    """
    tokenizer = build(metadata)
    tokens = metadata.texts("tokenizer.ggml.tokens")
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name in ("bos", "eos", "unknown", "padding"):
        place = _special(metadata, name)
        if place is not None:
            short = {"unknown": "unk", "padding": "pad"}.get(name, name)
            config[f"{short}_token"] = tokens[place]
    config["add_bos_token"] = _adds_bos(metadata)
    config["clean_up_tokenization_spaces"] = False
    config["model_max_length"] = metadata.integer(metadata.setting("context_length"))
    if "tokenizer.chat_template" in metadata.pairs:
        config["chat_template"] = metadata.text("tokenizer.chat_template")
        ChatTemplate(config["chat_template"], origin="the model file")
    # Written here: the library's own errors, of a full disk among them, are of no class.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8", newline="\n")
    _write_json(folder / "tokenizer_config.json", config)
    settings: dict[str, Any] = {"eos_token_id": end_tokens(metadata), **generation}
    _write_json(folder / "generation_config.json", settings)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")


def _special(metadata: Metadata, name: str) -> int | None:
    """The id that the file declares for "bos", "eos", …; None where it declares none."""
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in metadata.pairs:
        return None
    place, count = metadata.integer(key), len(metadata.texts("tokenizer.ggml.tokens"))
    if not 0 <= place < count:
        raise BuildError(f"{metadata.path}: {key} is {place}, outside the {count} tokens.")
    return place


def _adds_bos(metadata: Metadata) -> bool:
    """Whether plain text starts with the bos token, as in some families it does by default."""
    usual = (
        metadata.text("tokenizer.ggml.model") == "llama"
        or metadata.text("tokenizer.ggml.pre", "") in (*LLAMA_3, *TEKKEN)
    ) and _special(metadata, "bos") is not None
    return metadata.flag("tokenizer.ggml.add_bos_token", default=usual)


def _byte_level(metadata: Metadata, vocabulary: dict[str, int]) -> Tokenizer:
    """Byte-level BPE; bytes that the vocabulary has no letter for are left out of a text.

    SmolLM2's own tokenizer lacks 21 of the 256, all control characters or bytes of planes unused.
    """
    name = metadata.text("tokenizer.ggml.pre")
    pre_tokenizer = pre_tokenizer_for(metadata.path, name)
    merges = _split_merges(metadata)
    whole_words = name in (*LLAMA_3, *TEKKEN)
    tokenizer = _from_merges(metadata, vocabulary, merges, ignore_merges=whole_words)
    if name in QWEN_2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split_merges(metadata: Metadata) -> list[tuple[str, str]]:
    """Each merge as its two parts; BuildError for one that has not got two."""
    merges = []
    for number, merge in enumerate(metadata.texts("tokenizer.ggml.merges")):
        # A left part is never empty, so that it may itself be a space.
        middle = merge.find(" ", 1)
        if middle < 1 or middle + 1 == len(merge):
            raise BuildError(
                f"{metadata.path}: the merge {number}, {merge!r}, is not of two parts."
            )
        merges.append((merge[:middle], merge[middle + 1 :]))
    return merges


def _sentence_piece(
    metadata: Metadata, vocabulary: dict[str, int], kinds: Sequence[int]
) -> Tokenizer:
    """SentencePiece BPE: merges are ranked by the score of the piece that they make."""
    for key in ("tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.remove_extra_whitespaces"):
        if metadata.pairs.get(key):
            raise BuildError(f"{metadata.path} sets {key}, which is not supported.")
    missing = [name for name in map("<0x{:02X}>".format, range(256)) if name not in vocabulary]
    if missing:
        raise BuildError(f"{metadata.path}: the vocabulary lacks the byte token {missing[0]}.")
    unknown = _special(metadata, "unknown")
    tokenizer = _from_merges(
        metadata,
        vocabulary,
        _scored_merges(metadata, vocabulary, kinds),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else metadata.texts("tokenizer.ggml.tokens")[unknown],
    )
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", default=True)
    marks: list[Any] = [normalizers.Replace(" ", SPACE_MARK)]
    spaces: list[Any] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback()]
    spaces.append(decoders.Fuse())
    if prefix:
        marks.insert(0, normalizers.Prepend(SPACE_MARK))
        spaces.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(marks)
    tokenizer.decoder = decoders.Sequence(spaces)
    return tokenizer


def _scored_merges(
    metadata: Metadata, vocabulary: dict[str, int], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    """All splits of normal pieces in two others, best score first, longer left parts before."""
    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) != len(kinds):
        raise BuildError(
            f"{metadata.path} has {len(kinds)} tokens and {len(scores)} scores; "
            "there must be as many."
        )
    if any(map(math.isnan, scores)):
        raise BuildError(f"{metadata.path}: a score of the vocabulary is not a number.")
    if sum(len(piece) ** 2 for piece in vocabulary) > MOST_SPLIT_LETTERS:
        raise BuildError(f"{metadata.path}: the tokens are too long for all splits to be tried.")
    pieces = {piece: scores[place] for piece, place in vocabulary.items() if kinds[place] == NORMAL}
    merges = [
        (score, left, right)
        for piece, score in pieces.items()
        for left, right in ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        if left in pieces and right in pieces
    ]
    merges.sort(key=lambda merge: (-merge[0], -len(merge[1]), vocabulary[merge[1]]))
    return [(left, right) for _, left, right in merges]


def _from_merges(
    metadata: Metadata, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # The library raises nothing narrower.
        raise BuildError(
            f"{metadata.path}: the merges do not fit the vocabulary: {error}."
        ) from error


def _put_bos_first(metadata: Metadata, tokenizer: Tokenizer) -> None:
    place = _special(metadata, "bos")
    if place is None:
        raise BuildError(f"{metadata.path} adds a bos token to every text but names none.")
    token = metadata.texts("tokenizer.ggml.tokens")[place]
    # By a name of our own: the template's syntax would read some tokens as its own.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="bos $A",
        pair="bos $A $B",
        special_tokens=[{"id": "bos", "ids": [place], "tokens": [token]}],
    )
