"""The prompt sets of models/prompts are well formed, fit the context and repeat nothing."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from runtime.prompts import Prompt, load_prompts, prompt_folder

FIRST_ID = {
    "translation": 101,
    "summarization": 201,
    "qa": 301,
    "math_reasoning": 401,
    "rag": 501,
    "multi_turn": 601,
}
ALL = sorted(prompt_folder().glob("*.jsonl"))
RUN = 8  # "Answer from the passages only" and the like are shorter
CONTEXT = 2048
ANSWER = 256
TEMPLATE = 64  # what a chat template and its system prompt add


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def shared_runs(prompts: Iterable[Prompt], run: int) -> list[tuple[int, int, str]]:
    """Every `run` words in a row that two prompts share within a line, with both question_ids."""
    owner: dict[tuple[str, ...], int] = {}
    found = []
    for prompt in prompts:
        for line in "\n".join(prompt.turns).splitlines():
            spoken = words(line)
            for start in range(len(spoken) - run + 1):
                key = tuple(spoken[start : start + run])
                first = owner.setdefault(key, prompt.question_id)
                if first != prompt.question_id:
                    found.append((first, prompt.question_id, " ".join(key)))
    return found


def too_long(prompt: Prompt) -> bool:
    """Whether a tokenizer that needs a token for every byte leaves too little for the answers."""
    size = sum(len(turn.encode()) for turn in prompt.turns)
    return size + len(prompt.turns) * ANSWER + TEMPLATE > CONTEXT


def passages(prompt: Prompt) -> list[list[str]]:
    """The words of each passage of a prompt of the kind rag."""
    return [words(text) for text in re.findall(r"^Passage \d: (.+)", prompt.turns[0], re.MULTILINE)]


def test_the_folder_holds_the_six_kinds_and_the_forty() -> None:
    assert [path.stem for path in ALL] == sorted([*FIRST_ID, "forty"])
    assert "never for training" in (prompt_folder() / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", FIRST_ID)
def test_twenty_lines_of_exactly_these_keys(kind: str) -> None:
    text = (prompt_folder() / f"{kind}.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text[:-1].split("\n")]
    assert [line["question_id"] for line in lines] == list(
        range(FIRST_ID[kind], FIRST_ID[kind] + 20)
    )
    for line in lines:
        assert list(line)[:3] == ["question_id", "category", "turns"]
        assert list(line)[3:] in ([], ["reference"])


@pytest.mark.parametrize("kind", FIRST_ID)
def test_category_turns_and_references(kind: str) -> None:
    for prompt in load_prompts(prompt_folder() / f"{kind}.jsonl"):
        assert prompt.category == kind
        assert len(prompt.turns) == (2 if kind == "multi_turn" else 1)
        assert all(turn == turn.strip() for turn in prompt.turns)
        assert len(prompt.reference) in (0, len(prompt.turns))
        if kind in ("math_reasoning", "rag"):
            assert prompt.reference


def test_summaries_have_a_text_of_120_to_300_words() -> None:
    for prompt in load_prompts(prompt_folder() / "summarization.jsonl"):
        _, text = prompt.turns[0].split("\n\n", 1)
        assert 120 <= len(words(text)) <= 300, prompt.question_id


def test_questions_come_with_two_or_three_passages() -> None:
    prompts = load_prompts(prompt_folder() / "rag.jsonl")
    for prompt in prompts:
        lengths = [len(text) for text in passages(prompt)]
        assert len(lengths) in (2, 3)
        assert all(60 <= length <= 150 for length in lengths), prompt.question_id
        assert prompt.turns[0].split("\n\n")[-1].startswith("Question: ")
    unanswered = [p.question_id for p in prompts if p.reference == ("The passages do not say.",)]
    assert unanswered == [505, 510, 514, 519]


def test_no_number_and_no_text_occurs_twice() -> None:
    prompts = load_prompts(*ALL)
    turns = [" ".join(words(turn)) for prompt in prompts for turn in prompt.turns]
    assert len({prompt.question_id for prompt in prompts}) == len(prompts) == 160
    assert len(set(turns)) == len(turns)


def test_no_two_prompts_share_a_long_run_of_words() -> None:
    assert shared_runs(load_prompts(*ALL), RUN) == []


def test_every_prompt_leaves_room_for_its_answers() -> None:
    assert [prompt.question_id for prompt in load_prompts(*ALL) if too_long(prompt)] == []


def test_a_copied_sentence_is_found(tmp_path: Path) -> None:
    copied = tmp_path / "copied.jsonl"
    turns = ["Sum up:\n\nOnce, the FERRY was to leave at noon, but fog kept it there."]
    copied.write_text(json.dumps({"question_id": 900, "category": "qa", "turns": turns}))
    found = shared_runs(load_prompts(prompt_folder() / "forty.jsonl", copied), RUN)
    assert (13, 900, "the ferry was to leave at noon but") in found
    assert {ids[:2] for ids in found} == {(13, 900)}


def test_what_is_a_byte_too_long_is_found() -> None:
    fits = Prompt(1, "qa", ("a" * (CONTEXT - ANSWER - TEMPLATE),))
    assert not too_long(fits)
    assert too_long(Prompt(1, "qa", (fits.turns[0] + "a",)))
    assert too_long(Prompt(1, "multi_turn", (fits.turns[0][1:], "a")))
