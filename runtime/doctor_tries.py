"""What the doctor has tried, each thing in a process of its own with a time limit."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from runtime.child import run_child
from runtime.errors import LateError, ProviderError, UsageError
from runtime.heartbeat import heartbeat
from runtime.locate import module_command
from runtime.manifest import Graph, Manifest, RoleName
from runtime.providers import PROVIDERS, Place
from runtime.trial import ALIVE_S, Trial, try_graph

Found = dict[str, Any]


class Ask(Protocol):
    """Has one of `doctor_child.TASKS` done; raises ProviderError for how it ended otherwise."""

    def __call__(
        self, task: str, request: Mapping[str, Any], what: str, time_limit_s: float, /
    ) -> Found:
        """What the task found. what: the start of a sentence about its end."""


def ask(task: str, request: Mapping[str, Any], what: str, time_limit_s: float) -> Found:
    """Have a task done in a child process."""
    command = module_command("runtime.doctor_child")
    return run_child(command, {"task": task, **request}, what, time_limit_s)


@dataclass(frozen=True, slots=True)
class Tries:
    """How to try things: the processes, their limit, and who is told what is under way.

    libraries: files by the provider's key, as the user named them.
    """

    tell: Callable[[str], None]
    libraries: Mapping[str, Path]
    time_limit_s: float
    ask: Ask = ask
    try_graph: Callable[..., Trial] = try_graph

    def providers(self) -> dict[str, Found]:
        """Every provider of the table: `_MISSING`'s keys, and what is known of its devices.

        Those with a library to load are asked one by one: one may end the process.
        """
        alone = [key for key in PROVIDERS if self._loads(key)]
        together = [key for key in PROVIDERS if key not in alone]
        found: dict[str, Found] = {}
        for keys in (together, *([key] for key in alone)):
            whom = keys[0] if len(keys) == 1 else "onnxruntime"
            self.tell(f"Asking {whom} for devices.")
            libraries = {key: _text(self.libraries.get(key)) for key in keys}
            try:
                request = {"libraries": libraries}
                answer = self._asked("listing", request, f"Listing {whom}", self.time_limit_s)
            except ProviderError as error:
                answer = {key: {"reason": str(error)} for key in keys}
            found |= answer
        return {key: {**_MISSING, **found[key]} for key in PROVIDERS}

    def place(
        self,
        role: RoleName,
        asked: Mapping[str, Mapping[str, Any]],
        *,
        report: Callable[[str], None] | None,
    ) -> tuple[Place, bool]:
        """Where a role runs by these flags, and whether software plays that device.

        asked: by role. report: of the place. Raises UsageError for flags that cannot be meant,
        ProviderError.
        """
        request = {
            "role": role,
            "asked": asked,
            "libraries": {key: _text(path) for key, path in self.libraries.items()},
        }
        found = self._asked("place", request, f"Looking for the {role}'s device", self.time_limit_s)
        if "usage" in found:
            raise UsageError(found["usage"])
        return replace(Place.from_data(found), report=report), found["emulated"]

    def smoke(self, place: Place) -> Found:
        """A small graph in a place: a verdict (right, wrong, failed), and what it rests on."""
        self.tell(f"Trying {place}.")
        none = dict.fromkeys(("largest_difference", "spread", "seconds", "float16", "reason"))
        try:
            what = f"A small graph on {place}"
            found = self._asked("smoke", place.as_data(), what, self._minute)
        except ProviderError as error:
            return {"verdict": "failed", **none, "reason": str(error)}
        right = found.pop("right")
        found["float16"] = self._has_halves(place) if right and place.kind == "GPU" else None
        return {"verdict": "right" if right else "wrong", **none, **found}

    def _has_halves(self, place: Place) -> bool | None:
        """Whether a GPU computes in float16, which not every one does; None where nobody knows."""
        what = f"A small graph in float16 on {place}"
        try:
            return bool(self._asked("halves", place.as_data(), what, self._minute)["right"])
        except LateError:
            return None
        except ProviderError:  # it ended its process
            return False

    def nodes(self, manifest: Manifest, role: RoleName, graph: Graph, place: Place) -> Found:
        """How many nodes of which operators each provider runs; raises ProviderError."""
        self.tell(f"Loading {graph.file} on {place}.")
        request = _request(manifest, role, graph, place)
        what = f"Loading {graph.file} on {place}"
        nodes: Found = self._asked("nodes", request, what, self.time_limit_s)["nodes"]
        return nodes

    def trial(self, manifest: Manifest, role: RoleName, graph: Graph, place: Place) -> Trial:
        """A graph's answers in a place beside the CPU's; raises ProviderError."""
        self.tell(f"Trying {graph.file} on {place}, and on the CPU.")
        with heartbeat(f"Trying {graph.file} on {place}", self.tell, every_s=ALIVE_S):
            return self.try_graph(manifest, role, graph, place, time_limit_s=self.time_limit_s)

    def greedy(
        self, manifest: Manifest, role: RoleName, graph: Graph, place: Place, tokens: int
    ) -> Found:
        """The same of `tokens` that the CPU writes greedily; raises ProviderError."""
        self.tell(f"Comparing {tokens} tokens of {graph.file} on {place} and on the CPU.")
        request = {**_request(manifest, role, graph, place), "tokens": tokens}
        what = f"Comparing tokens of {graph.file} on {place}"
        return self._asked("greedy", request, what, self.time_limit_s)

    def _asked(
        self, task: str, request: Mapping[str, Any], what: str, time_limit_s: float
    ) -> Found:
        """As `ask`, with a sign of life."""
        with heartbeat(what, self.tell, every_s=ALIVE_S):
            return self.ask(task, request, what, time_limit_s)

    @property
    def _minute(self) -> float:
        return min(self.time_limit_s, 59.0)

    def _loads(self, key: str) -> bool:
        """Whether a library of the provider may be loaded here, for all one knows beforehand."""
        provider = PROVIDERS[key]
        return (
            key in self.libraries
            or (provider.package is not None and find_spec(provider.package) is not None)
            or (provider.windows_ml and sys.platform == "win32")
        )


_MISSING: Mapping[str, Any] = {
    "reason": None,
    "version": None,
    "package": None,
    "library": None,
    "missing": (),
    "devices": (),
}


def _request(manifest: Manifest, role: RoleName, graph: Graph, place: Place) -> Found:
    return {
        **place.as_data(),
        "bundle": os.fspath(manifest.folder.absolute()),
        "role": role,
        "graph": f"{graph.flavour}-{graph.precision}",
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
