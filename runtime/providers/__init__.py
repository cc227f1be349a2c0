"""Where a graph runs: the only package that names an execution provider."""

from runtime.providers.advice import (
    Surroundings,
    files_of_devices,
    files_of_makers,
    missing_libraries,
)
from runtime.providers.arrays import bind, input_type
from runtime.providers.cores import pinned, usable_cores
from runtime.providers.devices import (
    Device,
    candidates,
    device_of,
    devices,
    find_word,
    key_of,
    resolve,
)
from runtime.providers.identities import identity
from runtime.providers.libraries import known_devices, library_of, register, version
from runtime.providers.loading import (
    DOCTOR,
    FALLBACK,
    REBUILD,
    compile_graph,
    keep,
    load,
    placed,
    strays,
    told_options,
)
from runtime.providers.memory import allocate, has_own_memory
from runtime.providers.options import Option
from runtime.providers.place import Place
from runtime.providers.provider import KINDS, Compiled, Kind, Provider, Takes
from runtime.providers.rows import most_rows, widened
from runtime.providers.smoke import Smoke, smoke_test
from runtime.providers.table import BEST, PROVIDERS, as_place, takes

__all__ = [
    "BEST",
    "DOCTOR",
    "FALLBACK",
    "KINDS",
    "PROVIDERS",
    "REBUILD",
    "Compiled",
    "Device",
    "Kind",
    "Option",
    "Place",
    "Provider",
    "Smoke",
    "Surroundings",
    "Takes",
    "allocate",
    "as_place",
    "bind",
    "candidates",
    "compile_graph",
    "device_of",
    "devices",
    "files_of_devices",
    "files_of_makers",
    "find_word",
    "has_own_memory",
    "identity",
    "input_type",
    "keep",
    "key_of",
    "known_devices",
    "library_of",
    "load",
    "missing_libraries",
    "most_rows",
    "pinned",
    "placed",
    "register",
    "resolve",
    "smoke_test",
    "strays",
    "takes",
    "told_options",
    "usable_cores",
    "version",
    "widened",
]
