"""Run a model's chat template, which is a program from a stranger, in a world of small means."""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TypeVar

from jinja2 import Template

from runtime.errors import TextError
from runtime.metering import metered
from runtime.sandbox import Sandbox

_Made = TypeVar("_Made")
_MOST_SOURCE = 100_000  # characters; the largest of known models have 20,000
_MOST_REASON = 300  # characters of what a template says when it fails
# What a rendering may cost (see runtime.allowance). In seconds, at the very worst: two.
_FOR_ANY = 10_000_000
_FOR_A_MESSAGE = 100_000
_FOR_A_CHARACTER = 100


class ChatTemplate:
    """A compiled chat template; `origin` names it in errors.

    The dialect is the one of Hugging Face's tokenizers: trimmed blocks, `break` and `continue`,
    `raise_exception`, `strftime_now`, `tojson` without escapes, `generation` blocks. Raises
    TextError when the source cannot be compiled.
    """

    def __init__(self, source: str, *, origin: str) -> None:
        self._origin = origin
        self._lock = Lock()
        self._sandbox = Sandbox()
        self.source = source
        self._template: Template = self._guarded(self._compile)

    def render(self, messages: Sequence[Mapping[str, str]], tokens: Mapping[str, str]) -> str:
        """Render messages up to the start of the assistant's answer.

        `tokens` gives `bos_token` and its like. Raises TextError when the template fails, does
        something forbidden, does not come to an end, or makes far more text than it is given.
        """
        variables = {
            **tokens,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
        }
        characters = sum(len(text) for message in messages for text in message.values())
        with self._lock:
            self._sandbox.allowance.refill(
                _FOR_ANY + _FOR_A_MESSAGE * len(messages) + _FOR_A_CHARACTER * characters
            )
            return self._guarded(lambda: self._template.render(variables))

    def _compile(self) -> Template:
        if len(self.source) > _MOST_SOURCE:
            raise TextError(f"it has {len(self.source):,} characters")
        # Compilers compute constants.
        self._sandbox.allowance.refill(_FOR_ANY)
        return self._sandbox.from_string(metered(self._sandbox.parse(self.source)))

    def _guarded(self, act: Callable[[], _Made]) -> _Made:
        try:
            return act()
        except Exception as error:  # A template may raise anything at all.
            reason = " ".join((str(error) or type(error).__name__)[:_MOST_REASON].split())
            raise TextError(
                f"The chat template of {self._origin} failed: {reason.rstrip('.')}. "
                "Check the messages and their order, or give plain text instead of messages."
            ) from error
