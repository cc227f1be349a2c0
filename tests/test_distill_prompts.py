"""Training prompts: many, distinct, the same for the same seed, and far from held-out ones."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from export.distill.prompts import Known, Prompt, Template, draw, templates
from export.distill.settings import Settings
from runtime.errors import BuildError
from runtime.prompts import load_prompts, prompt_folder

RUN = 8  # words in a row, as tests/test_prompt_sets.py compares the held-out sets with each other
HELD_OUT = load_prompts(*sorted(prompt_folder().glob("*.jsonl")))
TURNS = [turn for prompt in HELD_OUT for turn in prompt.turns]
GOOD: dict[str, Any] = {"name": "x-a", "turns": ["{a} and {b}"], "slots": {"a": ["1"], "b": "@c"}}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    spoken = words(text)
    return {tuple(spoken[start : start + length]) for start in range(len(spoken) - length + 1)}


HELD_OUT_RUNS = set().union(*(runs(turn, RUN) for turn in TURNS))
SHORT = {" ".join(words(turn)) for turn in TURNS if len(words(turn)) < RUN}


def leaks(texts: Iterable[str]) -> set[str]:
    """Runs of words that texts share with held-out turns, and whole short turns within texts."""
    distinct = set(texts)
    found = {" ".join(run) for text in distinct for run in runs(text, RUN) & HELD_OUT_RUNS}
    spoken = " | ".join(" ".join(words(text)) for text in distinct)
    return found | {turn for turn in SHORT if f" {turn} " in f" {spoken} "}


@pytest.fixture(scope="module")
def all_templates() -> list[Template]:
    return templates()


@pytest.fixture(scope="module")
def usual(all_templates: list[Template]) -> list[Prompt]:
    return draw(all_templates, Settings("x").prompts, seed=0, held_out=TURNS)


def test_there_are_many_templates_of_all_kinds(all_templates: list[Template]) -> None:
    assert len(all_templates) >= 100
    kinds = {template.name.partition("-")[0] for template in all_templates}
    asked = {"chat", "translation", "summary", "qa", "maths", "code", "extraction", "list"}
    assert asked | {"turns", "language", "rag"} <= kinds
    assert [template.name for template in all_templates] == sorted(
        {template.name for template in all_templates}
    )
    assert max(len(template.turns) for template in all_templates) >= 3


def test_the_prompts_are_as_many_as_asked_for_and_distinct(
    all_templates: list[Template], usual: list[Prompt]
) -> None:
    assert len(usual) == Settings("x").prompts >= 2000
    assert len({prompt.turns for prompt in usual}) == len(usual)
    assert {prompt.template for prompt in usual} == {each.name for each in all_templates}
    assert all(turn.strip() for prompt in usual for turn in prompt.turns)


def test_no_prompt_repeats_what_is_held_out(usual: list[Prompt]) -> None:
    assert leaks([turn for prompt in usual for turn in prompt.turns]) == set()
    known = Known(TURNS)
    assert not any(known.resembles(turn) for prompt in usual for turn in prompt.turns)


def test_no_template_says_what_is_held_out_nor_has_the_name_of_a_set(
    all_templates: list[Template],
) -> None:
    values = {value for each in all_templates for slot in each.slots.values() for value in slot}
    wording = {re.sub(r"\{\w+\}", ". ", turn) for each in all_templates for turn in each.turns}
    assert leaks([*values, *wording]) == set()
    sets = {prompt.category for prompt in HELD_OUT} | {
        path.stem for path in prompt_folder().glob("*.jsonl")
    }
    assert sets.isdisjoint(template.name for template in all_templates)


@pytest.mark.parametrize("number", [0, 40, 60, 80, 100, 120, 140])
def test_a_planted_near_duplicate_is_found(number: int) -> None:
    turn = HELD_OUT[number].turns[0]
    template = Template("x-planted", ("{turn}{end}",), {"turn": [turn.upper()], "end": ["", "!"]})
    fine = Template("x-fine", ("Say {n}",), {"n": ["one", "two"]})
    drawn = draw([template, fine], 9, seed=0, held_out=TURNS)
    assert {prompt.template for prompt in drawn} == {"x-fine"}
    assert leaks([turn.upper()])


def test_half_the_runs_of_words_make_a_near_duplicate() -> None:
    known = Known(["a b c d e f g h i", "short one"])
    assert known.resembles("A, b; c - d (e) f g h i!")
    assert known.resembles("x y a b c d e f g h i z")  # 5 of its 8 runs of five
    assert not known.resembles("w x y a b c d e f g z z z")  # 3 of 9
    assert known.resembles("Short ONE?")
    assert not known.resembles("short")
    assert not known.resembles("short one more")
    assert not Known([]).resembles("anything at all, as long as it likes to be")


def test_draws_depend_on_the_seed_and_the_template_alone(all_templates: list[Template]) -> None:
    one, again, other = (draw(all_templates, 500, seed=seed, held_out=TURNS) for seed in (3, 3, 4))
    assert one == again != other
    some = [each for each in all_templates if each.name.startswith("maths-")]
    alone = draw(some, 100, seed=3, held_out=TURNS)
    among = [prompt for prompt in one if prompt.template.startswith("maths-")]
    shared = min(len(alone), len(among))
    assert alone[:shared] == among[:shared]


def test_templates_take_turns_and_end_where_they_are_used_up() -> None:
    few = Template("x-few", ("{a}",), {"a": ["1", "2"]})
    more = Template("x-more", ("<{a}{b}>",), {"a": list("abcd"), "b": list("efg")})
    same = Template("x-same", ("{a}",), {"a": ["1", "3"]})
    assert (few.count, more.count) == (2, 12)
    drawn = draw([few, more, same], 99, seed=0, held_out=[])
    assert [prompt.template for prompt in drawn[:2]] == ["x-few", "x-more"]
    assert {prompt.turns for prompt in drawn if prompt.template != "x-more"} == {
        ("1",),
        ("2",),
        ("3",),
    }
    assert len(drawn) > 9
    assert draw([few, more, same], 5, seed=0, held_out=[]) == drawn[:5]
    assert draw([few], 0, seed=0, held_out=[]) == []


def folder_of(folder: Path, *lines: dict[str, Any] | str, lists: dict[str, Any]) -> Path:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "x.jsonl").write_text("\n".join(text), encoding="utf-8")
    (folder / "lists.json").write_text(json.dumps(lists), encoding="utf-8")
    return folder


def test_slots_are_lists_ranges_and_names_of_lists(tmp_path: Path) -> None:
    line = {
        "name": "x-all",
        "turns": ["{a} {{{b}}}", "{c}"],
        "slots": {"a": ["p", 7], "b": {"from": 2, "to": 4}, "c": "@names"},
    }
    (found,) = templates(folder_of(tmp_path, line, lists={"names": ["q"]}))
    assert found == Template(
        "x-all",
        ("{a} {{{b}}}", "{c}"),
        {"a": ["p", "7"], "b": ["2", "3", "4"], "c": ["q"]},
    )
    turns = {prompt.turns for prompt in draw([found], 99, seed=0, held_out=[])}
    assert turns <= {(f"{a} {{{b}}}", "q") for a in "p7" for b in "234"}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        " ",
        {**GOOD, "more": 1},
        {"name": "x-a", "turns": ["1"]},
        {**GOOD, "name": "y-a"},
        {**GOOD, "turns": []},
        {**GOOD, "turns": ["{a}"]},
        {**GOOD, "turns": ["{a} {b} {c}"]},
        {**GOOD, "turns": ["{a} {b} {}"]},
        {**GOOD, "turns": ["{a} {b"]},
        {**GOOD, "slots": {"a": [], "b": "@c"}},
        {**GOOD, "slots": {"a": ["1"], "b": "@d"}},
        {**GOOD, "slots": {"a": {"from": 1}, "b": "@c"}},
        {**GOOD, "slots": {"a": {"from": 2, "to": 1}, "b": "@c"}},
        {**GOOD, "slots": {"a": 3, "b": "@c"}},
        {**GOOD, "slots": ["a", "b"]},
        GOOD,
    ],
)
def test_a_template_that_does_not_hold_together_is_named(
    line: dict[str, Any] | str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, GOOD, line, lists={"c": ["2"]})
    with pytest.raises(BuildError, match=r"x\.jsonl, line 2: "):
        templates(folder)


def test_a_list_stands_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, GOOD, lists={"c": ["2"]})
    assert [each.name for each in templates(folder)] == ["x-a"]
    (folder / "lists-b.json").write_text('{"c": ["3"]}', encoding="utf-8")
    with pytest.raises(BuildError, match="list 'c' already"):
        templates(folder)
