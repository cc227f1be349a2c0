"""Device profiles: what a pass of target and draft would cost on two devices, and who says so."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from runtime.errors import BundleError, UsageError
from runtime.locate import recipe_folder
from runtime.strict_json import read_dataclass, read_object

LONGEST_MS = 1e6
# What a field may say, from least to most; far beyond any device, and nothing overflows.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "rows": (1, 1 << 20),
    "ms": (1e-3, LONGEST_MS),
    "contention": (1, 100),
    "transfer_ms": (0, LONGEST_MS),
    "wake_up_ms": (0, LONGEST_MS),
    "idle_ms": (0, LONGEST_MS),
    "overhead_ms": (0, LONGEST_MS),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it comes from: exactly one of the other fields says it.

    source: who published it. derived: how it follows from what is published. guessed: why so.
    """

    value: float
    source: str | None = None
    derived: str | None = None
    guessed: str | None = None

    def __post_init__(self) -> None:
        origins = [text for text in (self.source, self.derived, self.guessed) if text is not None]
        if len(origins) != 1 or not origins[0].strip():
            raise BundleError(
                "a figure needs a source, or how it was derived, or why it is a guess"
            )


@dataclass(frozen=True, slots=True)
class Point:
    """What a call of so many rows takes."""

    rows: int
    ms: Figure

    def __post_init__(self) -> None:
        _check("rows", self.rows)
        _check("ms", self.ms.value)


@dataclass(frozen=True, slots=True)
class Device:
    """A model on a device.

    cost: ascending, from one row on. contention: c, while the other device runs this one progresses
    at 1/c. transfer_ms: what a call costs besides. wake_up_ms: what it costs further when the
    device had nothing to do for longer than idle_ms.
    """

    device: str
    model: str
    cost: list[Point]
    contention: Figure
    transfer_ms: Figure
    wake_up_ms: Figure
    idle_ms: Figure

    def __post_init__(self) -> None:
        if len(self.cost) < 2 or self.cost[0].rows != 1:
            raise BundleError("the cost needs two points or more, the first for 1 row")
        for point, later in pairwise(self.cost):
            if later.rows <= point.rows or later.ms.value < point.ms.value:
                raise BundleError(f"the cost falls at {later.rows} rows, or is not in order")
        for name in ("contention", "transfer_ms", "wake_up_ms", "idle_ms"):
            _check(name, getattr(self, name).value)

    def seconds(self, rows: int, share: float = 1.0) -> float:
        """What a call takes alone on the device, awake: the curve's `share`, and the transfer.

        Between points the curve is straight, behind the last it goes on as before it.
        """
        segments = list(pairwise(self.cost))
        low, high = next((pair for pair in segments if rows <= pair[1].rows), segments[-1])
        slope = (high.ms.value - low.ms.value) / (high.rows - low.rows)
        curve = low.ms.value + slope * (rows - low.rows)
        return (share * curve + self.transfer_ms.value) / 1000


@dataclass(frozen=True, slots=True)
class Profile:
    """Two devices; overhead_ms: of a round, neither a run nor a wait."""

    name: str
    about: str
    target: Device
    draft: Device
    overhead_ms: Figure

    def __post_init__(self) -> None:
        _check("overhead_ms", self.overhead_ms.value)

    def scaled_guesses(self, factor: float, *, draft: float | None = None) -> "Profile":
        """The same with every guess times `factor`, so that several of them give a range.

        draft: the factor for the draft's device, where it is another one: where all is a guess, one
        factor for both changes no ratio. Of a guessed contention it is what exceeds 1, of a guessed
        point what exceeds the last point before it that is no guess: the rest is known. Raises
        BundleError where a figure then leaves its BOUNDS.
        """
        other = factor if draft is None else draft
        return replace(
            self,
            name=f"{self.name} (guesses x {factor:g}, x {other:g})",
            target=_scaled_device(self.target, factor),
            draft=_scaled_device(self.draft, other),
            overhead_ms=_scaled(self.overhead_ms, factor),
        )


def load_profile(name: str) -> Profile:
    """The profile in this package that has the name, or that of the JSON file at this path.

    Raises UsageError where there is neither, BundleError for a file that is no profile.
    """
    path = profile_folder() / f"{name}.json"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in profile_folder().glob("*.json")))
        raise UsageError(f"There is no device profile {name!r}; there are {known}.")
    return read_dataclass(Profile, read_object(path), str(path))


def profile_folder() -> Path:
    """Where the profiles of this package lie."""
    return recipe_folder() / "devices"


def _check(name: str, value: float) -> None:
    """Raise BundleError for what is not within the field's BOUNDS, as NaN never is."""
    least, most = BOUNDS[name]
    if not least <= value <= most:
        raise BundleError(f"{name} is {value!r:.80}; it must be from {least:g} to {most:.12g}")


def _scaled(figure: Figure, factor: float, known: float = 0.0) -> Figure:
    """A guess with what exceeds `known` scaled; anything else as it is."""
    if figure.guessed is None:
        return figure
    return replace(figure, value=known + (figure.value - known) * factor)


def _scaled_device(device: Device, factor: float) -> Device:
    points, known = [], 0.0
    for point in device.cost:
        if point.ms.guessed is None:
            known = point.ms.value
        points.append(replace(point, ms=_scaled(point.ms, factor, known)))
    return replace(
        device,
        cost=points,
        contention=_scaled(device.contention, factor, 1.0),
        transfer_ms=_scaled(device.transfer_ms, factor),
        wake_up_ms=_scaled(device.wake_up_ms, factor),
        idle_ms=_scaled(device.idle_ms, factor),
    )
