"""Taking turns on a device whose provider must not be used by two threads at once."""

from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import onnxruntime as ort

from runtime.providers.place import Place
from runtime.providers.provider import Kind
from runtime.providers.table import PROVIDERS

# Of a session and of its bindings: to bind is to copy to the device, which is work like a run.
RUNS = ("run", "run_with_iobinding", "io_binding")
BINDS = ("bind_input", "bind_output", "bind_ortvalue_input", "bind_ortvalue_output")
Turn = AbstractContextManager[Any]

# Two threads may load at once: setdefault gives both the same lock, which a cache would not.
_LOCKS: dict[tuple[str, Kind, int], Turn] = {}


def turn_on(place: Place) -> Turn:
    """What is held while a place works: its device's lock, nothing where threads may work at once.

    One lock for all sessions of the process, as the hazard is.
    """
    if not PROVIDERS[place.provider].one_at_a_time:
        return nullcontext()
    return _LOCKS.setdefault((place.provider, place.kind, place.number), Lock())


def in_turn(session: ort.InferenceSession, place: Place) -> ort.InferenceSession:
    """The session, its work and that of its bindings waiting for others' where it must."""
    if not PROVIDERS[place.provider].one_at_a_time:
        return session
    return _InTurn(session, turn_on(place))


class _InTurn:
    """A session or a binding; what is no work goes straight to it."""

    def __init__(self, owner: Any, turn: Turn) -> None:
        self._owner = owner
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._owner, name)
        if name not in RUNS + BINDS:
            return found

        def work(*arguments: Any, **named: Any) -> Any:
            with self._turn:
                given = found(*arguments, **named)
            return _InTurn(given, self._turn) if name == "io_binding" else given

        return work
