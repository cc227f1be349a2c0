"""What the target answers to the prompts of each kind, and figures of these answers by kind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime import Sampling, Session, open_session
from runtime.manifest import Manifest
from runtime.prompts import Prompt, load_prompts, prompt_folder
from runtime.sampling import choose
from runtime.text import Text
from scripts.draft.models import PRECISION, context_of, open_target

KINDS = ("translation", "summarization", "qa", "math_reasoning", "rag", "multi_turn")
OVERALL = "overall"
AFTER = 9  # a proposal and the token after it

Tokens = NDArray[np.int64]
Item = TypeVar("Item")
Figures = TypeVar("Figures")


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt with the target's answer, [n] int64, which begins at `start`.

    The end token, where there is one, is part of the answer. `after` it, [AFTER or 0]: what the
    target would say, which verifying may ask for.
    """

    kind: str
    start: int
    tokens: Tokens
    after: Tokens


@dataclass(frozen=True, slots=True)
class Talk:
    """A prompt and what was said so far."""

    prompt: Prompt
    messages: list[dict[str, str]]


def prompts_of_kinds(each: int | None) -> list[Prompt]:
    """The first `each` prompts of every kind, all of None."""
    paths = (prompt_folder() / f"{kind}.jsonl" for kind in KINDS)
    return [prompt for path in paths for prompt in load_prompts(path)[:each]]


class Writer:
    """A bundle's target in int8, which writes many answers at once; a context manager."""

    def __init__(self, manifest: Manifest, *, threads: int) -> None:
        self._session: Session = open_session(
            manifest.folder,
            precision=PRECISION,
            draft="none",
            context_length=context_of(manifest),
            threads=threads,
        )
        self._target = open_target(manifest, threads=threads)
        self._encode = Text.load(manifest.folder).encode_chat

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def write(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, max_new_tokens: int
    ) -> list[Written]:
        """The answer to each turn of each prompt, every turn after the answer to the one before."""
        talks = [Talk(prompt, []) for prompt in prompts]
        written: list[Written] = []
        for turn in range(max((len(prompt.turns) for prompt in prompts), default=0)):
            talks = [talk for talk in talks if turn < len(talk.prompt.turns)]
            for talk in talks:
                talk.messages.append({"role": "user", "content": talk.prompt.turns[turn]})
            answers = self._session.generate_many(
                [talk.messages for talk in talks], sampling, max_new_tokens=max_new_tokens
            )
            for talk, answer in zip(talks, answers, strict=True):
                asked = self._encode(talk.messages)
                tokens = np.array([*asked, *answer.tokens], np.int64)
                length = len(tokens)
                if answer.finish_reason == "eos":
                    length, tokens = length + 1, self._continued(tokens, sampling)
                written.append(
                    Written(talk.prompt.category, len(asked), tokens[:length], tokens[length:])
                )
                talk.messages.append({"role": "assistant", "content": answer.text})
        return written

    def _continued(self, tokens: Tokens, sampling: Sampling) -> Tokens:
        """The text with its end token, of which there may be several, and AFTER more."""
        for _ in range(1 + AFTER):
            tokens = np.append(tokens, choose(self._target.extend(tokens)[0], tokens, sampling))
        return tokens


def by_kind(
    items: Sequence[tuple[str, Item]], pool: Callable[[list[Item]], Figures]
) -> Mapping[str, Figures]:
    """What `pool` makes of the items of each kind, in the order of KINDS, and then of all."""
    kinds = [kind for kind in KINDS if any(kind == of for of, _ in items)]
    found = {kind: pool([item for of, item in items if of == kind]) for kind in kinds}
    return {**found, OVERALL: pool([item for _, item in items])}
