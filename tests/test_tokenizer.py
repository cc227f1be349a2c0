"""The rebuilt tokenizer gives the ids that the model was trained on."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from export import tokenizer
from export.metadata import Metadata
from runtime.errors import BuildError
from tests import tiny

HARD_TEXTS = [
    "",
    " ",
    "a",
    "   three   runs\t\tof \n\n\n spaces   ",
    "naïve café \u2013 déjà vu… “quotes”",
    "สวัสดีครับ ยินดีที่ได้รู้จัก",
    "🙂👩‍👩‍👧‍👦 🇫🇷 emoji",
    "日本語と한국어 и русский",
    "def f(x):\n    return {**x, 'a': [1, 2.5e-3]}  # ok\n",
    "<|im_end|> <|endoftext|>",
    "1234567890 3.14159 ½ Ⅷ",
    "\ufffd\ufeff\u200b",
]


def build(changes: dict[str, Any] | None = None) -> Tokenizer:
    return tokenizer.build(Metadata(Path("tiny.gguf"), tiny.metadata(changes)))


def spell(word: str) -> list[int]:
    """The ids of the bytes of `word` in the tiny vocabulary."""
    return [len(tiny.CONTROL_TOKENS) + byte for byte in word.encode()]


def merged(name: str) -> int:
    return tiny.vocabulary().index(name)


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "x12", ["x", "1", "2"]),
        ("gpt-2", "x12", ["x", "12"]),
        ("gpt-2", " the", ["Ġthe"]),
        ("gpt-2", "in  a", ["in", "Ġ", "Ġa"]),
        ("llama-bpe", "1212", ["12", "1", "2"]),
        ("qwen2", "12", ["1", "2"]),
        ("tekken", "12", ["1", "2"]),
        ("default", "1212", ["12", "1", "2"]),
    ],
)
def test_text_is_cut_before_it_is_merged(pre: str, text: str, tokens: list[str]) -> None:
    assert build({"tokenizer.ggml.pre": pre}).encode(text).tokens == tokens


def test_bytes_and_merges_keep_their_ids() -> None:
    found = build()
    assert found.get_vocab_size() == len(tiny.vocabulary())
    assert found.encode("xyz").ids == spell("xyz")
    assert found.encode("é").ids == spell("é")
    assert found.encode("x the").ids == [*spell("x"), merged("Ġthe")]


@pytest.mark.parametrize("text", [text for text in HARD_TEXTS if "<|" not in text])
@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "tekken", "default"])
def test_decode_gives_the_text_back(pre: str, text: str) -> None:
    found = build({"tokenizer.ggml.pre": pre})
    assert found.decode(found.encode(text).ids) == text


def test_qwen_reads_composed_letters() -> None:
    found = build({"tokenizer.ggml.pre": "qwen2"})
    assert found.encode("e\u0301").ids == spell("é")
    assert build({"tokenizer.ggml.pre": "tekken"}).encode("e\u0301").ids == spell("e\u0301")


def test_control_tokens_are_special_and_can_be_typed() -> None:
    found = build()
    assert found.encode("<|im_end|>x").ids == [2, *spell("x")]
    assert found.decode([*spell("x"), 2]) == "x"
    found.encode_special_tokens = True
    assert found.encode("<|im_end|>").ids == spell("<|im_end|>")


def test_user_defined_tokens_are_plain_text_that_never_splits() -> None:
    kinds = tiny.metadata()["tokenizer.ggml.token_type"]
    kinds[merged("Ġthe")] = 4
    found = build({"tokenizer.ggml.token_type": kinds})
    assert found.decode(found.encode("xĠthe").ids) == "x the"
    assert found.encode("xĠthey").ids == [*spell("x"), merged("Ġthe"), *spell("y")]


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"tokenizer.ggml.add_bos_token": False}, []),
        ({"tokenizer.ggml.add_bos_token": True}, [1]),
        ({"tokenizer.ggml.add_bos_token": None}, []),
        ({"tokenizer.ggml.add_bos_token": None, "tokenizer.ggml.pre": "llama-bpe"}, [1]),
    ],
)
def test_bos_comes_first_where_the_model_wants_it(changes: dict[str, Any], ids: list[int]) -> None:
    assert build(changes).encode("x").ids == [*ids, *spell("x")]


def test_files_that_are_written(tmp_path: Path) -> None:
    metadata = Metadata(Path("tiny.gguf"), tiny.FAMILIES["qwen2"].pairs({"context_length": 99}))
    tokenizer.write(metadata, tmp_path, generation={"temperature": 0.2})
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(
        "<|im_start|>x the"
    ).ids == [
        1,
        *spell("x"),
        merged("Ġthe"),
    ]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == tiny.CHAT_TEMPLATE
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "pad_token" not in config
    assert config["model_max_length"] == 99
    generation = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
    assert generation == {"eos_token_id": [0, 2], "temperature": 0.2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": None}, "has no tokenizer.ggml.pre"),
        ({"tokenizer.ggml.model": "t5"}, "kind 't5'"),
        ({"tokenizer.ggml.merges": ["q z", "qz q"]}, "merges do not fit"),
        ({"tokenizer.ggml.merges": ["h e", "the the the"]}, "merges do not fit"),
        ({"tokenizer.ggml.merges": ["h e", "a"]}, "the merge 1, 'a', is not of two parts"),
        ({"tokenizer.ggml.merges": ["a "]}, "the merge 0, 'a ', is not of two parts"),
        ({"tokenizer.ggml.merges": [" a"]}, "the merge 0, ' a', is not of two parts"),
        ({"tokenizer.ggml.merges": [""]}, "the merge 0, '', is not of two parts"),
        ({"tokenizer.ggml.merges": 3}, "merges is 3 where a list of str"),
        (
            {
                "tokenizer.ggml.tokens": [*map(str, range(600_000))],
                "tokenizer.ggml.token_type": [1] * 600_000,
            },
            "has 600000 tokens; 524288 are the most",
        ),
        ({"tokenizer.ggml.add_eos_token": True}, "add_eos_token: every prompt would end"),
        ({"tokenizer.ggml.add_sep_token": True}, "add_sep_token: every prompt would end"),
        (
            {"tokenizer.ggml.tokens": ["a", "b", ""], "tokenizer.ggml.token_type": [1] * 3},
            "the token 2 of the vocabulary is empty",
        ),
        (
            {"tokenizer.ggml.tokens": ["a", "b", "a"], "tokenizer.ggml.token_type": [1] * 3},
            "'a' twice",
        ),
        ({"tokenizer.ggml.token_type": [1]}, "1 token types"),
        ({"tokenizer.ggml.bos_token_id": 999}, "bos_token_id is 999"),
        ({"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": True}, "names none"),
    ],
)
def test_vocabularies_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        tokenizer.write(Metadata(Path("tiny.gguf"), tiny.metadata(changes)), Path(), generation={})


def test_an_answer_must_be_able_to_end() -> None:
    kinds = [1] * len(tiny.vocabulary())
    changes = {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.token_type": kinds}
    with pytest.raises(BuildError, match="no end token"):
        tokenizer.end_tokens(Metadata(Path("tiny.gguf"), tiny.metadata(changes)))


def sentence_pieces(changes: dict[str, Any] | None = None) -> Tokenizer:
    """<unk> <s> </s>, 256 bytes, then pieces whose score is minus their place."""
    pieces = ["▁the", "▁t", "he", "▁", "t", "h", "e", "a", "n", "an", "<tool>"]
    tokens = ["<unk>", "<s>", "</s>", *map("<0x{:02X}>".format, range(256)), *pieces]
    pairs = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * 10, 4],
        "tokenizer.ggml.scores": [-float(place) for place in range(len(tokens))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": None,
        "tokenizer.ggml.merges": None,
    }
    return build(pairs | (changes or {}))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the", ["<s>", "▁the"]),
        ("the an", ["<s>", "▁the", "▁", "an"]),
        ("hehe", ["<s>", "▁", "he", "he"]),
        ("é", ["<s>", "▁", "<0xC3>", "<0xA9>"]),
        ("a<tool>a", ["<s>", "▁", "a", "<tool>", "▁", "a"]),
        ("", ["<s>"]),
    ],
)
def test_sentence_pieces(text: str, tokens: list[str]) -> None:
    assert sentence_pieces().encode(text).tokens == tokens


@pytest.mark.parametrize("text", [text for text in HARD_TEXTS if "<|" not in text])
@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_pieces_give_the_text_back(text: str, *, prefix: bool) -> None:
    found = sentence_pieces({"tokenizer.ggml.add_space_prefix": prefix})
    assert found.decode(found.encode(text).ids) == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.scores": [0.0]}, "1 scores"),
        ({"tokenizer.ggml.scores": [float("nan")] * 270}, "a score .* is not a number"),
        ({"tokenizer.ggml.remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
        (
            {
                "tokenizer.ggml.tokens": ["a", "b"],
                "tokenizer.ggml.token_type": [1, 1],
                "tokenizer.ggml.scores": [0.0, 0.0],
            },
            "byte token <0x00>",
        ),
    ],
)
def test_sentence_pieces_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        sentence_pieces(changes)


def test_pieces_too_long_to_be_split_are_refused() -> None:
    """All splits of a piece are tried: their letters grow with its square."""
    tokens = ["<unk>", "<s>", "</s>", *map("<0x{:02X}>".format, range(256))]
    changes = {
        "tokenizer.ggml.tokens": [*tokens, "a" * 8_192],
        "tokenizer.ggml.token_type": [1] * 260,
        "tokenizer.ggml.scores": [0.0] * 260,
    }
    with pytest.raises(BuildError, match="too long for all splits"):
        sentence_pieces(changes)


@pytest.mark.parametrize("token", ["$A", "a:b", "$0", ":0", "<s> $A", "bos"])
def test_a_bos_token_of_odd_letters_comes_first(token: str) -> None:
    tokens = tiny.vocabulary()
    tokens[1] = token
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.add_bos_token": True}
    assert build(changes).encode("x").ids == [1, *spell("x")]


# These ids are printed by other programs that run the model with the tokenizer it was trained
# with; the word "assistant" and the accents would differ under most other cuts.
SMOLLM_SYSTEM = [2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407]
SMOLLM_SYSTEM += [19712, 8182]
SMOLLM_FRENCH = [65, 2726, 290, 1264, 2618, 47765, 1121, 367, 2618, 4649, 9148, 428, 2756, 96]
SMOLLM_FRENCH += [19870, 430, 16520, 8715, 30]


@pytest.mark.real_model
class TestReferenceModel:
    @pytest.fixture
    def smollm_tokenizer(self, smollm: Path) -> Tokenizer:
        return Tokenizer.from_file(str(smollm / "tokenizer.json"))

    @pytest.mark.parametrize(
        ("text", "ids"),
        [
            ("<|endoftext|><|im_start|><|im_end|>", [0, 1, 2]),
            ("You are a helpful AI assistant named SmolLM, trained by Hugging Face", SMOLLM_SYSTEM),
            ("<|im_start|>user\nHello<|im_end|>\n", [1, 4093, 198, 19556, 2, 198]),
            ("<|im_start|>assistant\n", [1, 520, 9531, 198]),
            ("<|im_start|>system\n", [1, 9690, 198]),
            ("What is the capital of France?", [1780, 314, 260, 3575, 282, 4649, 47]),
            ("The capital of France is Paris.", [504, 3575, 282, 4649, 314, 7042, 30]),
            ("Hello! How can I help you today?", [19556, 17, 1073, 416, 339, 724, 346, 1834, 47]),
            ("Quelle est la capitale de la France ? Réponds en une phrase.", SMOLLM_FRENCH),
        ],
    )
    def test_known_ids(self, smollm_tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
        assert smollm_tokenizer.encode(text).ids == ids

    def test_digits_stand_alone(self, smollm_tokenizer: Tokenizer) -> None:
        assert smollm_tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]
        assert smollm_tokenizer.encode("a 12").tokens == ["a", "Ġ", "1", "2"]

    @pytest.mark.parametrize("text", HARD_TEXTS)
    def test_decode_gives_the_text_back(self, smollm_tokenizer: Tokenizer, text: str) -> None:
        smollm_tokenizer.encode_special_tokens = True
        assert smollm_tokenizer.decode(smollm_tokenizer.encode(text).ids) == text
