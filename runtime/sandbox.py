"""The world of a chat template: jinja2's sandbox, where every step and every size is paid for.

A template is a program from a stranger. Python can stop it between two steps but not inside one,
so what is left of jinja2 are the operators, filters and methods whose cost is known beforehand.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from runtime import growth
from runtime.allowance import MOST_BITS, STEP, Allowance, check_number

_MACRO = 400  # units for a call of a macro
_TIME = 2000  # units for writing a time
_ITS_OWN = ("_loop_vars", "_block_vars")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Filters that look at a value's elements but not into them, and those that read all of it.
_SHALLOW = _names(
    "attr batch count d default first items last length list map reject rejectattr reverse select "
    "selectattr"
)
_DEEP = _names(
    "abs capitalize dictsort float format groupby indent int join lower max min replace round sort "
    "title trim truncate unique upper"
)
_COMPARING = _names("in == eq equalto != ne > gt greaterthan ge >= < lt lessthan <= le")
_METHODS = {
    str: _names(
        "capitalize casefold center count endswith expandtabs find index isalnum isalpha isascii "
        "isdecimal isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip "
        "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip "
        "split splitlines startswith strip swapcase title upper zfill"
    ),
    dict: _names("copy get items keys values"),
    list: _names("copy count index"),
    tuple: _names("count index"),
    float: _names("is_integer"),
}


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template; refill its `allowance` before each rendering.

    It compiles trees that went through `runtime.metering`, and no others.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
        )
        self.allowance = Allowance()
        del self.globals["lipsum"]
        known = {name: self.filters[name] for name in _SHALLOW | _DEEP}
        known |= dict.fromkeys(("e", "escape", "forceescape", "safe", "string"), str)
        known |= {"tojson": _to_json, "sum": _total}
        self.filters = {name: self._paid(name, act) for name, act in known.items()}
        meters = {
            "_counted": self.allowance.counted,
            "_held": self._held,
            "_read": self._read,
            "_compared": self._compared,
            "_concatenated": self._concatenated,
        }
        # With a context, so that no compiler computes them once and for all.
        self.filters |= {
            name: pass_context(functools.partial(_without_context, act))
            for name, act in meters.items()
        }
        tests: Any = self.tests
        self.tests |= {name: self._paid_test(tests[name]) for name in _COMPARING}
        self.globals |= {"raise_exception": _raise, "strftime_now": self._now}

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call as the sandbox does, paid; of Python's methods only those that are known."""
        spend, owner = self.allowance.spend, getattr(called, "__self__", None)
        spend(_MACRO if isinstance(called, Macro) else STEP)
        # Besides those of the template, jinja2 gives names of its own to whatever is called.
        named = {name: value for name, value in kwargs.items() if name not in _ITS_OWN}
        if isinstance(called, LoopContext):
            args = tuple(map(self.allowance.counted, args))
        elif not isinstance(called, Macro) and called is not Namespace:
            args = tuple(map(self._listed, args))
            self.allowance.read([*args, *named.values()])
        if not isinstance(called, BuiltinMethodType):
            return super().call(context, called, *args, **kwargs)
        name = called.__name__
        if name not in _METHODS.get(type(owner), ()):
            raise SecurityError(f"it may not call {name!r} of {type(owner).__name__}")
        self.allowance.hold(owner)
        if isinstance(owner, str):
            spend(growth.of_method(name, owner, args, named))
        elif name in ("count", "index"):
            self.allowance.read(owner)
        return self._held(super().call(context, called, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute as the sandbox does, paid before."""
        spend = self.allowance.spend
        spend(STEP)
        check_number(left)
        check_number(right)
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MOST_BITS:
                raise SecurityError(f"a number has more than {MOST_BITS:,} bits")
        elif operator == "%" and isinstance(left, str):
            spend(len(left) + growth.of_percent(left, self.allowance.read(right)))
        elif operator == "*":
            spend(STEP * max(_repeated(left, right), _repeated(right, left)))
        elif operator == "+" and not isinstance(left, int | float):
            self.allowance.hold(left)
            self.allowance.hold(right)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up as the sandbox does; a list of keys is no key, it may take long to hash."""
        if isinstance(argument, tuple):
            raise SecurityError("a list is no key")
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Give `str.format` as the sandbox does, paid before."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = str(value.__self__)

        def paid(*args: Any, **kwargs: Any) -> str:
            each = self.allowance.read([*args, *kwargs.values()])
            self.allowance.spend(len(text) + growth.of_format(text, each))
            return str(wrapped(*args, **kwargs))

        return paid

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Fail at once where a template reaches for Python's own attributes."""
        raise SecurityError(f"it may not read {attribute!r} of {type(obj).__name__}")

    def _paid(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays for what it reads and for what it makes."""
        start = 1 if hasattr(act, "jinja_pass_arg") else 0

        @functools.wraps(act)
        def paid(*args: Any, **kwargs: Any) -> Any:
            value, given = args[start], args[start + 1 :]
            self.allowance.spend(STEP)
            if name not in _SHALLOW:
                value = self._listed(value)
                each = self.allowance.read([value, *given, *kwargs.values()])
                if name == "format":
                    self.allowance.spend(growth.of_percent(str(value), each))
            elif name == "list":
                self.allowance.hold(value)
            self.allowance.spend(growth.of_filter(name, value, given, kwargs))
            result = act(*args[:start], value, *given, **kwargs)
            return self._held(result) if name not in _SHALLOW or _lazy(result) else result

        return paid

    def _paid_test(self, act: Callable[..., Any]) -> Callable[..., bool]:
        def paid(*values: Any) -> bool:
            return bool(act(*map(self._compared, values)))

        return paid

    def _held(self, value: Any) -> Any:
        """A new value, paid for; what comes one by one is paid for as it comes."""
        if _lazy(value):
            return self.allowance.counted(value)
        self.allowance.hold(value)
        return value

    def _read(self, value: Any) -> Any:
        self.allowance.read(value)
        return value

    def _compared(self, value: Any) -> Any:
        # Characters are compared by the word, and mostly not to the end.
        self.allowance.read(value, share=16)
        return value

    def _concatenated(self, values: Iterable[Any]) -> str:
        return "".join(str(self._read(value)) for value in values)

    def _now(self, pattern: str) -> str:
        if len(pattern) > 100:  # each of its fields may be padded
            raise SecurityError("the pattern of a time is long")
        self.allowance.spend(_TIME)
        return datetime.now().astimezone().strftime(pattern)

    def _listed(self, value: Any) -> Any:
        return list(self.allowance.counted(value)) if _lazy(value) else value


class _Generation(Extension):
    """The tag that marks the assistant's words for training; here its body is all there is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _without_context(act: Callable[[Any], Any], _context: Context, value: Any) -> Any:
    return act(value)


def _lazy(value: object) -> bool:
    return isinstance(value, Iterator)


def _repeated(items: Any, times: Any) -> int:
    """Count the items of a sequence repeated; 0 for other factors."""
    return len(items) * times if isinstance(times, int) and hasattr(items, "__len__") else 0


def _total(values: Iterable[Any], start: Any = 0) -> Any:
    """The filter `sum` for numbers: lists, added one after another, are copied each time."""
    numbers = [start, *values]
    if not all(isinstance(number, int | float) for number in numbers):
        raise SecurityError("it adds up what are no numbers")
    return sum(numbers)


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
