"""Whether what was asked for, and the text there is, go with the target: told before the work."""

from collections.abc import Sequence
from pathlib import Path

from export.change import BLOCK
from export.distill.corpus import Record
from export.distill.settings import Settings
from runtime.errors import UsageError
from runtime.manifest import Geometry


def check_settings(settings: Settings, geometry: Geometry, origins: Sequence[int]) -> None:
    """Raise UsageError for settings that a target of `geometry` cannot have.

    origins: the target's layers that it may begin as, all or those of an earlier draft.
    """
    layers = geometry.layers
    for flag, asked, most in (
        ("--depth", 0 if settings.layers else settings.depth or 0, len(origins)),
        ("--layers", max(settings.layers, default=0), layers - 1),
        ("--lenses", max(settings.lenses, default=0), layers - 1),
        ("--head-width", settings.head_width, geometry.vocabulary),
    ):
        if asked > most:
            raise UsageError(
                f"{flag} asks for {asked}, where {most} is the most: the target has {layers} "
                f"layers and {geometry.vocabulary} tokens."
            )
    if missing := sorted(set(settings.layers) - set(origins)):
        raise UsageError(
            f"--layers asks for {missing[0]}, and the draft to begin as has {list(origins)}."
        )
    if 0 in settings.lenses:
        raise UsageError("--lenses counts the layers that the target has run: 1 is the first.")
    widths = (geometry.hidden, geometry.heads * geometry.head_size, geometry.intermediate)
    if odd := [width for width in widths if width % BLOCK]:
        raise UsageError(
            f"No draft of this target can be kept: its matrices have {odd[0]} columns, and {BLOCK} "
            "go together."
        )


def check_records(records: Sequence[Record], geometry: Geometry, folder: Path) -> None:
    """Raise UsageError where `records`, from `folder`, are none or not of such a target."""
    if not records:
        raise UsageError(f"There are no answers in {folder}, so there is nothing to train on.")
    if min(len(record.tokens) for record in records) < 2:
        raise UsageError(f"{folder} holds a conversation of one token: nothing follows from it.")
    largest = max(int(record.tokens.max()) for record in records)
    longest = max(len(record.tokens) for record in records)
    if largest >= geometry.vocabulary or longest > geometry.context:
        raise UsageError(
            f"The answers in {folder} are of another target: there is the token {largest}, and a "
            f"conversation of {longest} tokens, where this one has {geometry.vocabulary} tokens "
            f"and a context of {geometry.context}."
        )
