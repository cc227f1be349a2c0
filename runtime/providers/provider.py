"""What is known of one execution provider."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime.manifest import Flavour, Precision
from runtime.providers.advice import Advice
from runtime.providers.options import Option

Kind = Literal["CPU", "GPU", "NPU"]
KINDS: tuple[Kind, ...] = ("CPU", "GPU", "NPU")
SYSTEMS: Mapping[str, str] = {"linux": "Linux", "win32": "Windows", "darwin": "macOS"}


@dataclass(frozen=True, slots=True)
class Takes:
    """The graphs that a provider takes on one kind of device, best first.

    apart: those of these flavours and precisions that it does not run, or not rightly.
    """

    flavours: tuple[Flavour, ...]
    precisions: tuple[Precision, ...]
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """How is kept what a provider compiles, on which kinds of device.

    folder: the options that have it keep files of its own in a folder; None: onnxruntime has it
    write a graph to load in place of the first, by ep.context_enable. chip: the option that names
    what it compiles for, "0" being the one that is there. unheeded: options that change nothing of
    what is compiled.
    """

    kinds: tuple[Kind, ...] = KINDS
    folder: Callable[[Path], dict[str, str]] | None = None
    chip: str | None = None
    unheeded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Provider:
    """One execution provider: how it is found, what it runs, how it is told.

    ep_name: onnxruntime's. devices: what it takes by kind; the first is meant where nobody names
    one. package, distribution: the Python package that brings its library, and what pip calls it;
    extra: this package's name for both.
    built_in: the distribution of onnxruntime that has it inside. systems: those, as sys.platform
    says them, that either of both is for. windows_ml: Windows may have it in
    its catalogue. stands_for: the kind that its device of type CPU emulates, where it does.
    chooses_itself: it has one device, whichever it is. options: those a user may set; elsewhere:
    keys that it would ignore, and where to say the same. defaults: what it is told for a kind and
    a number of threads, of an emulated device `emulated` too; merge: that with what a user asked.
    safe_rows: the most in one call that its attention computed right wherever it was tried.
    number_key: the option that picks the device where onnxruntime lists none. compiled: it makes
    its own copy of the weights, by its own means. one_at_a_time: sessions on one device must not
    run at once. memory_pattern: onnxruntime may plan memory ahead. traps: what went wrong before.
    advice: what helps where it finds no device or fails.
    """

    ep_name: str
    devices: Mapping[Kind, Takes]
    package: str | None = None
    distribution: str | None = None
    extra: str | None = None
    built_in: str | None = None
    systems: tuple[str, ...] = ("linux", "win32", "darwin")
    windows_ml: bool = False
    stands_for: Kind | None = None
    chooses_itself: bool = False
    options: tuple[Option, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    defaults: Callable[[Kind, int], dict[str, str]] = field(default=lambda _kind, _threads: {})
    emulated: Mapping[str, str] = field(default_factory=dict)
    safe_rows: int | None = None
    merge: Callable[[dict[str, str], dict[str, str]], dict[str, str]] = field(
        default=lambda defaults, asked: defaults | asked
    )
    number_key: str | None = None
    compiled: Compiled | None = None
    one_at_a_time: bool = False
    memory_pattern: bool = True
    traps: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def systems_named(self) -> str:
        """What it is for, in words."""
        return " and ".join(SYSTEMS[each] for each in self.systems)

    @property
    def option_keys(self) -> tuple[str, ...]:
        """What a user may set."""
        return tuple(option.key for option in self.options)
