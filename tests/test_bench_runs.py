from typing import Any

from runtime.bench_runs import CLEARING_TEXT, Contest, Plan, Way
from runtime.prompts import Prompt
from runtime.sampling import Sampling
from tests.fake_bench import ALONE, LOOKUP, MIRROR, FakeSession

WAYS = (ALONE, LOOKUP, MIRROR)
ONE = Prompt(1, "qa", ("Why?",))
TWO = Prompt(2, "talk", ("First.", "And then?"))
SAMPLING = Sampling(temperature=0.5, seed=9)


def contest(ways: tuple[Way, ...] = WAYS) -> tuple[Contest, list[tuple[str, Any]], list[Any]]:
    journal: list[tuple[str, Any]] = []
    sessions = {
        way.session: FakeSession(way.strategy, journal, draft=way.draft) for way in reversed(ways)
    }
    return Contest(sessions, ways), journal, list(sessions.values())


def test_ways_are_spelled_as_on_the_command_line() -> None:
    assert [str(way) for way in WAYS] == ["autoregressive", "speculative:lookup", "mirror:model"]


def test_who_begins_moves_on_and_is_spread_over_prompts_and_repeats() -> None:
    field, journal, _ = contest()
    prompts = [Prompt(number, "qa", (f"{number}?",)) for number in range(3)]
    laps = list(field.laps(Plan(prompts, SAMPLING, 8, repeats=3)))
    assert [(lap.repeat, lap.prompt.question_id) for lap in laps] == [
        (repeat, number) for repeat in (1, 2, 3) for number in (0, 1, 2)
    ]
    asked = [(way, told) for way, told in journal if told != CLEARING_TEXT]
    orders = [asked[start : start + 3] for start in range(0, 27, 3)]
    assert all([text for _, text in order] == [order[0][1]] * 3 for order in orders)
    assert all({way for way, _ in order} == {str(way) for way in WAYS} for order in orders)
    for number in range(3):
        firsts = [order[0][0] for order in orders if order[0][1] == [f"{number}?"]]
        assert sorted(firsts) == sorted(str(way) for way in WAYS)


def test_turns_are_one_conversation_with_the_ways_own_answers() -> None:
    field, journal, sessions = contest((ALONE, LOOKUP))
    sessions[0].script = {("speculative:lookup", 0): [7]}
    (lap,) = field.laps(Plan([TWO], SAMPLING, 8, ("END",)))
    assert journal == [
        ("autoregressive", CLEARING_TEXT),
        ("autoregressive", ["First."]),
        ("autoregressive", ["First.", "[6, 1, 2]", "And then?"]),
        ("speculative:lookup", CLEARING_TEXT),
        ("speculative:lookup", ["First."]),
        ("speculative:lookup", ["First.", "[7]", "And then?"]),
    ]
    assert [turn.tokens for turn in lap.turns[LOOKUP]] == [(7,), (9, 1, 2)]
    assert [turn.between_tokens_s for turn in lap.turns[LOOKUP]] == [(), (0.01, 0.01)]
    assert [turn.metrics["emitted_tokens"] for turn in lap.turns[LOOKUP]] == [1, 3]
    for session in sessions:
        assert session.samplings == {(SAMPLING, 8, ("END",))}


def test_ways_of_one_draft_share_a_session_that_switches() -> None:
    ways = (Way("speculative", "lookup"), Way("mirror", "lookup"))
    field, journal, sessions = contest(ways)
    assert len(sessions) == 1
    assert [field.settings[way]["strategy"] for way in ways] == ["speculative", "mirror"]
    list(field.laps(Plan([ONE, ONE], SAMPLING, 8)))
    assert [way for way, told in journal if told != CLEARING_TEXT] == [
        "speculative:lookup",
        "mirror:lookup",
        "mirror:lookup",
        "speculative:lookup",
    ]


def test_warm_ups_are_counted_conversations_and_no_laps() -> None:
    field, journal, _ = contest((ALONE,))
    plan = Plan([TWO, ONE], SAMPLING, 8, warm_up=3)
    assert field.warm_up(ALONE, plan) > 0
    assert [told for _, told in journal].count(["First."]) == 3
    assert [told for _, told in journal].count(["Why?"]) == 0
    assert len(list(field.laps(plan))) == plan.size == 2
    del journal[:]
    field.warm_up(ALONE, Plan([ONE], SAMPLING, 8, warm_up=0))
    assert journal == []


def test_lengths_of_a_guess_share_a_session_and_the_usual_one_comes_back() -> None:
    ways = (Way("speculative", "model"), Way("speculative", "model", 8), Way("mirror", "model", 2))
    field, journal, sessions = contest(ways)
    list(field.laps(Plan([ONE], SAMPLING, 8, repeats=2)))
    assert len(sessions) == 2
    asked = [way for way, what in journal if isinstance(what, list)]
    assert asked == [*map(str, ways), *map(str, (*ways[1:], ways[0]))]
    assert [str(way) for way in ways[1:]] == ["speculative:model:8", "mirror:model:2"]
