import json
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import UsageError
from runtime.prompts import Prompt, load_prompts, prompt_folder, select_prompts

PLAIN: dict[str, Any] = {"question_id": 7, "category": "qa", "turns": ["Why?"]}


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_keys_of_the_format(tmp_path: Path) -> None:
    turns = ["Write a letter.", "Now shorter. \u2028 é"]
    lines = [
        json.dumps({"question_id": 1, "category": "writing", "turns": turns}, ensure_ascii=False),
        "",
        json.dumps({**PLAIN, "reference": ["2.80 euros"]}),
        "  ",
    ]
    assert load_prompts(written(tmp_path, *lines)) == [
        Prompt(1, "writing", tuple(turns)),
        Prompt(7, "qa", ("Why?",), ("2.80 euros",)),
    ]


def test_several_files_follow_each_other_and_may_count_alike(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(PLAIN))
    assert load_prompts(path, path) == [Prompt(7, "qa", ("Why?",))] * 2
    assert load_prompts() == []


def test_what_windows_editors_add_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "dos.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(PLAIN).encode() + b"\r\n\r\n")
    assert len(load_prompts(path)) == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "no JSON"),
        ("[]", "a prompt is an object"),
        ("[" * 100_000, "line 2"),
        ('{"question_id": 1, "question_id": 2}', "a key stands twice"),
        (json.dumps({**PLAIN, "question_id": 8, "answer": 1}), "the key 'answer' is unknown"),
        (json.dumps({"question_id": 8, "turns": ["a"]}), "the key 'category' is missing"),
        (json.dumps({**PLAIN, "question_id": "8"}), "question_id must be a whole number"),
        (json.dumps({**PLAIN, "question_id": True}), "question_id must be a whole number"),
        (json.dumps(PLAIN), "line 1 has the question_id 7 already"),
        (json.dumps({**PLAIN, "question_id": 8, "turns": []}), "at least one text"),
        (json.dumps({**PLAIN, "question_id": 8, "turns": "a"}), "turns must be a list of texts"),
        (json.dumps({**PLAIN, "question_id": 8, "turns": ["a", " "]}), "no text may be empty"),
        (json.dumps({**PLAIN, "question_id": 8, "category": 3}), "category must be a text"),
        (json.dumps({**PLAIN, "question_id": 8, "reference": "x"}), "reference must be a list"),
        (json.dumps({**PLAIN, "question_id": 8, "turns": ["\ud83d"]}), "lone surrogate"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    path = written(tmp_path, json.dumps(PLAIN), line)
    with pytest.raises(UsageError, match="line 2") as caught:
        load_prompts(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b"\xe9")
    cases = [
        (tmp_path / "none.jsonl", "cannot be read"),
        (tmp_path, "cannot be read"),
        (latin, "is not UTF-8"),
        (Path("a\0b"), "cannot be read"),
    ]
    for path, sentence in cases:
        with pytest.raises(UsageError, match=sentence):
            load_prompts(path)


def test_a_limit_takes_from_every_kind_in_turn() -> None:
    kinds = "aaabbc"
    prompts = [Prompt(number, kind, ("?",)) for number, kind in enumerate(kinds)]

    def ids(limit: int | None, *categories: str) -> list[int]:
        chosen = select_prompts(prompts, categories=categories, limit=limit)
        return [prompt.question_id for prompt in chosen]

    assert ids(None) == [0, 3, 5, 1, 4, 2]
    assert [ids(limit) for limit in (1, 4, 9)] == [[0], [0, 3, 5, 1], [0, 3, 5, 1, 4, 2]]
    assert ids(None, "b") == [3, 4]
    assert ids(3, "c", "a") == [0, 5, 1]


def test_what_leaves_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="there are qa"):
        select_prompts([Prompt(1, "qa", ("?",))], categories=["QA"])
    with pytest.raises(UsageError, match="no prompt"):
        select_prompts([])


def test_the_package_brings_prompts_that_can_be_read() -> None:
    paths = sorted(prompt_folder().glob("*.jsonl"))
    assert len(load_prompts(prompt_folder() / "forty.jsonl")) == 40
    assert load_prompts(*paths)
