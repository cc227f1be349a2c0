"""Where a model is to run: a provider, one of its devices, and what it is told."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runtime.providers.provider import Kind


@dataclass(frozen=True, slots=True)
class Place:
    """A provider's key in PROVIDERS, the kind of its device, and which of these, from 0.

    options: what the user said, by key. library: the file it was named with. report: is told which
    operators run elsewhere; None: that is an error. compiled: the folder where what the provider
    compiles is kept; None: it is not. say: is told what takes long. wide: calls may have more rows
    than the provider's safe_rows.
    """

    provider: str
    kind: Kind = "CPU"
    number: int = 0
    options: tuple[tuple[str, str], ...] = ()
    library: Path | None = None
    report: Callable[[str], None] | None = field(default=None, compare=False)
    compiled: Path | None = field(default=None, compare=False)
    say: Callable[[str], None] | None = field(default=None, compare=False)
    wide: bool = False

    def __str__(self) -> str:
        """For a sentence."""
        number = f":{self.number}" if self.number else ""
        device = f"{self.kind}{number}"
        return device if device == self.provider else f"{self.provider} on {device}"

    @property
    def key(self) -> str:
        """A name that is equal where all is that decides what is computed."""
        options = [f"{key}={value}" for key, value in self.options]
        return "\n".join([str(self), *options, *(["wide"] if self.wide else [])])

    def keeping(self, folder: Path, say: Callable[[str], None]) -> "Place":
        """The same, with a folder for what is compiled for it."""
        return replace(self, compiled=folder, say=say)

    def as_data(self) -> dict[str, Any]:
        """For another process, as JSON has it; `from_data` reads it."""
        library, compiled = (
            None if path is None else str(path.absolute()) for path in (self.library, self.compiled)
        )
        return {
            "provider": self.provider,
            "kind": self.kind,
            "number": self.number,
            "options": list(self.options),
            "library": library,
            "fallback": self.report is not None,
            "compiled": compiled,
            "wide": self.wide,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Place":
        """The place that `as_data` described; its reports are printed."""
        library, compiled = (
            None if data[key] is None else Path(data[key]) for key in ("library", "compiled")
        )
        return cls(
            data["provider"],
            data["kind"],
            data["number"],
            tuple((key, value) for key, value in data["options"]),
            library,
            print if data["fallback"] else None,
            compiled,
            wide=data["wide"],
        )

    def same_device(self, other: "Place") -> bool:
        """Whether both mean one device of one provider."""
        own, its = ((each.provider, each.kind, each.number) for each in (self, other))
        return own == its
