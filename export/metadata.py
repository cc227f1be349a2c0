"""A GGUF file's key-value pairs, read with the type that each key must have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runtime.errors import BuildError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metadata:
    """The pairs of one file as Python values; every getter raises BuildError naming the key.

    A getter without a default needs the key; with one it returns the default where it is absent.
    """

    path: Path
    pairs: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """The name of the model's kind, which starts the keys of its settings."""
        return self.text("general.architecture")

    def setting(self, name: str) -> str:
        """The key of one of the model's settings, as in "llama.context_length"."""
        return f"{self.architecture}.{name}"

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if isinstance(value, str):
            return value
        raise self._wrong(key, value, "a string")

    def integer(self, key: str, default: int | None = None) -> int:
        """One whole number; a list, as files with layers of unequal size have, is refused."""
        value = self._get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._wrong(key, value, "one whole number")

    def number(self, key: str, default: float | None = None) -> float:
        """One number."""
        value = self._get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self._wrong(key, value, "one number")

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if isinstance(value, bool):
            return value
        raise self._wrong(key, value, "true or false")

    def texts(self, key: str, default: list[str] | None = None) -> list[str]:
        """A list of strings."""
        return self._list(key, default, str)

    def integers(self, key: str, default: list[int] | None = None) -> list[int]:
        """A list of whole numbers."""
        return self._list(key, default, int)

    def numbers(self, key: str, default: list[float] | None = None) -> list[float]:
        """A list of numbers."""
        return self._list(key, default, float)

    def _list(self, key: str, default: list[T] | None, kind: type[T]) -> list[T]:
        value = self._get(key, default)
        if isinstance(value, list) and all(isinstance(item, kind) for item in value):
            return value
        raise self._wrong(key, value, f"a list of {kind.__name__}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.pairs.get(key, default)
        if value is None:
            raise BuildError(f"{self.path} has no {key}; it cannot be built.")
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> BuildError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return BuildError(f"{self.path}: {key} is {shown} where {wanted} is needed.")
