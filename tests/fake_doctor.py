"""Tries of the doctor that answer from a script, in this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.doctor_tries import Tries
from runtime.errors import ProviderError
from runtime.providers import PROVIDERS, Kind, Place
from runtime.trial import Trial

RIGHT = {"largest_difference": 1e-4, "spread": 0.3, "right": True, "seconds": 0.2}
GOOD = Trial(0.01, 8.0, 27, 27, 3.0)


def device(kind: str, number: int = 0, *, emulated: bool = False, **told: str) -> dict[str, Any]:
    """A device as a listing tells it."""
    nothing = dict.fromkeys(("vendor", "vendor_id", "device_id", "name", "driver", "memory"))
    return {
        "kind": kind,
        "number": number,
        "emulated": emulated,
        **nothing,
        "metadata": {},
        **told,
    }


def listed(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A provider that is here."""
    reason = None if devices else "It finds no device of its own on this machine."
    found: dict[str, Any] = {"missing": [], "package": None, "library": None, "version": "1.2"}
    return {**found, "reason": reason, "devices": list(devices), **changes}


@dataclass
class FakeTasks:
    """What there is, by provider, and what the other tasks find, by provider too: or an error.

    A provider that is not in `listing` is not here; `smoke` and `nodes` are good where nothing else
    is said. asked: every task with its request.
    """

    listing: Mapping[str, Any] = field(default_factory=lambda: {"CPU": listed(device("CPU"))})
    smoke: Mapping[str, Any] = field(default_factory=dict)
    halves: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[str, Any] = field(default_factory=dict)
    greedy: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, Any] = field(default_factory=dict)
    trials: Mapping[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def tries(
        self, tell: Callable[[str], None], libraries: Mapping[str, Path], limit: float
    ) -> Tries:
        """Stands for `Tries`."""
        return Tries(tell, libraries, limit, self.ask, self.try_graph)

    def ask(
        self, task: str, request: Mapping[str, Any], what: str, time_limit_s: float
    ) -> dict[str, Any]:
        """Stands for `doctor_tries.ask`."""
        self.asked.append((task, request))
        if task == "listing":
            return {key: dict(_found(self._listed(key))) for key in request["libraries"]}
        if task == "place":
            return dict(_found(self.places[request["role"]]))
        key = request["provider"]
        if task == "smoke":
            return dict(_found(self.smoke.get(key, RIGHT)))
        if task == "halves":
            return {"right": _found(self.halves.get(key, True))}
        if task == "nodes":
            whole = {PROVIDERS[key].ep_name: {"MatMul": 7}}
            return {"nodes": dict(_found(self.nodes.get(key, whole)))}
        return dict(_found(self.greedy[key]))

    def try_graph(self, *asked: Any, time_limit_s: float) -> Trial:
        """Stands for `trial.try_graph`."""
        found = _found(self.trials.get(asked[3].provider, GOOD))
        assert isinstance(found, Trial)
        return found

    def _listed(self, key: str) -> Any:
        return self.listing.get(key, {"missing": [], "package": None, "reason": f"No {key} here."})


def place(provider: str, kind: Kind, *, emulated: bool = False, **more: Any) -> dict[str, Any]:
    """A place as the task tells it."""
    return Place(provider, kind).as_data() | {"emulated": emulated} | more


def _found(answer: Any) -> Any:
    if isinstance(answer, ProviderError):
        raise answer
    return answer
