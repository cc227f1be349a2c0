"""Tests of runtime/hypotheses.py: which outcomes are followed, by hand-made probabilities."""

import itertools
import math
from collections.abc import Sequence

import pytest

from runtime.drafter import Guess
from runtime.hypotheses import SOURCES, Fan, Hypothesis, Source

GUESSES = [Guess(1, (11, 12)), Guess(2, (21,)), Guess(3, (31,))]
BONUS = Hypothesis(2, 3, "bonus")
R11, R12, R21, R31 = (
    Hypothesis(accepted, token) for accepted, token in ((0, 11), (0, 12), (1, 21), (2, 31))
)
OPEN = [Hypothesis(place, None, "masks") for place in range(3)]


def fan(half_life: float = math.inf) -> Fan:
    """Each token stands with 0.6; where it does not, the runner-ups are right with 0.4, 0.2."""
    return Fan(stands=0.6, named=0.4, half_life=half_life)


def chances(fan: Fan, guesses: Sequence[Guess], sources: Sequence[Source]) -> dict[str, float]:
    """The probability of every outcome that could be followed, by place and token."""
    found = {}
    runner_ups = [len(guess.runner_ups) for guess in guesses]
    for chance, place, rank, _ in fan._candidates(runner_ups, 2, sources):
        token = None if rank is None else (guesses[place].token, *guesses[place].runner_ups)[rank]
        found[f"{place} {token}"] = chance
    return found


def test_probabilities_by_hand() -> None:
    assert chances(fan(), GUESSES, ["bonus", "runner-ups", "masks"]) == pytest.approx(
        {
            "0 11": 0.4 * 0.4,
            "0 12": 0.4 * 0.2,
            "0 None": 0.4,
            "1 21": 0.6 * 0.4 * 0.4,
            "1 None": 0.6 * 0.4,
            "2 3": 0.6 * 0.6 * 0.6,
            "2 31": 0.6 * 0.6 * 0.4 * 0.4,
            "2 None": 0.6 * 0.6 * 0.4,
        }
    )
    # Nothing is known of the place after the chain: whatever stands there is followed.
    assert chances(fan(), GUESSES[:2], ["bonus"]) == pytest.approx({"2 None": 0.6 * 0.6})


def test_the_likeliest_are_followed() -> None:
    order = [BONUS, R11, R21, R12, R31]  # 0.216, 0.16, 0.096, 0.08, 0.0576
    for count in range(8):
        assert fan().hypotheses(GUESSES, 2, count) == order[:count]
    with_masks = [OPEN[0], OPEN[1], BONUS, R11, OPEN[2], R21, R12, R31]
    for count in range(10):
        found = fan().hypotheses(GUESSES, 2, count, sources=SOURCES)
        assert found == with_masks[:count]


def test_each_source_can_be_switched_off() -> None:
    of: dict[Source, list[Hypothesis]] = {
        "bonus": [BONUS], "runner-ups": [R11, R21, R12, R31], "masks": OPEN, "exit": []
    }  # fmt: skip
    for count in range(5):
        for sources in itertools.combinations(SOURCES, count):
            found = fan().hypotheses(GUESSES, 2, 20, sources=sources)
            assert set(found) == {each for source in sources for each in of[source]}
            assert len(found) == len(set(found))


def test_a_chain_that_was_cut_ends_where_its_next_guess_is() -> None:
    assert fan().hypotheses(GUESSES, 1, 9) == [
        Hypothesis(1, 2, "bonus"), R11, R21, R12,
    ]  # fmt: skip
    assert fan().hypotheses(GUESSES, 0, 9) == [Hypothesis(0, 1, "bonus"), R11, R12]


def test_without_a_further_guess_the_place_after_the_chain_is_open() -> None:
    open_bonus = Hypothesis(2, None, "bonus")
    assert fan().hypotheses(GUESSES[:2], 2, 9) == [open_bonus, R11, R21, R12]
    assert fan().hypotheses(GUESSES[:2], 2, 9, sources=["masks"]) == [OPEN[0], OPEN[2], OPEN[1]]
    assert fan().hypotheses(GUESSES[:2], 2, 9, sources=["runner-ups"]) == [R11, R21, R12]
    with_both = fan().hypotheses(GUESSES[:2], 2, 9, sources=["masks", "bonus"])
    assert with_both == [OPEN[0], open_bonus, OPEN[1]]


@pytest.mark.parametrize("count", range(4))
def test_where_nothing_is_verified_what_follows_is_open_whatever_the_sources(count: int) -> None:
    for sources in itertools.combinations(SOURCES, count):
        [found] = fan().hypotheses([], 0, 9, sources=sources)
        assert (found.accepted, found.final_token) == (0, None)
        assert found.source == ("bonus" if "bonus" in sources else "masks")


def test_what_was_learned_by_hand() -> None:
    learned = fan()
    learned.learn(GUESSES, (1, 22))  # stands at place 0, breaks at 1 by a token nobody named
    learned.learn(GUESSES, (12,))  # breaks at 0, by the second runner-up
    stands = [(8 * 0.6 + 1) / 10, 8 * 0.6 / 9, 0.6]
    named = [(8 * 0.4 + 0) / 10, (8 * 0.2 + 1) / 10]
    assert chances(learned, GUESSES, ["bonus", "runner-ups"]) == pytest.approx(
        {
            "0 11": (1 - stands[0]) * named[0],
            "0 12": (1 - stands[0]) * named[1],
            "1 21": stands[0] * (1 - stands[1]) * named[0],
            "2 3": stands[0] * stands[1] * 0.6,
            "2 31": stands[0] * stands[1] * 0.4 * named[0],
        }
    )


