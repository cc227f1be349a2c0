"""Whether a graph answers on a device as it does on the CPU: tried in a process of its own.

A provider may end the process that loads it, hang, or answer wrongly without a word.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.child import run_child
from runtime.errors import ProviderError
from runtime.flavours import graph_files
from runtime.heartbeat import heartbeat
from runtime.locate import module_command
from runtime.manifest import STATIC, Graph, Manifest, RoleName
from runtime.probe import Exactness, machine_key
from runtime.providers import Place, device_of, keep, most_rows, widened
from runtime.records import read_record, write_record

# Of the spread of the CPU's logits. Right answers were at most 0.03 off, wrong ones 0.095 and more.
BOUND = 0.05
TIME_LIMIT_S = 1800.0  # what is not kept is compiled in it
ALIVE_S = 10.0


@dataclass(frozen=True, slots=True)
class Trial:
    """How a graph's logits on a device differ from those of the same graph on the CPU provider.

    spread: the CPU's highest logit less its lowest. rows: how many were compared; equal: of how
    many the most probable token is the same. seconds: the whole trial, both loadings included.
    """

    largest_difference: float
    spread: float
    rows: int
    equal: int
    seconds: float

    @property
    def share(self) -> float:
        """The largest difference as a share of the spread; infinite where there is no spread."""
        return self.largest_difference / self.spread if self.spread > 0 else math.inf

    def __str__(self) -> str:
        return (
            f"the largest difference is {self.largest_difference:.2g} of {self.spread:.3g}, and "
            f"{self.equal} of {self.rows} rows choose the same token"
        )


def try_graph(
    manifest: Manifest,
    role: RoleName,
    graph: Graph,
    place: Place,
    *,
    threads: int = 1,
    time_limit_s: float = TIME_LIMIT_S,
) -> Trial:
    """Feed a few tokens to a graph in a place and on the CPU, in a child process.

    Judges nothing. Raises ProviderError with what the child said, or how it ended: by a signal,
    with an exit code, or at `time_limit_s`.
    """
    request = {
        "bundle": str(manifest.folder.absolute()),
        "role": role,
        "graph": f"{graph.flavour}-{graph.precision}",
        "place": place.as_data(),
        "threads": threads,
    }
    what = f"Trying {graph.file} on {place}"
    started = time.perf_counter()
    found = run_child(module_command("runtime.trial_child"), request, what, time_limit_s)
    return Trial(**found, seconds=time.perf_counter() - started)


def judge(trial: Trial, place: Place, what: str) -> None:
    """Raise ProviderError where `what` is further from the CPU's answer than rounding takes it."""
    if trial.share <= BOUND:
        return
    if math.isfinite(trial.share):
        wrong = f"answers wrongly: {trial}"
    else:
        wrong = "gives logits that are no numbers"
    raise ProviderError(
        f"{what} on {place} {wrong}, compared with the CPU. Take another execution provider or "
        "precision, or another version of the device's driver."
    )


def presumed(trial: Trial | None, graph: Graph, place: Place) -> Exactness | None:
    """How exact a target is on a device that software plays; None elsewhere: ask the probe there.

    Its calls are too slow for the probe's fifty. Two widths are apart by no more than each is from
    the CPU's answer, and the CPU's are from each other.
    """
    if trial is None or not device_of(place).emulated:
        return None
    return Exactness("near-tie", 2 * trial.largest_difference + graph.parity.width_difference)


def try_once(
    manifest: Manifest,
    role: RoleName,
    graph: Graph,
    place: Place,
    *,
    threads: int,
    folder: Path,
    say: Callable[[str], None],
) -> Trial | None:
    """The kept trial of a graph in a place on this machine, or a new one; both are judged.

    None for the CPU provider, which is what others are compared with. A good one is kept in
    `folder`, until bundle, provider, driver or machine change. `say` is told before a new one and
    after it. Raises ProviderError as `try_graph` and `judge`.
    """
    if place.provider == "CPU":
        return None
    kept = _kept(manifest, graph, place, folder)
    if kept is not None:
        return kept
    for each in graph_files(manifest.folder, graph):
        keep(each, place)
    say(f"First use of {graph.file} on {place}: trying whether it answers as the CPU does.")
    with heartbeat(f"Trying {graph.file} on {place}", say, every_s=ALIVE_S):
        found = try_graph(manifest, role, graph, place, threads=threads)
    judge(found, place, f"The {role}'s graph {graph.flavour}-{graph.precision}")
    write_record(_record(manifest, graph, place, folder), dataclasses.asdict(found))
    say(f"It does: {found} ({found.seconds:.0f} s).")
    return found


def settle(
    manifest: Manifest,
    role: RoleName,
    graph: Graph,
    place: Place,
    *,
    threads: int,
    folder: Path,
    say: Callable[[str], None],
) -> tuple[Place, Trial | None]:
    """The place as it answers right, with calls of any width or else of few rows, and its trial.

    As `try_once` otherwise.
    """
    kept: dict[str, Any] = {"threads": threads, "folder": folder, "say": say}
    wide = None if graph.flavour in STATIC else widened(place)
    if wide is not None and _kept(manifest, graph, place, folder) is None:
        try:
            return wide, try_once(manifest, role, graph, wide, **kept)
        except ProviderError as error:
            say(f"{error} Trying calls of at most {most_rows(place)} rows.")
    return place, try_once(manifest, role, graph, place, **kept)


def _record(manifest: Manifest, graph: Graph, place: Place, folder: Path) -> Path:
    key = machine_key(manifest.folder, manifest.folder / graph.file, place)
    return folder / f"trial-{key}.json"


def _kept(manifest: Manifest, graph: Graph, place: Place, folder: Path) -> Trial | None:
    """The kept trial, where it can be read and is good."""
    with contextlib.suppress(ValueError, TypeError, KeyError, ProviderError):
        found = Trial(**read_record(_record(manifest, graph, place, folder)))
        judge(found, place, graph.file)
        return found
    return None
