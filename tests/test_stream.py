"""Tests of runtime/stream.py: whole characters, stop strings, and nothing taken back."""

import numpy as np
import pytest

from runtime.errors import UsageError
from runtime.stream import TextStream
from runtime.text import Text
from tests.small_text import byte_level, sentence_piece, small_text

BYTES = small_text()
PIECES = small_text(sentence_piece())


def of_bytes(data: bytes) -> list[int]:
    """Byte-level tokens of one byte each."""
    single = {BYTES.token_bytes(token): token for token in range(3, 3 + 256)}
    return [single[bytes([byte])] for byte in data]


def run(text: Text, tokens: list[int], stops: list[str] | None = None) -> tuple[list[str], int]:
    """The pieces, the last from `finish`, and the number of tokens kept."""
    stream = TextStream(text, stops or [])
    pieces = [stream.push(token) for token in tokens]
    return [*pieces, stream.finish()], stream.tokens_kept


def cut_by_characters(full: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first, straight from the definition."""
    for end in range(1, len(full) + 1):
        starts = [end - len(stop) for stop in stops if full[:end].endswith(stop)]
        if starts:
            return full[: min(starts)]
    return full


@pytest.mark.parametrize("text", [BYTES, PIECES], ids=["byte-level", "sentence-piece"])
def test_pieces_joined_are_the_full_decode_of_any_tokens(text: Text) -> None:
    draw = np.random.default_rng(6)
    for _ in range(400):
        tokens = draw.integers(0, text.vocabulary, draw.integers(0, 40)).tolist()
        pieces, kept = run(text, tokens)
        assert "".join(pieces) == text.decode(tokens)
        assert kept == len(tokens)


@pytest.mark.parametrize("sample", ["😀", "ไทย", "é", "👩\u200d👩\u200d👧", "a😀b", "\U0010ffff"])
@pytest.mark.parametrize("text", [BYTES, PIECES], ids=["byte-level", "sentence-piece"])
def test_a_character_in_parts_is_shown_whole(text: Text, sample: str) -> None:
    tokens = text.encode(sample)
    assert len(tokens) > len(sample)
    pieces, _ = run(text, tokens)
    assert "".join(pieces) == sample
    assert "\ufffd" not in "".join(pieces)
    assert pieces[-1] == ""


def test_a_real_replacement_character_does_not_stall() -> None:
    pieces, _ = run(BYTES, of_bytes("a\ufffdb".encode()))
    assert pieces == ["a", "", "", "\ufffd", "b", ""]


def test_invalid_bytes_are_replaced_as_soon_as_they_are_known_to_be() -> None:
    assert run(BYTES, of_bytes(b"\xffa"))[0] == ["\ufffd", "a", ""]
    assert run(BYTES, of_bytes(b"\xe2\x82a"))[0] == ["", "", "\ufffda", ""]


def test_an_unfinished_character_is_replaced_at_the_end_only() -> None:
    assert run(BYTES, of_bytes(b"a\xf0\x9f\x98"))[0] == ["a", "", "", "", "\ufffd"]


def test_finish_twice_gives_nothing_more() -> None:
    stream = TextStream(BYTES, ["bcd"])
    assert [stream.push(token) for token in of_bytes(b"abc")] == ["a", "", ""]
    assert stream.finish() == "bc"
    assert stream.finish() == ""
    assert not stream.stopped


def test_control_tokens_show_nothing_and_break_nothing() -> None:
    heart = of_bytes("é".encode())
    assert run(BYTES, [0, heart[0], 1, heart[1], 2])[0] == ["", "", "", "é", "", ""]


@pytest.mark.parametrize(
    ("full", "stops", "shown", "kept"),
    [
        ("abcd", ["cd"], "ab", 2),
        ("abcd", ["x"], "abcd", 4),
        ("aaab", ["aab"], "a", 1),
        ("aaaab", ["aaab", "aab"], "a", 1),
        ("abababc", ["ababc"], "ab", 2),
        ("abcd", ["abcd", "bc"], "a", 1),
        ("xyz", ["yz", "xyz", "z"], "", 0),
        ("one two", ["two", "one"], "", 0),
        ("one\ntwo", ["\n"], "one", 3),
        ("\n", ["\n"], "", 0),
        ("end", ["end."], "end", 3),
        ("e😀f", ["😀"], "e", 1),
        ("e😀f", ["f"], "e😀", 5),
        ("a\ufffdb", ["\ufffd"], "a", 1),
    ],
)
def test_stop_strings(full: str, stops: list[str], shown: str, kept: int) -> None:
    pieces, tokens_kept = run(BYTES, of_bytes(full.encode()), stops)
    assert "".join(pieces) == shown == cut_by_characters(full, stops)
    assert tokens_kept == kept


def test_one_newline_as_a_stop_loses_no_earlier_character() -> None:
    pieces, kept = run(BYTES, of_bytes("a\r é\nb".encode()), ["\n"])
    assert pieces == ["a", "\r", " ", "", "é", "", "", ""]
    assert kept == 5


def test_a_stop_that_begins_and_ends_inside_tokens() -> None:
    tokenizer = byte_level(plain=["xxSTO", "Pyy", "aSTOPb"])
    text = small_text(tokenizer)
    assert run(text, text.encode("hixxSTOPyy"), ["STOP"]) == (["h", "i", "xx", "", ""], 2)
    assert run(text, text.encode("haSTOPb"), ["STOP"]) == (["h", "a", ""], 1)
    assert run(text, text.encode("hiSTOP"), ["STOP"]) == (["h", "i", "", ""], 2)
    assert run(text, text.encode("hixxSTOno"), ["STOP"])[0] == ["h", "i", "xx", "STOn", "o", ""]


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(BYTES, ["b"])
    assert [stream.push(token) for token in of_bytes(b"abcabc")] == ["a", "", "", "", "", ""]
    assert stream.stopped
    assert stream.finish() == ""
    assert stream.tokens_kept == 1


def test_a_stop_that_the_end_completes() -> None:
    stream = TextStream(BYTES, ["\ufffd"])
    assert [stream.push(token) for token in of_bytes(b"a\xe2")] == ["a", ""]
    assert stream.finish() == ""
    assert stream.stopped
    assert stream.tokens_kept == 1


def test_control_tokens_before_a_stop_are_kept() -> None:
    a, b = of_bytes(b"ab")
    assert run(BYTES, [a, 1, b], ["b"]) == (["a", "", "", ""], 2)
    assert run(BYTES, [a, 1, b], ["ab"]) == (["", "", "", ""], 0)


def test_random_stops_are_cut_as_defined() -> None:
    draw = np.random.default_rng(3)
    stopped = 0
    for _ in range(1500):
        full = "".join(draw.choice(list("aabé"), draw.integers(0, 14)))
        stops = [
            "".join(draw.choice(list("aabé"), draw.integers(1, 5)))
            for _ in range(draw.integers(1, 4))
        ]
        tokens = of_bytes(full.encode()) if draw.random() < 0.5 else BYTES.encode(full)
        stream = TextStream(BYTES, stops)
        shown = ""
        for token in tokens:
            shown += stream.push(token)
            assert cut_by_characters(full, stops).startswith(shown)
        shown += stream.finish()
        expected = cut_by_characters(full, stops)
        assert shown == expected
        assert stream.stopped == (expected != full)
        kept = BYTES.decode(tokens[: stream.tokens_kept])
        assert expected.startswith(kept.removesuffix("\ufffd"))
        assert "\ufffd" not in kept
        if stream.tokens_kept < len(tokens):
            more = b"".join(map(BYTES.token_bytes, tokens[: stream.tokens_kept + 1]))
            assert len(more) > len(expected.encode())
        stopped += stream.stopped
    assert 300 < stopped < 1400


def test_held_text_is_no_longer_than_it_must_be() -> None:
    pieces, _ = run(BYTES, of_bytes(b"abcabd"), ["abd"])
    assert pieces == ["", "", "abc", "", "", "", ""]


def test_the_space_that_the_tokenizer_adds_is_not_shown() -> None:
    names = PIECES.vocabulary_tokens()
    space, word = names.index("\u2581"), names.index("\u2581abc")
    assert run(PIECES, [word, word])[0] == ["abc", " abc", ""]
    assert run(PIECES, [1, space, word])[0] == ["", "", " abc", ""]
    assert run(PIECES, [names.index("\u2581\u2581")])[0] == [" ", ""]
    assert run(PIECES, [names.index("a"), word])[0] == ["a", " abc", ""]


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(UsageError, match="stop string"):
        TextStream(BYTES, ["a", ""])
