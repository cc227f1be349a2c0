"""Run a model's chat template, which is a program from a stranger, in jinja2's sandbox."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import Any, NoReturn, TypeVar

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runtime.errors import TextError

_Made = TypeVar("_Made")
_MOST_STEPS = 200_000  # turns of loops and calls in one rendering
_MOST_REPEATED = 1_000_000  # items of a repeated text or list, and bits of a number


class ChatTemplate:
    """A compiled chat template; `origin` names it in errors.

    The dialect is the one of Hugging Face's tokenizers: trimmed blocks, `break` and `continue`,
    `raise_exception`, `strftime_now`, `tojson` without escapes, `generation` blocks. Raises
    TextError when the source cannot be compiled.
    """

    def __init__(self, source: str, *, origin: str) -> None:
        self._origin = origin
        self._lock = Lock()
        self._sandbox = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
        )
        self.source = source
        self._template: Template = self._guarded(self._compile)

    def render(self, messages: Sequence[Mapping[str, str]], tokens: Mapping[str, str]) -> str:
        """Render messages up to the start of the assistant's answer.

        `tokens` gives `bos_token` and its like. Raises TextError when the template fails, does
        something forbidden, or does not come to an end.
        """
        variables = {
            **tokens,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
        }
        with self._lock:
            self._sandbox.steps = 0
            return self._guarded(lambda: self._template.render(variables))

    def _compile(self) -> Template:
        tree = self._sandbox.parse(self.source)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None)
        return self._sandbox.from_string(tree)

    def _guarded(self, act: Callable[[], _Made]) -> _Made:
        try:
            return act()
        except Exception as error:  # A template may raise anything at all.
            reason = str(error) or type(error).__name__
            raise TextError(
                f"The chat template of {self._origin} failed: {reason.rstrip('.')}. "
                "Check the messages and their order, or give plain text instead of messages."
            ) from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with an end to loops and to the sizes that operators make."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.steps = 0
        # Made for filling pages: they run as long as a template likes without taking a step.
        del self.globals["lipsum"], self.filters["slice"]
        self.filters |= {"counted": self._counted, "tojson": _to_json}
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}

    def spend(self) -> None:
        """Count one step, and raise SecurityError when there were too many."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise SecurityError(f"it takes more than {_MOST_STEPS:,} steps")

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call as the sandbox does, counted."""
        self.spend()
        return super().call(context, called, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply or raise to a power, unless the result would be huge."""
        if operator == "**":
            whole = isinstance(left, int) and isinstance(right, int)
            size = left.bit_length() * right if whole else 0
        else:
            size = max(_repeated(left, right), _repeated(right, left))
        if size > _MOST_REPEATED:
            raise SecurityError(f"the result of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Fail at once where a template reaches for Python's own attributes."""
        raise SecurityError(f"it may not read {attribute!r} of {type(obj).__name__}")

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend()
            yield item


class _Generation(Extension):
    """The tag that marks the assistant's words for training; here its body is all there is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _repeated(items: Any, times: Any) -> int:
    """Count the items of a sequence repeated; 0 for other factors."""
    return len(items) * times if isinstance(times, int) and hasattr(items, "__len__") else 0


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the signature that templates know
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
