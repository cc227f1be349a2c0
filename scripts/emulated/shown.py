"""Tables of emulated figures, as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scripts.draft.texts import KINDS, OVERALL
from scripts.emulated.figures import needed

TEMPERATURES = ("0", "0.8")
AGREEMENTS = (0.5, 0.6, 0.7, 0.8, 0.9)
GOALS = (2.8, 5.8)
BASE, FACTORS = (1.0, 1.0), ((0.5, 2.0), (2.0, 0.5))  # of target's and draft's guesses
UNKNOWN = "–"
FIXED = ("lookup", "speculative", "mirror")
WAYS = (*FIXED, "auto")

Figures = Mapping[str, Any]


def tables(found: Mapping[str, Figures]) -> Iterator[str]:
    """All of them, line by line; found: by profile, as `scripts/emulated_table.py` writes it."""
    for temperature in TEMPERATURES:
        yield f"\nThis project's draft, temperature {temperature}; every figure is emulated.\n"
        yield from table(
            "profile | plain tok/s | lookup | speculative | mirror | auto | mirror / speculative | "
            "tokens a round | hits | (t+d)/T | share of it",
            [_row(name, of[temperature]) for name, of in found.items()],
        )
    yield "\nBy kind, lookup / speculative / mirror / auto over plain decoding; emulated.\n"
    for temperature in TEMPERATURES:
        yield from table(
            f"temperature {temperature} | {' | '.join(KINDS)}",
            [_by_kind(name, of[temperature]) for name, of in found.items()],
        )
        yield ""
    yield "Mirrors that were tried on some answers, speed-up over plain decoding; emulated.\n"
    yield from table(
        "profile | temperature 0 | temperature 0.8",
        [[name, *(_tried(of[each]) for each in TEMPERATURES)] for name, of in found.items()],
    )
    yield "\nScripted drafts, the best mirror over plain decoding; emulated.\n"
    places = " | ".join(f"{each:g}" for each in AGREEMENTS)
    goals = " | ".join(f"needed for {goal:g}" for goal in GOALS)
    yield from table(f"profile | {places} | {goals}", [_scripted(*of) for of in found.items()])


def table(head: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {head} |"
    yield "|---" * (1 + head.count(" | ")) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def named(factors: tuple[float, float]) -> str:
    """How figures with these factors of guesses are kept."""
    return f"guesses x {factors[0]:g}, x {factors[1]:g}"


def ranged(of: Figures) -> str:
    """A way's speed-up, and the range of it, other guesses included."""
    speeds = [of[named(factors)][OVERALL]["speed_up"] for factors in (BASE, *FACTORS)]
    return f"{speeds[0]:.2f} ({min(speeds):.2f}–{max(speeds):.2f})"


def _row(name: str, of: Figures) -> list[str]:
    ways = {way: of[way][named(BASE)][OVERALL] for way in WAYS}
    mirror = ways["mirror"]
    return [
        name,
        f"{mirror['plain']:.1f}",
        *(f"{ranged(of[way])} at {of['settings'][way]}" for way in FIXED),
        ranged(of["auto"]),
        f"{mirror['speed_up'] / ways['speculative']['speed_up']:.2f}",
        f"{mirror['length']:.2f}",
        *(
            UNKNOWN if mirror[key] is None else f"{mirror[key]:.2f}"
            for key in ("hit_rate", "could", "share")
        ),
    ]


def _by_kind(name: str, of: Figures) -> list[str]:
    cells = [name]
    for kind in KINDS:
        found = [of[way][named(BASE)].get(kind) for way in WAYS]
        cells.append(
            " / ".join(UNKNOWN if each is None else f"{each['speed_up']:.2f}" for each in found)
        )
    return cells


def _tried(of: Figures) -> str:
    return "; ".join(f"{setting}: {speed:.2f}" for setting, speed in of["tried"].items())


def _scripted(name: str, of: Figures) -> list[str]:
    mirrors = [of[f"scripted {each:g}"]["mirror"] for each in AGREEMENTS]
    cells = [name, *map(ranged, mirrors)]
    for goal in GOALS:
        ends = []
        for factors in (BASE, *FACTORS):
            speeds = [each[named(factors)][OVERALL]["speed_up"] for each in mirrors]
            ends.append(needed(list(zip(AGREEMENTS, speeds, strict=True)), goal))
        cells.append(_needed(ends))
    return cells


def _needed(found: Sequence[float | None]) -> str:
    """The agreement needed with the guesses as they are, and the range of halved and doubled."""
    shown = [
        "not reached"
        if each is None
        else f"{each:.2f}"
        if each > AGREEMENTS[0]
        else f"≤ {each:.2f}"
        for each in found
    ]
    return shown[0] if len(set(shown)) == 1 else f"{shown[0]} ({shown[1]}; {shown[2]})"
