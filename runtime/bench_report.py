"""What the bench tells: everything as one object for JSON, and of that a table and sentences."""

import dataclasses
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.bench_figures import differences, equal, figures
from runtime.bench_runs import Lap, Plan, Way
from runtime.parser import version

FORMAT, FORMAT_VERSION = "mirror-bench", 1
PACKAGES = ("onnxruntime", "numpy", "tokenizers")

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Preparation:
    """What came before measuring: seconds by session and by way, the settings, and the machine."""

    load_s: Mapping[str, float]
    warm_up_s: Mapping[Way, float]
    settings: Mapping[Way, Mapping[str, Any]]
    machine: Mapping[str, Any]


def machine() -> dict[str, Any]:
    """What the figures were measured on; `load_average` is the last minute's, before the start."""
    from runtime.providers import usable_cores

    return {
        "system": platform.platform(),
        "processor": _processor(Path("/proc/cpuinfo")),
        "cores": len(usable_cores()),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "mirror-sd": version(),
        **{name: getattr(sys.modules.get(name), "__version__", None) for name in PACKAGES},
    }


def make_report(laps: Sequence[Lap], plan: Plan, preparation: Preparation) -> Report:
    """Everything there is to say of at least one lap, ready for JSON."""
    ways = tuple(preparation.settings)
    exactness = {way: str(preparation.settings[way]["exactness"]) for way in ways}
    found = differences(laps, ways, exactness)
    turns = [turn for lap in laps for answered in lap.turns.values() for turn in answered]
    kinds: dict[str, list[Lap]] = {}
    for lap in laps:
        kinds.setdefault(lap.prompt.category, []).append(lap)
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "complete": len(laps) == plan.size,
        "conversations": len(laps),
        "conversations_planned": plan.size,
        "baseline": str(ways[0]),
        "settings": {
            "prompts": len(plan.prompts),
            "repeats": plan.repeats,
            "warm_up": plan.warm_up,
            "max_new_tokens": plan.max_new_tokens,
            "stop": list(plan.stop),
            **dataclasses.asdict(plan.sampling),
        },
        "machine": dict(preparation.machine),
        "load_s": dict(preparation.load_s),
        "peak_rss_bytes": max(turn.metrics["peak_rss_bytes"] or 0 for turn in turns) or None,
        "emulated": preparation.settings[ways[0]].get("emulated"),
        "equal": not found,
        "differences": [dataclasses.asdict(difference) for difference in found],
        "strategies": {
            str(way): {
                "settings": dict(preparation.settings[way]),
                "warm_up_s": preparation.warm_up_s[way],
                "equal": equal(way, found),
                **figures(laps, way, ways[0]),
            }
            for way in ways
        },
        "categories": {
            kind: {str(way): figures(own, way, ways[0]) for way in ways}
            for kind, own in kinds.items()
        },
    }


def answers(laps: Sequence[Lap]) -> list[dict[str, Any]]:
    """Every answer by itself, for whoever wants other figures."""
    return [
        {
            "strategy": str(way),
            "category": lap.prompt.category,
            "question_id": lap.prompt.question_id,
            "repeat": lap.repeat,
            "turn": number,
            "tokens": list(turn.tokens),
            "metrics": dict(turn.metrics),
        }
        for lap in laps
        for way, turns in lap.turns.items()
        for number, turn in enumerate(turns, 1)
    ]


def shown(report: Report) -> str:
    """The report as a person reads it: tables, what was measured apart, and what is wrong."""
    own = report["strategies"]
    parts = []
    if not report["complete"]:
        parts.append(
            f"INCOMPLETE: {report['conversations']} of {report['conversations_planned']} "
            "conversations were measured."
        )
    what = "strategy"
    kinds = "ratio by category"
    if report["emulated"]:
        parts.append(f"Every time below is emulated: that of {report['emulated']}.")
        what, kinds = f"emulated {what}", f"emulated {kinds}"
    parts.append(_table((what, *COLUMNS), [(name, *_cells(own[name])) for name in own]))
    if len(report["categories"]) > 1:
        rows = [
            (kind, *(_spread(by_name[name]["ratio"], 2) for name in own))
            for kind, by_name in report["categories"].items()
        ]
        parts.append(_table((kinds, *own), rows))
    parts.append("\n".join(_sentences(report)))
    return "\n\n".join(parts)


COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "tokens/s": lambda of: _spread(of["tokens_per_s"], 1),
    "ratio": lambda of: _spread(of["ratio"], 2),
    "ttft ms": lambda of: _spread(of["ttft_s"], 0, scale=1000),
    "between tokens ms": lambda of: _percentiles(of["between_tokens_ms"]),
    "length": lambda of: _median(of["mean_acceptance_length"]),
    "hits": lambda of: _median(of["hit_rate"]),
    "hidden": lambda of: _median(of["hidden_share"]),
    "equal": lambda of: str(of["equal"]),
}


def _cells(of: Mapping[str, Any]) -> list[str]:
    return [cell(of) for cell in COLUMNS.values()]


def _sentences(report: Report) -> Iterator[str]:
    own = report["strategies"]
    count = next(iter(own.values()))["answers"]
    yield (
        f"Medians (10th–90th percentile); answers of each: {count}; between tokens p50 / p95 / "
        f"p99; ratio: to {report['baseline']}."
    )
    yield (
        "Before: "
        + ", ".join(
            [
                *(f"loaded for {name} in {took:.1f} s" for name, took in report["load_s"].items()),
                f"warmed up in {sum(of['warm_up_s'] for of in own.values()):.1f} s",
            ]
        )
        + "; none of it is in the table."
    )
    if report["peak_rss_bytes"]:
        yield f"Peak memory with all of them loaded: {report['peak_rss_bytes'] / 2**30:.2f} GiB."
    for name in own:
        yield from _troubles(name, report)


def _troubles(name: str, report: Report) -> Iterator[str]:
    of = report["strategies"][name]
    if of["void_runs"]:
        yield (
            f"VOID: {name}: {of['void_runs']} calls took longer here than on the emulated devices; "
            "a larger --time-scale gives them time."
        )
    if of["draft_errors"]:
        yield (
            f"{name}: the draft stopped working in {len(of['draft_errors'])} of {of['answers']} "
            f"answers, which went on without it, only slower: {of['draft_errors'][0]}"
        )
    found = [item for item in report["differences"] if item["strategy"] == name]
    if not found:
        return
    first = found[0]
    yield (
        f"{name}: {len(found)} of {report['conversations']} conversations differ from "
        f"{report['baseline']}; first {first['category']} {first['question_id']}, repeat "
        f"{first['repeat']}, turn {first['turn']}, token {first['token']}: "
        f"{_token(first['found'])} instead of {_token(first['expected'])}."
    )
    if of["equal"] == "near-tie":
        yield (
            f"{name}: on this machine logits depend a little on how many rows a call has "
            "(exactness near-tie); every difference is in an answer where two tokens were as "
            "close as that, so this is no failure."
        )


def _token(token: int | None) -> str:
    return "the end" if token is None else f"token id {token}"


def _spread(of: Mapping[str, float] | None, digits: int, *, scale: float = 1) -> str:
    if of is None:
        return "–"
    median, low, high = (f"{of[name] * scale:.{digits}f}" for name in ("median", "p10", "p90"))
    return f"{median} ({low}–{high})"


def _median(of: Mapping[str, float] | None) -> str:
    return "–" if of is None else f"{of['median']:.2f}"


def _percentiles(of: Mapping[str, float] | None) -> str:
    return "–" if of is None else " / ".join(f"{of[name]:.1f}" for name in ("p50", "p95", "p99"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]
    return "\n".join(lines)


def _processor(cpuinfo: Path) -> str:
    """The processor's name; on Linux the standard library does not know it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
