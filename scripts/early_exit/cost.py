"""What leaving a target early costs: the cut itself, and the exit's head in either thread."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.flavours import open_exit_head
from runtime.manifest import Manifest
from runtime.session import unpaced
from runtime.split_session import SplitSession
from scripts.draft.models import PRECISION, open_target

LENGTH = 256  # tokens that are cached
ROWS = (1, 4, 8)
TOP = 8
WARM_UP = 5
WAYS = ("whole", "split", "its thread", "another")
PARTS = ("prefix", "suffix", "head")


def measure(
    manifest: Manifest, *, threads: Sequence[int], repeats: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Median milliseconds by threads and rows, all ways to make a call in turn.

    whole, split: a call of either target; prefix, suffix: parts of the latter. its thread, another:
    a call with the head run between the parts, or beside the second one by another thread; ready:
    from the beginning of such a call until the guesses are there. split / whole: the median of
    ratios of neighbours.
    """
    found = []
    for count in threads:
        calls = _Calls(manifest, count)
        for rows in ROWS:
            found.append({"threads": count, "rows": rows, **calls.figures(rows, repeats)})
            say(f"cost: {rows} rows on {count} threads")
    return found


class _Calls:
    """The target whole and in two parts, and its exit's head, whose threads sleep in between."""

    def __init__(self, manifest: Manifest, threads: int) -> None:
        role = manifest.target
        settings: dict[str, Any] = {"threads": threads, "sharing": "at once"}
        self._whole = open_target(manifest, **settings)
        split = open_target(manifest, exit_layer=role.early_exit_layer, **settings)
        assert isinstance(split, SplitSession)
        self._split = split
        graph = role.graphs[f"fused-{PRECISION}"]
        self._head = open_exit_head(manifest.folder, graph, **settings)
        noise = np.random.default_rng(0)
        self._text = noise.integers(0, role.geometry.vocabulary, LENGTH + max(ROWS))
        for session in (self._whole, self._split):
            session.extend(self._text[:LENGTH])
        self._other = ThreadPoolExecutor(1)
        self._times: dict[str, list[float]] = {}

    def figures(self, rows: int, repeats: int) -> dict[str, float]:
        """Medians of calls of so many rows, each with logits."""
        order = np.random.default_rng(rows)
        for turn in range(WARM_UP + repeats):
            if turn == WARM_UP:
                self._times = {}
            for way in order.permutation(WAYS).tolist():
                self._call(way, rows)
        medians = {name: statistics.median(times) for name, times in self._times.items()}
        ratios = np.divide(self._times["split"], self._times["whole"])
        return {**medians, "split / whole": float(np.median(ratios))}

    def _call(self, way: str, rows: int) -> None:
        session = self._whole if way == "whole" else self._split
        session.crop(LENGTH)
        self._split.pace = self._part if way == "split" else unpaced
        started = time.perf_counter()

        def guess(hidden: NDArray[np.float32]) -> None:
            with self._part("head", rows):
                self._head.guesses(hidden, top=TOP)
            self._note(f"ready in {way}", started)

        def pass_on(hidden: NDArray[np.float32]) -> None:
            self._other.submit(guess, hidden)

        self._split.on_exit = {"its thread": guess, "another": pass_on}.get(way)
        session.extend(self._text[: LENGTH + rows], num_logits=rows)
        self._note(way, started)
        self._other.submit(int).result()  # its work is done

    @contextmanager
    def _part(self, part: str, _rows: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._note(part, started)

    def _note(self, name: str, started: float) -> None:
        self._times.setdefault(name, []).append(1000 * (time.perf_counter() - started))


def table(found: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Head and rows of the table."""
    names = (*WAYS, *PARTS, "ready in its thread", "ready in another")
    return (
        ("threads", "rows", *names, "split / whole"),
        [
            (
                str(of["threads"]),
                str(of["rows"]),
                *(f"{of[name]:.1f}" for name in names),
                f"{of['split / whole']:.3f}",
            )
            for of in found
        ],
    )
