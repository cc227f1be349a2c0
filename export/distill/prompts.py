"""Training prompts: templates with slots, and what keeps them apart from held-out ones."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from runtime.errors import BuildError

SHINGLE = 5  # words in a row that count as one
MOST_SHARED = 0.5  # of a prompt's shingles, before it is a near-duplicate
MOST_TRIES = 40  # draws of a template before it counts as used up


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user says, turn by turn, and the template that it was made from."""

    template: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """Turns with {slots} and what each slot may hold."""

    name: str
    turns: tuple[str, ...]
    slots: Mapping[str, Sequence[str]]

    @property
    def count(self) -> int:
        """How many prompts there are in it."""
        return math.prod(len(values) for values in self.slots.values())

    def draw(self, random: np.random.Generator) -> Prompt:
        """One prompt, each slot filled by chance."""
        chosen = {
            slot: values[int(random.integers(len(values)))] for slot, values in self.slots.items()
        }
        return Prompt(self.name, tuple(turn.format(**chosen) for turn in self.turns))


def templates(folder: Path | None = None) -> list[Template]:
    """All templates of `folder`, by name; those of this package where none is given.

    Raises BuildError for one that does not hold together.
    """
    folder = folder or Path(str(files("export.distill"))) / "templates"
    lists: dict[str, list[str]] = {}
    for path in sorted(folder.glob("lists*.json")):
        own = json.loads(path.read_text(encoding="utf-8"))
        if twice := lists.keys() & own.keys():
            raise BuildError(f"{path}: there is a list {min(twice)!r} already.")
        lists |= own
    found: dict[str, Template] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                template = _template(json.loads(line), lists)
                if not template.name.startswith(f"{path.stem}-") or template.name in found:
                    raise ValueError("the name is taken, or does not begin with the file's")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BuildError(f"{path}, line {number}: {error!r} in {line!r:.80}.") from error
            found[template.name] = template
    return [found[name] for name in sorted(found)]


def _template(data: Mapping[str, Any], lists: Mapping[str, list[str]]) -> Template:
    """One line's template; ValueError and its like for one that does not hold together."""
    if set(data) != {"name", "turns", "slots"} or not data["turns"]:
        raise ValueError(f"there must be name, turns and slots, not {sorted(data)}")
    turns = tuple(data["turns"])
    slots = {slot: _values(each, lists) for slot, each in data["slots"].items()}
    used = {field for turn in turns for _, field, _, _ in Formatter().parse(turn)} - {None}
    if used != set(slots):
        raise ValueError(f"the turns use the slots {used}, and there are {set(slots)}")
    template = Template(str(data["name"]), turns, slots)
    if not template.count:
        raise ValueError("a slot has no values")
    return template


def _values(slot: Any, lists: Mapping[str, list[str]]) -> Sequence[str]:
    if isinstance(slot, str):
        return lists[slot.removeprefix("@")]
    if isinstance(slot, dict):
        return [str(number) for number in range(slot["from"], slot["to"] + 1)]
    return [str(value) for value in slot]


def draw(
    chosen: Sequence[Template], count: int, *, seed: int, held_out: Iterable[str]
) -> list[Prompt]:
    """Draw up to `count` distinct prompts, the templates in turn, no near-duplicate of `held_out`.

    Fewer where the templates hold no more.
    """
    known = Known(held_out)
    seen: set[tuple[str, ...]] = set()
    streams = [_distinct(template, seed, seen, known) for template in chosen]
    rounds = itertools.zip_longest(*streams)
    drawn = (prompt for row in rounds for prompt in row if prompt is not None)
    return list(itertools.islice(drawn, count))


def _distinct(
    template: Template, seed: int, seen: set[tuple[str, ...]], known: "Known"
) -> Iterator[Prompt]:
    random = np.random.default_rng([seed, *template.name.encode()])
    misses = 0
    while misses < MOST_TRIES:
        prompt = template.draw(random)
        if prompt.turns in seen or any(map(known.resembles, prompt.turns)):
            misses += 1
            continue
        misses = 0
        seen.add(prompt.turns)
        yield prompt


class Known:
    """Texts that none may resemble: by runs of words that they share, or word for word."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = [_words(text) for text in texts]
        self._whole = {tuple(words) for words in self._texts}
        self._shingles = set().union(*(_shingles(words) for words in self._texts))

    def resembles(self, text: str) -> bool:
        """Whether `text` is one of them but for case and marks, or shares half its shingles."""
        words = _words(text)
        own = _shingles(words)
        shared = len(own & self._shingles)
        return tuple(words) in self._whole or (bool(own) and shared > MOST_SHARED * len(own))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _shingles(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + SHINGLE]) for start in range(len(words) - SHINGLE + 1)}