def test_the_word_after_the_chain_is_learned_too() -> None:
    learned = fan()
    learned.learn(GUESSES, (1, 2, 3))
    nine = (8 * 0.6 + 1) / 9
    found = chances(learned, GUESSES, ["bonus", "runner-ups"])
    assert found["2 3"] == pytest.approx(nine**3)
    learned.learn(GUESSES[:2], (1, 2, 9))  # nobody guessed it, so nothing is learned of it
    ten = (8 * 0.6 + 2) / 10
    assert chances(learned, GUESSES, ["bonus"])["2 3"] == pytest.approx(ten * ten * nine)


def test_nothing_is_learned_of_guesses_behind_one_that_was_wrong() -> None:
    """Of a tree another path may have been accepted, so that more was committed there."""
    learned, other = fan(), fan()
    learned.learn(GUESSES, (11, 2, 31))
    other.learn(GUESSES, (11,))
    for sources in (["bonus"], ["runner-ups"]):
        found = chances(learned, GUESSES, sources)  # type: ignore[arg-type]
        assert found == chances(other, GUESSES, sources)  # type: ignore[arg-type]


def test_it_shifts_to_where_proposals_break() -> None:
    for place, block in enumerate([(8,), (1, 8), (1, 2, 8)]):
        learned = fan()
        for _ in range(40):
            learned.learn(GUESSES, block)
        sources: list[Source] = ["masks"]
        assert learned.hypotheses(GUESSES, 2, 1, sources=sources) == [OPEN[place]]
    for rank, token in enumerate((11, 12)):
        learned = fan()
        for _ in range(40):
            learned.learn(GUESSES, (token,))
        assert learned.hypotheses(GUESSES, 2, 1) == [[R11, R12][rank]]
    learned = fan()
    for _ in range(40):
        learned.learn(GUESSES, (1, 2, 3))
    assert learned.hypotheses(GUESSES, 2, 1) == [BONUS]


def test_what_is_followed_is_weighed_anew_in_eight_rounds_and_then_in_each_eighth() -> None:
    learned, first = fan(), []
    for block in [(12,)] * 7 + [(11,)] * 9:
        learned.learn(GUESSES, block)
        first += learned.hypotheses(GUESSES, 2, 1, sources=["runner-ups"])
    # By hand the order is another from the second round on, and again from the thirteenth on.
    assert first == [R11, *[R12] * 14, R11]


def test_what_was_seen_fades() -> None:
    learned = fan(half_life=1)
    learned.learn(GUESSES, (1, 2, 3))
    learned.learn(GUESSES, (11,))
    found = chances(learned, GUESSES, ["runner-ups"])
    stands, named = (8 * 0.6 + 0.5) / 9.5, (8 * 0.4 + 1) / 9
    assert found["0 11"] == pytest.approx((1 - stands) * named)
    learned.learn(GUESSES, (12,))
    found = chances(learned, GUESSES, ["runner-ups"])
    stands, named = (8 * 0.6 + 0.25) / 9.75, (8 * 0.4 + 0.5) / 9.5
    assert found["0 11"] == pytest.approx((1 - stands) * named)
    for _ in range(60):
        learned.learn([Guess(1), Guess(2), Guess(3)], (1, 2, 3))
    before, after = chances(fan(), GUESSES, ["masks"]), chances(learned, GUESSES, ["masks"])
    assert after["0 None"] < before["0 None"]


NAMED = [[1, 5, 6], [7, 2, 8], [9, 3]]  # by an early exit, at the places of the chain 1, 2


def exits(*pairs: tuple[int, int]) -> list[Hypothesis]:
    return [Hypothesis(accepted, token, "exit") for accepted, token in pairs]


def test_an_exit_names_what_may_stand_in_place_of_the_chains_own_tokens() -> None:
    found = Fan(stands=0.5, named=0.4).of_exit(NAMED, (1, 2), ())
    # 0.5 breaks at once, 0.25 at the second place, 0.25 is left for the place after the chain;
    # each time the first that is named has 0.4, the next 0.2.
    assert found == exits((0, 5), (0, 6), (1, 7), (2, 9), (1, 8), (2, 3))
    known = [Hypothesis(0, 5), Hypothesis(2, 9, "bonus")]
    assert Fan(stands=0.5, named=0.4).of_exit(NAMED, (1, 2), known) == exits(
        (0, 6), (1, 7), (1, 8), (2, 3)
    )
    assert Fan().of_exit([[1, 5]], (), ()) == exits((0, 1), (0, 5))


def test_what_the_exit_named_is_learned_where_the_chain_broke() -> None:
    for block, first in (((5,), (0, 5)), ((6,), (0, 6)), ((1, 8), (0, 6))):
        fan = Fan(stands=0.5, named=0.01)
        for _ in range(50):
            fan.learn_exit(NAMED, (1, 2), block)
        assert fan.of_exit(NAMED, (1, 2), ())[0] == exits(first)[0]
