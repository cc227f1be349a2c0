"""Prompt sets: lines of JSON in the format of Spec-Bench (Xia et al. 2024) and MT-bench."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from runtime.errors import UsageError
from runtime.locate import recipe_folder

KEYS = ("question_id", "category", "turns", "reference")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to be had: `turns` are what the person says, one after each answer.

    `reference` holds known answers, for whoever reads the file; nothing here judges by them.
    """

    question_id: int
    category: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()


def prompt_folder() -> Path:
    """Where the prompt sets of this package lie."""
    return recipe_folder() / "prompts"


def load_prompts(*paths: Path) -> list[Prompt]:
    """The prompts of all files, in order; empty lines are skipped.

    Raises UsageError for a file that cannot be read, and for a line (named by its number) that is
    no prompt: not JSON, a key unknown or missing, a value of the wrong kind, a question_id that an
    earlier line of the file has.
    """
    return [prompt for path in paths for prompt in _load(path)]


def select_prompts(
    prompts: Iterable[Prompt], *, categories: Sequence[str] = (), limit: int | None = None
) -> list[Prompt]:
    """Those of `categories` (all of none are named), at most `limit`, from each kind in turn.

    Raises UsageError for a category that no prompt has, and when nothing is left.
    """
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.category, []).append(prompt)
    for category in categories:
        if category not in kinds:
            raise UsageError(
                f"No prompt is of the category {category!r}; there are {', '.join(kinds)}."
            )
    chosen = [kind for name, kind in kinds.items() if not categories or name in categories]
    rows = chain.from_iterable(zip_longest(*chosen))
    found = [prompt for prompt in rows if prompt is not None][:limit]
    if not found:
        raise UsageError("There is no prompt to answer: the files, or the limit, leave none.")
    return found


def _load(path: Path) -> list[Prompt]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}).") from error
    except ValueError as error:  # a null in the name
        raise UsageError(f"{str(path)!r} cannot be read: {error}.") from error
    places: dict[int, int] = {}
    prompts = []
    # Not splitlines, which also splits at U+2028 and its like inside a text.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = _read(line)
            if prompt.question_id in places:
                raise ValueError(
                    f"line {places[prompt.question_id]} has the question_id "
                    f"{prompt.question_id} already"
                )
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: {error}.") from None
        places[prompt.question_id] = number
        prompts.append(prompt)
    return prompts


def _read(line: str) -> Prompt:
    """The prompt of one line; ValueError says what is wrong with it."""
    try:
        data = json.loads(line, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is no JSON ({error.msg} at character {error.pos + 1})") from None
    if not isinstance(data, dict):
        raise ValueError(f"a prompt is an object with {', '.join(KEYS[:-1])}")
    for key in data:
        if key not in KEYS:
            raise ValueError(f"the key {key!r} is unknown; there are {', '.join(KEYS)}")
    for key in KEYS[:-1]:
        if key not in data:
            raise ValueError(f"the key {key!r} is missing")
    if type(data["question_id"]) is not int:
        raise ValueError("question_id must be a whole number")
    turns = _texts(data["turns"], "turns")
    if not turns:
        raise ValueError("turns must hold at least one text")
    (category,) = _texts([data["category"]], "category")
    references = _texts(data.get("reference", []), "reference")
    return Prompt(data["question_id"], category, turns, references)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key stands twice")
    return data


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(text, str) and text.strip() for text in value
    ):
        kind = "a text" if what == "category" else "a list of texts"
        raise ValueError(f"{what} must be {kind}, and no text may be empty")
    for text in value:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{what} holds half a character (a lone surrogate)") from None
    return tuple(value)
