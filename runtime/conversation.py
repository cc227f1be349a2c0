"""A conversation: its messages, the settings it goes on with, and the file it is saved in."""

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.errors import MirrorError
from runtime.sampling import Sampling

FORMAT = "mirror-chat"
FORMAT_VERSION = 1


class SavedChatError(MirrorError):
    """A saved chat that cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Generation:
    """How answers are generated; whatever the text depends on besides messages and model."""

    sampling: Sampling
    max_new_tokens: int
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class Conversation:
    """The messages so far: perhaps a system message, then user and assistant in turn.

    The last question may be without an answer (stopped early, or failed): asking again replaces it.
    """

    messages: list[dict[str, str]] = field(default_factory=list)

    @property
    def system(self) -> str | None:
        """The system message, None when there is none."""
        first = self.messages[0] if self.messages else {"role": ""}
        return first["content"] if first["role"] == "system" else None

    def set_system(self, text: str) -> None:
        """Put `text` in the place of the system message."""
        start = 0 if self.system is None else 1
        self.messages[:start] = [{"role": "system", "content": text}]

    def ask(self, text: str) -> None:
        """Add a question, in the place of one that has no answer."""
        self._drop("user")
        self.messages.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Add the answer to the last question."""
        self.messages.append({"role": "assistant", "content": text})

    def reopen(self) -> bool:
        """Take the last answer back, so that its question can be answered anew; False if none."""
        self._drop("assistant")
        return bool(self.messages) and self.messages[-1]["role"] == "user"

    def reset(self) -> None:
        """Forget everything but the system message."""
        del self.messages[0 if self.system is None else 1 :]

    def _drop(self, role: str) -> None:
        if self.messages and self.messages[-1]["role"] == role:
            self.messages.pop()


def save(
    path: Path,
    messages: Sequence[Mapping[str, str]],
    generation: Generation,
    session: Mapping[str, Any],
) -> None:
    """Write a chat as JSON: messages, generation and, for the record, the session's settings.

    The file appears whole or not at all. Raises SavedChatError when it cannot be written, and
    rather than overwrite a file that is no saved chat.
    """
    if _exists(path):
        try:
            load(path)
        except SavedChatError:
            raise SavedChatError(
                f"{path} exists and is not a saved chat; choose another name."
            ) from None
    data = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "settings": {"generation": dataclasses.asdict(generation), "session": dict(session)},
        "messages": [dict(message) for message in messages],
    }
    text = json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"
    try:
        _write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise SavedChatError(f"{path} cannot be written: {error.strerror or error}.") from error


def _exists(path: Path) -> bool:
    """Whether there is anything of this name; SavedChatError for what can be no name."""
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise SavedChatError(f"{str(path)!r} cannot be used: {error}.") from error


def load(path: Path) -> tuple[list[dict[str, str]], Generation]:
    """Read a saved chat; SavedChatError says what in it is wrong."""
    try:
        if _exists(path) and not path.is_file():
            raise SavedChatError(f"{path} cannot be read: it is no ordinary file.")
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise SavedChatError(f"There is no file {path}.") from None
    except OSError as error:
        raise SavedChatError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise SavedChatError(f"{path} is not a saved chat: it is not JSON ({error}).") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise SavedChatError(f'{path} is not a saved chat: it has no "format": "{FORMAT}".')
    if data.get("version") != FORMAT_VERSION:
        raise SavedChatError(
            f"{path} has version {data.get('version')!r}; this program reads {FORMAT_VERSION}."
        )
    try:
        settings = _of_type(data.get("settings"), dict, "settings")
        generation = _read_generation(_of_type(settings.get("generation"), dict, "generation"))
        return _read_messages(_of_type(data.get("messages"), list, "messages")), generation
    except (ValueError, MirrorError) as error:
        raise SavedChatError(f"{path} is damaged: {error}") from error


def _write_whole(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _read_messages(values: Sequence[Any]) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    expected: tuple[str, ...] = ("system", "user")
    for number, value in enumerate(values, 1):
        where = f"message {number}"
        message = _of_type(value, dict, where)
        if set(message) != {"role", "content"}:
            raise ValueError(f"{where} must have a role and a content and nothing else.")
        if message["role"] not in expected:
            raise ValueError(
                f"{where} has the role {message['role']!r} where {' or '.join(expected)} "
                "must stand."
            )
        expected = ("assistant",) if message["role"] == "user" else ("user",)
        messages.append(
            {"role": message["role"], "content": _text(message["content"], f"{where}'s content")}
        )
    return messages


def _read_generation(value: dict[str, Any]) -> Generation:
    sampling = _of_type(value.get("sampling"), dict, "sampling")
    fields = {item.name: item.type for item in dataclasses.fields(Sampling)}
    if set(sampling) != set(fields):
        raise ValueError(f"sampling must have {', '.join(fields)} and nothing else.")
    for name, number in sampling.items():
        if type(number) is not int and (fields[name] is int or type(number) is not float):
            raise ValueError(f"{name} is {number!r}, which is no number it can take.")
    limit = _of_type(value.get("max_new_tokens"), int, "max_new_tokens")
    if limit < 0:
        raise ValueError(f"max_new_tokens is {limit}; it must be 0 or more.")
    stop = tuple(_text(text, "a stop text") for text in _of_type(value.get("stop"), list, "stop"))
    if "" in stop:
        raise ValueError("a stop text is empty.")
    return Generation(Sampling(**sampling), limit, stop)


def _text(value: Any, what: str) -> str:
    text = str(_of_type(value, str, what))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half a character (a lone surrogate).") from None
    return text


def _of_type(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        names = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
        raise ValueError(f"{what} must be {names[kind]}.")
    return value
