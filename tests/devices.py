"""Device profiles with round numbers, to compute by hand."""

from runtime.profiles import Device, Figure, Point, Profile


def figure(value: float) -> Figure:
    return Figure(value, derived="for a test")


def device(
    *points: tuple[int, float],
    contention: float = 1.0,
    transfer_ms: float = 0.0,
    wake_up_ms: float = 0.0,
    idle_ms: float = 0.0,
) -> Device:
    """A device whose calls take what `points` say: rows and milliseconds."""
    return Device(
        "device",
        "model",
        [Point(rows, figure(ms)) for rows, ms in points],
        figure(contention),
        figure(transfer_ms),
        figure(wake_up_ms),
        figure(idle_ms),
    )


def profile(target: Device, draft: Device, *, overhead_ms: float = 0.0) -> Profile:
    return Profile("test", "two devices", target, draft, figure(overhead_ms))


def seconds(*, c_target: float = 1.0, c_draft: float = 1.0, wake_up_s: float = 0.0) -> Profile:
    """Devices on which a call of n rows takes n seconds; awake while idle for 10 s at most."""
    wake = {"wake_up_ms": 1000 * wake_up_s, "idle_ms": 10_000}
    line = ((1, 1000.0), (2, 2000.0))
    return profile(
        device(*line, contention=c_target, **wake), device(*line, contention=c_draft, **wake)
    )
