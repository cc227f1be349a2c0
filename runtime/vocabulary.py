"""Whether two models mean the same text by the same token ids."""

import re

from runtime.errors import UsageError
from runtime.text import Text


def check_same(target: Text, draft: Text) -> None:
    """Refuse a draft of another vocabulary; padding at the end may differ. Raises UsageError."""
    theirs, ours = (_without_padding(text.vocabulary_tokens()) for text in (draft, target))
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            raise UsageError(
                f"The draft has another vocabulary: {len(theirs)} tokens where the target has "
                f"{len(ours)}, and token {place} is {other!r} where the target has {one!r}."
            )
    if len(ours) != len(theirs):
        raise UsageError(
            f"The draft has another vocabulary: {len(theirs)} tokens where the target has "
            f"{len(ours)}; the first that only one has is token {min(len(ours), len(theirs))}."
        )


def _without_padding(tokens: list[str]) -> list[str]:
    """The tokens up to the last that stands for anything: converters fill up with [PAD123]."""
    end = len(tokens)
    while end and (not tokens[end - 1] or re.fullmatch(r"\[PAD\d+\]", tokens[end - 1])):
        end -= 1
    return tokens[:end]
