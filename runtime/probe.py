"""What this machine's arithmetic keeps: asked once, at a bundle's first load, and remembered.

Two questions. Do a text's logits depend on how many rows are computed together? Where they do not
(`bitwise`), every strategy writes the same text to the last bit; elsewhere (`near-tie`) two
strategies may part where the choice was a near-tie. And are integer products exact? x86
processors without VNNI may saturate the sums of unsigned by signed bytes.
"""

import contextlib
import dataclasses
import hashlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime import providers
from runtime.branches import Branches
from runtime.errors import ProviderError
from runtime.manifest import FILE_NAME, INTEGER_PROBE_FILE
from runtime.providers import Place
from runtime.records import read_record, write_record
from runtime.session import GraphSession

WIDTHS = (1, 2, 3, 8, 16)
_ROWS = 16  # rows compared, after as many that only fill the cache
_NODES = 5  # of the branches that a call of each width is compared with, too


@dataclass(frozen=True, slots=True)
class Exactness:
    """The answer: `largest_difference` between the logits of two widths, 0 where `bitwise`."""

    kind: Literal["bitwise", "near-tie"]
    largest_difference: float


def exactness(
    session: GraphSession[Any],
    *,
    bundle: Path,
    graph: Path,
    place: Place,
    threads: int,
    folder: Path,
    say: Callable[[str], None],
) -> Exactness:
    """The remembered answer for this bundle, graph, place and machine, or a new one.

    It is kept in `folder`. A new one takes seconds, which `say` is told before.

    Raises ProviderError where integer products are wrong: nothing computed there can be trusted.
    """
    path = folder / f"{machine_key(bundle, graph, place, threads)}.json"
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return _answer(read_record(path)["largest_difference"])
    say("First start of this bundle here: trying how exact its arithmetic is on this machine.")
    integer_probe = graph.with_name(INTEGER_PROBE_FILE)
    if place.provider == "CPU" and integer_probe.is_file():
        check_integer_products(integer_probe)
    found = compare_widths(session)
    write_record(path, dataclasses.asdict(found))
    return found


def compare_widths(session: GraphSession[Any]) -> Exactness:
    """Compute the same rows in calls of 1, 2, 3, 8 and 16 tokens; the session's cache is kept.

    Of each width one call carries branches, which must not change the rows of the text before.
    """
    text = (np.arange(2 * _ROWS) * 7919 + 11) % session.vocabulary
    own = session.cache
    largest = 0.0
    try:
        # A cache of its own size: a short context asked for now must not weaken a kept answer.
        session.use(session.new_cache(min(2 * _ROWS + _NODES, session.geometry.context)))
        text = text[: session.context]
        start = len(text) // 2
        expected = session.extend(text, num_logits=len(text) - start).copy()
        for width in WIDTHS:
            session.crop(start)
            for place in range(start, len(text), width):
                part = text[: place + width]
                known = expected[place - start : len(part) - start]
                found = session.extend(part, num_logits=len(known))
                largest = max(largest, _apart(found, known))
                if place == start:
                    branches = _branches(part, session.context - len(part))
                    found = session.extend(part, num_logits=len(known), branches=branches)
                    largest = max(largest, _apart(found[: len(known)], known))
    finally:
        session.use(own)
    return _answer(largest)


def check_integer_products(path: Path) -> None:
    """Run the bundle's product of extreme bytes and compare it with numpy's.

    The graph takes bytes [rows, k] uint8 and returns their product [rows, n] float32 with its
    weights, and the weights [k, n] int8. Raises ProviderError when they do not agree.
    """
    session = providers.load(path, threads=1)
    width = session.get_inputs()[0].shape[1]
    for rows in WIDTHS:
        noise = np.random.default_rng(rows).choice([0, 1, 127, 128, 129, 254, 255], (rows, width))
        extremes = np.where(np.arange(width) % 2 == rows % 2, noise, 255).astype(np.uint8)
        product, weights = session.run(None, {"bytes": extremes})
        exact = (extremes.astype(np.int64) - 128) @ weights.astype(np.int64)
        if not np.array_equal(product, exact):
            raise ProviderError(
                "This processor's products of 8-bit numbers are inexact (the largest error is "
                f"{np.abs(product - exact).max():g}), so int8 graphs would answer wrongly here: "
                "use --precision fp32."
            )


def _branches(text: NDArray[np.int64], room: int) -> Branches:
    """Nodes behind the text's end, its middle and its start, one below another; `room` at most."""
    end = len(text)
    parents = (end - 1, end, end, end // 2, 0)
    count = min(_NODES, room)
    return Branches(tuple(np.resize(text, count).tolist()), parents[:count])


def _apart(found: NDArray[np.float32], known: NDArray[np.float32]) -> float:
    """The largest difference; infinite where one is no number."""
    return float(np.nan_to_num(np.abs(found - known).max(), nan=np.inf))


def machine_key(bundle: Path, graph: Path, place: Place, threads: int | None = None) -> str:
    """A name for an answer that holds for one bundle, graph, place and machine.

    That is for its processor, and its onnxruntime, provider and driver too; None: for all numbers
    of threads. Raises ProviderError where the place is not on this machine.
    """
    processor = [platform.machine(), platform.processor(), str(os.cpu_count())]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        processor += sorted({line for line in lines if line.startswith(("model name", "flags"))})
    parts = (
        hashlib.sha256((bundle / FILE_NAME).read_bytes()).hexdigest(),
        graph.relative_to(bundle).as_posix(),
        ort.__version__,
        place.key,
        providers.identity(place),
        str(threads),
        *processor,
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _answer(largest_difference: float) -> Exactness:
    return Exactness("near-tie" if largest_difference else "bitwise", float(largest_difference))
