"""Turn text and messages into tokens and tokens into bytes, by a bundle's own tokenizer.

What a user writes is text, always: `<|im_end|>` in a message ends no turn.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from runtime.checks import many
from runtime.control_tokens import ControlTokens
from runtime.errors import TextError
from runtime.template import ChatTemplate

ROLES = ("system", "user", "assistant", "tool")
_MOST_TOKENS = 1 << 22  # sixteen times as many as the largest vocabulary of known models
_SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


class Text:
    """A bundle's tokenizer and chat template, made by `Text.load`.

    `vocabulary` is the number of token ids; `leading_spaces` is how many spaces at the very start
    of a decoded text belong to the tokenizer and not to the text.
    """

    def __init__(self, tokenizer: Tokenizer, config: Mapping[str, Any], *, origin: str) -> None:
        self._origin = origin
        self._tokenizer = tokenizer
        # Control tokens in plain text are then cut up like any other characters.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._added = tokenizer.get_added_tokens_decoder()
        self._control = ControlTokens(self._added)
        self._tokens: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = 1 + max(self._tokens.values(), default=-1)
        if self.vocabulary > _MOST_TOKENS:
            raise TextError(f"The tokenizer of {origin} has a token of id {self.vocabulary - 1:,}.")
        steps = _decoder_steps(tokenizer, origin)
        kinds = {step["type"] for step in steps}
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else None
        self._byte_tokens = "ByteFallback" in kinds
        strips = [s["start"] for s in steps if s["type"] == "Strip" and s["content"] == " "]
        self.leading_spaces: int = sum(strips)
        self._names = {
            key: value["content"] if isinstance(value, dict) else value
            for key, value in config.items()
            if key.endswith("_token") and isinstance(value, str | dict)
        }
        source = config.get("chat_template")
        if not isinstance(source, str | None):
            raise TextError(f"The chat_template of {origin} is {source!r:.80}, which is no text.")
        self._template = ChatTemplate(source, origin=origin) if source else None

    @classmethod
    def load(cls, folder: Path) -> "Text":
        """Read tokenizer.json and tokenizer_config.json from a bundle's folder.

        Raises TextError when one is missing, damaged, or of a kind that is not known.
        """
        path = folder / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
            path = folder / "tokenizer_config.json"
            config = json.loads(path.read_text(encoding="utf-8"))
            return cls(tokenizer, config, origin=str(folder))
        except TextError:
            raise
        except BaseException as error:  # The library raises nothing narrower.
            if not _is_the_librarys(error):
                raise
            raise TextError(
                f"{path} cannot be used: {error}. Build the bundle again with mirror-export."
            ) from error

    def encode(self, text: str) -> list[int]:
        """Encode plain text as a whole prompt, with a bos token where the model wants one.

        Control tokens in the text are text. Unpaired surrogates become U+FFFD. Raises TextError
        when the text cannot be encoded.
        """
        return self._encode(_clean(text), bos=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Encode messages by the chat template, up to the start of the assistant's answer.

        A message has a `role`, one of ROLES, and a `content`; all its other values are text too.
        Raises UsageError for what is no list, TextError for a malformed message, or when the bundle
        has no template or it fails.
        """
        if self._template is None:
            raise TextError(
                f"{self._origin} has no chat template: give plain text instead of messages."
            )
        listed = enumerate(many("The prompt, where it is no text,", messages), start=1)
        cleaned = [_checked(message, place) for place, message in listed]
        if not cleaned:
            raise TextError("A chat needs at least one message.")
        stand_ins = self._control.stand_ins(
            [self._template.source, *(text for message in cleaned for text in message.values())]
        )
        hidden = [
            {
                key: text if key == "role" else self._control.hide(text, stand_ins)
                for key, text in message.items()
            }
            for message in cleaned
        ]
        rendered = _clean(self._template.render(hidden, self._names))
        tokens: list[int] = []
        for piece in self._control.split(rendered, stand_ins):
            tokens += [piece] if isinstance(piece, int) else self._encode(piece, bos=False)
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode tokens to text; bytes that are not UTF-8 become U+FFFD, control tokens nothing."""
        text = b"".join(map(self.token_bytes, tokens)).decode("utf-8", errors="replace")
        spaces = len(text) - len(text.lstrip(" "))
        return text[min(spaces, self.leading_spaces) :]

    def token_bytes(self, token: int) -> bytes:
        """Give the bytes that a token writes: none for a control token or an id out of range."""
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else str(added.content).encode()
        piece = self._tokenizer.id_to_token(token) if 0 <= token < self.vocabulary else None
        if piece is None:
            return b""
        if self._alphabet is not None:
            if all(character in self._alphabet for character in piece):
                return bytes(self._alphabet[character] for character in piece)
            return str(piece).encode()
        byte = _BYTE_TOKEN.match(piece) if self._byte_tokens else None
        return bytes.fromhex(byte[1]) if byte else str(piece).replace(_SPACE_MARK, " ").encode()

    def vocabulary_tokens(self) -> list[str]:
        """List the tokens as the tokenizer writes them, by id; an id without one has ""."""
        names = [""] * self.vocabulary
        for token, number in self._tokens.items():
            names[number] = token
        return names

    def _encode(self, text: str, *, bos: bool) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=bos).ids)
        except BaseException as error:  # The library raises nothing narrower.
            if not _is_the_librarys(error):
                raise
            raise TextError(f"The text cannot be encoded with {self._origin}: {error}.") from error


def _checked(message: object, place: int) -> dict[str, str]:
    """Copy a message with clean text; raise TextError for one that is none."""
    if not isinstance(message, Mapping):
        raise TextError(
            f"Message {place} is {message!r:.80}; a message is a mapping with role and content."
        )
    for key in ("role", "content"):
        if key not in message:
            raise TextError(f"Message {place} has no {key}; it needs a role and a content.")
    for key, value in message.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TextError(f"Message {place}: {key!r} is {value!r:.80}, which is no text.")
    if message["role"] not in ROLES:
        raise TextError(
            f"Message {place} has the role {message['role']!r:.80}; the roles are "
            f"{', '.join(ROLES)}."
        )
    return {key: _clean(value) for key, value in message.items()}


def _is_the_librarys(error: BaseException) -> bool:
    """Whether an error is one that tokenizers raises; a panic of Rust's is no Exception."""
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


def _clean(text: str) -> str:
    """Join surrogates that form a character and put U+FFFD for those that do not."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _byte_alphabet() -> dict[str, int]:
    """Map the characters by which byte-level vocabularies write bytes (GPT-2's) to the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


def _decoder_steps(tokenizer: Tokenizer, origin: str) -> list[dict[str, Any]]:
    """List the steps of a tokenizer's decoder; raise TextError for one that is not known."""
    # Its state for pickling is its JSON, without writing out the whole vocabulary beside it.
    state = None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())
    decoder = state or {"type": "none"}
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    mark = {"pattern": {"String": _SPACE_MARK}, "content": " "}
    replaced = [step for step in steps if step["type"] == "Replace"]
    sentence_piece = (
        kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}
        and len(replaced) == 1
        and mark.items() <= replaced[0].items()
    )
    if kinds != {"ByteLevel"} and not sentence_piece:
        raise TextError(
            f"The tokenizer of {origin} decodes by {', '.join(sorted(kinds))}; known are "
            "byte-level and SentencePiece-style tokenizers with byte fallback."
        )
    return steps
