"""Tests of runtime/control_tokens.py: what is hidden, and where a rendered text is cut."""

import pytest
from tokenizers import AddedToken

from runtime.control_tokens import ControlTokens
from runtime.errors import TextError


def control(*contents: str, lstrip: bool = False, rstrip: bool = False) -> ControlTokens:
    return ControlTokens(
        {
            10 + place: AddedToken(content, special=True, lstrip=lstrip, rstrip=rstrip)
            for place, content in enumerate(contents)
        }
    )


def cut(tokens: ControlTokens, user: str, template: str = "%s") -> list[str | int]:
    """Hide a user's text, put it into a template, and cut the result."""
    stand_ins = tokens.stand_ins([user, template])
    return list(tokens.split(template % tokens.hide(user, stand_ins), stand_ins))


@pytest.mark.parametrize(
    "user",
    ["<a>", "x<a>y", "<a><a>", "<a", "<", "<<a>", "<a<a>>", "a>", "", "<bb>", "\ufdd0<a>", "<a>a>"],
)
@pytest.mark.parametrize("template", ["<a>%s<bb>", "%s", "<a>%sa>", "<a>%sbb><bb>"])
def test_what_a_user_writes_is_never_cut(user: str, template: str) -> None:
    tokens = control("<a>", "<bb>")
    pieces = cut(tokens, user, template)
    texts = "".join(piece for piece in pieces if isinstance(piece, str))
    ids = [piece for piece in pieces if isinstance(piece, int)]
    before, after = template.split("%s")
    assert ids == [10] * before.count("<a>") + [11] * after.count("<bb>")
    assert texts == before.replace("<a>", "") + user + after.replace("<bb>", "")


def test_tokens_that_overlap_stay_hidden() -> None:
    tokens = control("<a>", "a>", "><")
    assert cut(tokens, "<a><a>") == ["<a><a>"]
    assert cut(tokens, "", "%s<a>><") == [10, 12]


def test_the_longest_token_wins() -> None:
    assert cut(control("<a", "<a>"), "", "%s<a>b<a") == [11, "b", 10]


def test_two_messages_cannot_make_a_token_together() -> None:
    tokens = control("<|end|>")
    for place in range(1, 7):
        texts = ["<|end|>"[:place], "<|end|>"[place:]]
        stand_ins = tokens.stand_ins(texts)
        rendered = "".join(tokens.hide(text, stand_ins) for text in texts)
        assert list(tokens.split(rendered, stand_ins)) == ["<|end|>"]


def test_a_stand_in_takes_the_place_of_one_character() -> None:
    tokens = control("<a>")
    stand_ins = tokens.stand_ins([])
    hidden = tokens.hide("  <a> if a < b <b> <", stand_ins)
    assert len(hidden) == len("  <a> if a < b <b> <")
    assert hidden.startswith("  ")
    assert "a < b <b>" in hidden
    assert "<a>" not in hidden


def test_space_around_a_token_goes_where_the_token_says_so() -> None:
    assert cut(control("<a>"), "", "%sx <a> y") == ["x ", 10, " y"]
    assert cut(control("<a>", lstrip=True), "", "%sx <a> y") == ["x", 10, " y"]
    assert cut(control("<a>", rstrip=True), "", "%sx <a> \n<a>y") == ["x ", 10, 10, "y"]


def test_without_control_tokens_all_is_text() -> None:
    tokens = ControlTokens({3: AddedToken("<a>", special=False)})
    assert cut(tokens, "<a>") == ["<a>"]
    assert cut(tokens, "") == []


def test_a_text_of_all_noncharacters_is_refused() -> None:
    every = "".join(map(chr, [*range(0xFDD0, 0xFDF0), *range(0x1FFFE, 0x110000, 0x10000)]))
    tokens = control("<a>", "[b]")
    assert cut(tokens, every[:-2] + "<a>[b]") == [every[:-2] + "<a>[b]"]
    with pytest.raises(TextError, match="noncharacters"):
        tokens.stand_ins([every[:-1]])


def test_thousands_of_control_tokens_in_a_long_text() -> None:
    added = {number: AddedToken(f"<|{number}|>", special=True) for number in range(3000)}
    tokens = ControlTokens(added)
    text = "<|7|><|2999|><|3000|> a" * 5000
    stand_ins = tokens.stand_ins([text])
    hidden = tokens.hide(text, stand_ins)
    assert hidden == text.replace("<|7", stand_ins["<"] + "|7").replace(
        "<|2", stand_ins["<"] + "|2"
    )
    assert list(tokens.split(hidden, stand_ins)) == [text]
    assert list(tokens.split(text, stand_ins)) == [7, 2999, "<|3000|> a"] * 5000
