"""Prompt lookup in a growing text: the same as in a text that is read anew."""

import itertools

import numpy as np
import pytest

from runtime.copying import Copies
from runtime.drafter import LookupDrafter


def of(text: str, *, longest: int = 8, count: int = 4) -> tuple[int, str]:
    copies = Copies(longest)
    copies.add(map(ord, text))
    size, tokens = copies.copied(count)
    return size, "".join(map(chr, tokens))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (0, "")),
        ("a", (0, "")),
        ("ab", (0, "")),
        ("aa", (1, "aaaa")),
        ("aba", (1, "baba")),
        ("abab", (2, "abab")),
        ("abcab", (2, "cabc")),
        ("abcdxabc", (3, "dxab")),
        ("xbcdabceabc", (3, "eabc")),  # the latest of the longest
        ("abcdbcebc", (2, "ebce")),
        ("abcbcxb", (1, "cxbc")),
    ],
)
def test_what_followed_where_the_end_stood_before(text: str, expected: tuple[int, str]) -> None:
    assert of(text) == expected


def test_a_match_counts_up_to_the_longest() -> None:
    assert of("abcdeabcde", longest=3)[0] == 3
    assert of("abcdeabcde")[0] == 5
    assert of("abcdeabcde", count=0) == (5, "")


@pytest.mark.parametrize("longest", [2, 3, 8])
def test_every_short_text_gives_what_the_drafter_gives(longest: int) -> None:
    drafter = LookupDrafter(longest=longest)
    for tokens in itertools.product(range(3), repeat=7):
        copies = Copies(longest)
        for at, token in enumerate(tokens, 1):
            copies.add([token])
            size, guesses = drafter.copied(np.array(tokens[:at]), 5)
            assert copies.copied(5) == (size, [guess.token for guess in guesses])


def test_long_random_texts_too() -> None:
    rng = np.random.default_rng(0)
    drafter, copies = LookupDrafter(longest=8), Copies(8)
    text = np.concatenate([rng.integers(4, size=300), rng.integers(40, size=300)])
    for at in range(0, len(text), 3):
        copies.add(text[at : at + 3].tolist())
        size, guesses = drafter.copied(text[: at + 3], 8)
        assert copies.copied(8) == (size, [guess.token for guess in guesses])
