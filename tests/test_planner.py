"""The planner's choices, one at a time; in whole worlds: test_planner_worlds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from runtime.costs import Costs, Curve, together
from runtime.planner import (
    DECIDED,
    FIRST_ALONE,
    NOTHING,
    PLANNED_AFTER_TRIAL,
    READ_FOR,
    Choice,
    Planner,
    Round,
    Source,
)
from runtime.ways import ALL, HALF, NO_EXIT

# A target that verifies nearly for nothing and a draft of its own that is as fast again.
CHEAP = Costs(Curve((1, 9), (1.0, 1.08)), Curve((1, 100), (0.4, 0.5)), 5, 1.05, 1.05)
# A draft that takes as long as the target.
DEAR = Costs(Curve((1, 9), (1.0, 2.6)), Curve((1, 100), (1.0, 8.0)), 1, 2.0, 2.0)


def alone(seconds: float = 1.0) -> Round:
    return Round(NOTHING, seconds, seconds)


def warmed_up(
    costs: Costs, *, sources: Sequence[Source] = ("lookup", "model"), siblings: Sequence[int] = (0,)
) -> Planner:
    """A planner after the rounds that begin a session."""
    planner = Planner(costs, sources=sources, siblings=siblings)
    for _ in range(FIRST_ALONE):
        assert planner.choose(100, 0) == NOTHING
        planner.learn(alone())
    return planner


def agreeing(planner: Planner, *, rounds: int = 40, place: int = 5, rank: int = 1) -> Planner:
    """It has seen that the model is right at four places, and what comes instead at the next."""
    for _ in range(rounds):
        planner.estimates.learn_model(proposed=place, accepted=place - 1, rank=rank)
        planner.estimates.learn_model(proposed=place, accepted=place, rank=0)
    return planner


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (Choice("none"), "autoregressive"),
        (Choice("lookup", 3), "lookup"),
        (Choice("model", 3), "speculative"),
        (Choice("model", 3, 4), "mirror"),
        (Choice("none", 3, 4), "mirror"),
    ],
)
def test_kinds(choice: Choice, kind: str) -> None:
    assert choice.kind == kind


def test_what_a_round_settled() -> None:
    assert alone().settled == 1
    assert Round(Choice("model", 4), 1, 1, nodes=4, proposed=4, accepted=3).settled == 4
    assert Round(Choice("model", 4), 1, 1, nodes=6, proposed=4, accepted=3, leaf=True).settled == 5


def test_nothing_is_proposed_where_there_is_no_room() -> None:
    planner = agreeing(warmed_up(CHEAP))
    assert planner.choose(0, 8) == NOTHING
    assert planner.choose(1, 0).num_draft_tokens == 1


def test_a_good_draft_beside_the_target_is_mirrored() -> None:
    planner = agreeing(warmed_up(CHEAP))
    choice = planner.choose(100, 0)
    assert choice.kind == "mirror"
    assert choice.num_hypotheses > 1
    after_hit = planner.choose(100, 0, rollout=4)
    assert (after_hit.source, after_hit.num_draft_tokens) == ("model", 4)
    assert after_hit.kind == "mirror"


def test_while_there_is_no_draft_nothing_is_planned_or_tried_with_one() -> None:
    planner = agreeing(warmed_up(CHEAP))
    assert planner.choose(100, 0).kind == "mirror"
    planner.draft_is(there=False)
    for _ in range(600):  # longer than any pause between two trials
        assert planner.choose(100, 0) == NOTHING
        planner.learn(alone())
    assert "0 of them to try" in planner.explain()
    planner.draft_is(there=True)
    assert planner.choose(100, 0) != NOTHING


def test_a_draft_as_slow_as_the_target_is_left_alone() -> None:
    assert warmed_up(DEAR).choose(100, 0) == NOTHING
    # Even if it is always right, it must be waited for: two seconds for two tokens.
    assert agreeing(warmed_up(DEAR)).choose(100, 0).kind != "speculative"


def test_a_rollout_at_hand_is_not_thrown_away_even_if_the_draft_is_to_rest() -> None:
    planner = agreeing(warmed_up(DEAR))
    assert planner.choose(100, 0, rollout=3).source == "model"


def test_a_long_match_is_copied_and_a_short_one_is_not() -> None:
    planner = warmed_up(DEAR)
    for _ in range(20):
        planner.learn_lookup(8, 4, 4)
        planner.learn_lookup(1, 4, 0)
    assert planner.choose(100, 8).kind == "lookup"
    assert planner.choose(100, 8).num_draft_tokens > 2
    assert planner.choose(100, 1) == NOTHING
    assert planner.choose(100, 0) == NOTHING


def test_only_given_sources_propose() -> None:
    sources: list[tuple[Source, ...]] = [(), ("lookup",)]
    for each in sources:
        assert agreeing(warmed_up(CHEAP, sources=each)).choose(100, 0) == NOTHING
    only = agreeing(warmed_up(CHEAP, sources=("model",)))
    for _ in range(40):
        only.learn_lookup(8, 8, 8)
    assert only.choose(100, 8).source == "model"


@pytest.mark.parametrize(("most", "count"), [((), 0), ((1,), 1), ((1, 2), 2)])
def test_no_more_hypotheses_than_given(most: Sequence[int], count: int) -> None:
    planner = Planner(CHEAP, sources=("model",), hypotheses=most, most_draft_tokens=3)
    for _ in range(FIRST_ALONE):
        planner.learn(alone())
    choice = agreeing(planner).choose(100, 0)
    assert (choice.source, choice.num_draft_tokens, choice.num_hypotheses) == ("model", 3, count)


def test_a_rollout_of_a_guess_more_is_not_verified_whole_beyond_the_longest_proposal() -> None:
    planner = Planner(CHEAP, sources=("model",), hypotheses=(), most_draft_tokens=2)
    for _ in range(FIRST_ALONE):
        planner.learn(alone())
    assert agreeing(planner).choose(100, 0, rollout=3) == Choice("model", 2)


def test_a_short_rollout_at_hand_shortens_no_copy() -> None:
    planner = warmed_up(DEAR)
    for _ in range(40):
        planner.learn_lookup(8, 8, 8)
        planner.learn_guessed(2, 0, None)
    assert planner.choose(100, 8, rollout=2) == planner.choose(100, 8) == Choice("lookup", 8)


def with_exit(costs: Costs, *, of_exit: int, is_named: bool) -> Planner:
    """A planner of a draft that breaks after a token or two, where the exit is, or is not, right.

    of_exit: of four hypotheses.
    """
    exits = (ALL,) if of_exit == 4 else (NO_EXIT, HALF)
    planner = Planner(costs, sources=("model",), hypotheses=(4,), most_draft_tokens=4, exits=exits)
    for _ in range(FIRST_ALONE):
        planner.learn(alone())
    agreeing(planner, place=2, rank=9)
    choice = Choice("model", 4, 4, of_exit=of_exit)
    times: dict[str, Any] = {"draft_s": 0.9, "ahead": (20,), "late": (15,)}
    now = planner._costs.beside
    target_s = together(now, now.target(5), 0.4, late_s=0.4, has_exit=True).target_s
    for _ in range(30):
        told = Round(choice, target_s, target_s, 4, 4, 1, rank=9, hit=is_named, by_exit=is_named)
        planner.learn(replace(told, **times))
    planner.begin()
    return planner


@pytest.mark.parametrize(
    ("exit_s", "is_named", "used"),
    [(0.02, True, 2), (0.02, False, 0), (3.0, True, 0)],
)
def test_an_exit_is_read_where_it_is_cheap_and_often_right(
    exit_s: float, used: int, *, is_named: bool
) -> None:
    planner = with_exit(replace(CHEAP, exit_s=exit_s), of_exit=2, is_named=is_named)
    choice = planner.choose(100, 0, rollout=4)
    assert (choice.kind, choice.of_exit) == ("mirror", used)
    assert ("2 of them the exit's" in planner.explain()) == (used > 0)
    again = with_exit(replace(CHEAP, exit_s=exit_s), of_exit=2, is_named=is_named)
    assert again.choose(100, 0, rollout=4) == choice


def test_where_the_exit_is_the_only_source_it_names_all() -> None:
    planner = with_exit(replace(CHEAP, exit_s=0.02), of_exit=4, is_named=True)
    assert planner.choose(100, 0, rollout=4).of_exit == 4


def test_without_an_exit_none_is_chosen() -> None:
    assert agreeing(warmed_up(CHEAP)).choose(100, 0, rollout=4).of_exit == 0


def test_leaves_where_rows_are_cheap_and_the_first_runner_up_is_often_right() -> None:
    serial = Costs(CHEAP.target, Curve((1,), (1.5,)), 5, 3.0, 3.0)
    planner = agreeing(warmed_up(serial, siblings=(0, 2)), place=2)
    for _ in range(40):
        planner.estimates.learn_model(proposed=2, accepted=0, rank=1)
    planner.begin()
    assert planner.choose(100, 0).siblings == 2


def test_rounds_beside_a_draft_that_reads_say_nothing_of_what_calls_cost() -> None:
    planner = Planner(DEAR, sources=("lookup",))
    for _ in range(9):
        assert planner.choose(100, 0) == NOTHING
        planner.learn(replace(alone(4.0), is_shared=True))
    for _ in range(FIRST_ALONE):
        assert planner.choose(100, 8) == NOTHING  # what it takes alone is not known yet
        planner.learn(alone())
    assert planner.choose(100, 8).source == "lookup"
    assert "now promised: autoregressive 1.0." in planner.explain()


def test_guesses_that_were_not_verified_count_as_well() -> None:
    planner = warmed_up(CHEAP)
    before = planner.estimates.model(0)[0]
    planner.learn_guessed(1, 0, None)
    assert planner.estimates.model(0)[0] < before


def test_trials_lose_no_more_than_they_may() -> None:
    """A draft is always wrong, and a round of it takes three times as long as one without."""
    planner = warmed_up(Costs(DEAR.target, Curve((1,), (0.5,)), 5, 2.0, 2.0), sources=("model",))
    seconds, lost, trials = float(FIRST_ALONE), 0.0, 0
    for _ in range(3000):
        choice = planner.choose(100, 0)
        told = alone()
        if choice != NOTHING:
            proposed = choice.num_draft_tokens if choice.source == "model" else 0
            told = Round(choice, 3.0, 1.5, proposed, proposed, rank=9, draft_s=1.5)
            told = (
                replace(told, ahead=(6,), hit=False)
                if choice.num_hypotheses
                else replace(told, drafted=(6,))
            )
            lost += told.seconds - 1
            trials += 1
        seconds += told.seconds
        planner.learn(told)
    assert trials > 5
    assert lost <= 0.01 * seconds + 8 + 2
    assert f"{trials} of them to try" in planner.explain()


def test_only_proportions_of_costs_count() -> None:
    """A calibration in other units is found out by the first rounds."""
    planner = Planner(CHEAP, sources=("model",))
    for _ in range(FIRST_ALONE):
        planner.choose(100, 0)
        planner.learn(alone(0.06))
    assert agreeing(planner).choose(100, 0).kind == "mirror"
    assert f"autoregressive {1 / 0.06:.1f}" in planner.explain()


def test_explanations() -> None:
    assert Planner(CHEAP).explain() == "Nothing was planned yet."
    planner = agreeing(warmed_up(CHEAP))
    planner.choose(100, 0)
    text = planner.explain()
    assert text.startswith(f"Rounds: autoregressive {FIRST_ALONE}; 0 of them to try")
    assert "mirror (" in text
    assert "hypotheses) " in text


def test_on_one_processor_the_draft_must_promise_more() -> None:
    speeds = {}
    for chill in (1.0, 1.3):
        planner = Planner(CHEAP, chill=chill)
        for _ in range(FIRST_ALONE):
            planner.choose(99, 0)
            planner.learn(alone())
        planner.begin()
        planner.choose(99, 0)
        speeds[chill] = {plan.choice.kind: plan.speed for plan in planner._plans}
    plain, chilled = speeds.values()
    assert plain["autoregressive"] == chilled["autoregressive"]
    for kind in ("speculative", "mirror"):
        assert plain[kind] == pytest.approx(1.3 * chilled[kind])


def test_what_a_draft_must_read_first_is_spread_over_what_is_to_come() -> None:
    promised = []
    for unread in (0, 300):
        planner = warmed_up(CHEAP)
        planner.begin(unread=unread, is_waited_for=True)
        planner.choose(100, 0)
        promised.append({plan.choice.kind: plan for plan in planner._plans})
    at_once, later = promised
    assert later["autoregressive"] == at_once["autoregressive"]
    reading_s = planner._costs.alone.draft(301) - planner._costs.alone.draft(1)
    for kind in ("speculative", "mirror"):
        more = 1 / later[kind].speed - 1 / at_once[kind].speed
        assert more == pytest.approx(reading_s / READ_FOR)


def test_to_read_never_promises_time() -> None:
    """Where wide calls were measured to be shorter than narrow ones."""
    falling = Costs(Curve((1,), (0.001,)), Curve((1, 2), (1.0, 0.001)))
    planner = Planner(falling, sources=("model",))
    for _ in range(FIRST_ALONE):
        planner.learn(alone(0.001))
    planner.begin(unread=50, is_waited_for=True)
    planner.choose(100, 0)
    assert all(plan.speed > 0 for plan in planner._plans)


@pytest.mark.parametrize(("costs", "wants"), [(DEAR, False), (CHEAP, True)])
def test_a_draft_that_is_of_no_use_is_not_wanted_any_more(costs: Costs, *, wants: bool) -> None:
    planner = agreeing(warmed_up(costs))
    for _ in range(FIRST_ALONE, DECIDED):
        assert planner.wants_draft
        planner.choose(100, 0)
        planner.learn(alone())
    planner.choose(100, 0)
    assert planner.wants_draft is wants


def test_a_draft_that_was_never_used_must_be_worth_its_first_use() -> None:
    dear = Planner(CHEAP, first_use=1000.0)
    rounds = [alone()] * FIRST_ALONE
    for told in rounds:
        dear.choose(100, 0)
        dear.learn(told)
    agreeing(dear)
    assert dear.choose(100, 0) == NOTHING
    dear.learn(Round(Choice("model", 1), 1.5, 1.0, 1, 1, draft_s=0.4, drafted=(2,)))
    dear.begin()
    agreeing(dear)
    assert dear.choose(100, 0).kind == "mirror"


def test_a_trial_counts_what_the_draft_read_for_it() -> None:
    lost = []
    for reading_s in (0.0, 5.0):
        planner = warmed_up(replace(DEAR, draft=Curve((1, 100), (1.0, 1.01))))
        rounds = 0
        while planner.choose(100, 0) == NOTHING:  # until something else is tried
            planner.learn(alone())
            rounds += 1
            assert rounds < 1000
        planner.learn(Round(Choice("model", 1), 2.0, 1.0, 1, 1, reading_s=reading_s, drafted=(2,)))
        lost.append(planner._lost)
    assert lost[1] == pytest.approx(lost[0] + 5.0)


def test_a_trial_that_the_draft_had_not_read_for_is_made_up_for() -> None:
    planner = warmed_up(replace(DEAR, draft=Curve((1, 100), (1.0, 1.01))))
    for _ in range(100):  # so that nothing gives hope
        planner.learn_guessed(1, 0, None)
    rounds = 0
    while planner.choose(100, 0) == NOTHING:
        planner.learn(alone())
        rounds += 1
        assert rounds < 1000
    looks = []
    for _ in range(10):  # while the draft reads beside the target
        for _ in range(PLANNED_AFTER_TRIAL + 1):
            planner.learn(alone())
            choice = planner.choose(100, 0)
        looks.append(choice)
    assert NOTHING not in looks


@pytest.mark.parametrize("seconds", [0.0, -1e-9, 5e-324, 1e-9, 1e9, 1e308, float("inf")])
def test_whatever_a_clock_says_there_is_a_choice(seconds: float) -> None:
    planner = Planner(CHEAP, siblings=(0, 2))
    kinds = [
        Round(NOTHING, seconds, seconds),
        Round(Choice("lookup", 2), seconds, seconds, nodes=2, proposed=2, accepted=1),
        Round(Choice("model", 1), seconds, seconds, 1, 1, draft_s=seconds, drafted=(2,)),
        Round(Choice("model", 1, 4), seconds, 0.0, 1, 1, hit=True, draft_s=seconds, ahead=(20,)),
    ]
    for number in range(80):
        planner.learn(kinds[number % 4])
        assert planner.choose(number % 3, number % 5, rollout=number % 2).num_draft_tokens <= 2
        assert planner.explain()
