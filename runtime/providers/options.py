"""A provider's options: their types and defaults, and the refusal of what is none of them.

Providers themselves take an unknown key in silence, and some a wrong value.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runtime.errors import UsageError

SWITCH = ("0", "1")
WORDS = {"true": "1", "on": "1", "yes": "1", "false": "0", "off": "0", "no": "0"}


@dataclass(frozen=True, slots=True)
class Option:
    """One key of a provider, and what may stand behind it.

    values: all there are, where they can be listed; else any text, or whole numbers where `least`
    is given, or with `tables` a JSON object of objects or a file of one. names: of such numbers.
    default: the provider's own, "" where it is none. meaning: a few words.
    """

    key: str
    meaning: str
    values: tuple[str, ...] = ()
    default: str = ""
    least: int | None = None
    tables: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    def read(self, value: str) -> str | None:
        """The value as the provider spells it; None where it is not one of the option's."""
        if self.least is not None:
            number = self.names.get(value.strip().upper(), value.strip())
            is_whole = re.fullmatch(r"-?[0-9]{1,18}", number) is not None
            return str(int(number)) if is_whole and int(number) >= self.least else None
        if self.tables:
            return _tables(value)
        if not self.values:
            return value
        spelled = {known.lower(): known for known in self.values}
        lower = value.strip().lower()
        if self.values == SWITCH:
            lower = WORDS.get(lower, lower)
        return spelled.get(lower)

    @property
    def takes(self) -> str:
        """Which values there are, in words."""
        if self.least is not None:
            named = f", or {', '.join(self.names)}" if self.names else ""
            return f"a whole number, {self.least} or more{named}"
        if self.tables:
            return (
                'a JSON object of objects, such as {"CPU": {"NUM_STREAMS": "1"}}, or a file of one'
            )
        if not self.values:
            return "text"
        return f"{', '.join(self.values[:-1])} or {self.values[-1]}"


def read_options(
    role: str, provider: str, known: Iterable[Option], asked: Mapping[str, str]
) -> dict[str, str]:
    """What was asked for, each value as the provider spells it.

    Raises UsageError for a key that is not known, with the nearest one, and for a wrong value.
    """
    table = {option.key: option for option in known}
    found = {}
    for key, value in asked.items():
        option = table.get(key)
        if option is None:
            raise UsageError(_unknown(role, provider, key, sorted(table)))
        read = option.read(value)
        if read is None:
            raise UsageError(
                f"The {role}'s option {key} of {provider} is {value!r}; it takes {option.takes}."
            )
        found[key] = read
    return found


def _tables(value: str) -> str | None:
    """The JSON of objects in an object, written here or in a file; None for anything else."""
    try:
        text = value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    is_table = isinstance(found, dict) and all(isinstance(each, dict) for each in found.values())
    return json.dumps(found) if is_table else None


def _unknown(role: str, provider: str, key: str, known: list[str]) -> str:
    start = f"The {role}'s provider {provider} has no option {key!r}"
    if not known:
        return f"{start}, nor any other: leave it out."
    # Some keys begin alike, with words that nobody types.
    last = {each.lower().rpartition(".")[2]: each for each in known}
    near = difflib.get_close_matches(key.lower().rpartition(".")[2], last, n=1, cutoff=0.5)
    if not near:
        return f"{start}; it has {', '.join(known)}."
    return f"{start}; the nearest is {last[near[0]]}. All are {', '.join(known)}."
