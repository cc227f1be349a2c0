"""Where a model is to run: a provider, one of its devices, and what it is told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runtime.providers.provider import Kind


@dataclass(frozen=True, slots=True)
class Place:
    """A provider's key in PROVIDERS, the kind of its device, and which of these, from 0.

    options: what the user said, by key. library: the file it was named with. report: is told which
    operators run elsewhere; None: that is an error.
    """

    provider: str
    kind: Kind = "CPU"
    number: int = 0
    options: tuple[tuple[str, str], ...] = ()
    library: Path | None = None
    report: Callable[[str], None] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """For a sentence."""
        number = f":{self.number}" if self.number else ""
        device = f"{self.kind}{number}"
        return device if device == self.provider else f"{self.provider} on {device}"

    @property
    def key(self) -> str:
        """A name that is equal where all is that decides what is computed."""
        return "\n".join([str(self), *(f"{key}={value}" for key, value in self.options)])

    def same_device(self, other: "Place") -> bool:
        """Whether both mean one device of one provider."""
        own, its = ((each.provider, each.kind, each.number) for each in (self, other))
        return own == its
