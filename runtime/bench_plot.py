"""What the bench draws: some rounds of an answer of every strategy that has a draft."""

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.bench_runs import Way
from runtime.plot import Panel, telling_rounds
from runtime.trace import Trace


def panels(
    trace: Trace, settings: Mapping[Way, Mapping[str, Any]], machine: Mapping[str, Any]
) -> Sequence[Panel]:
    """A panel for each way that has a draft and an answer with a round in the trace."""
    return [
        _panel(trace, way, of, machine)
        for way, of in settings.items()
        if way.draft != "none"
        and any(
            entry.group == str(way) and entry.metrics.timeline().rounds for entry in trace.entries
        )
    ]


def _panel(
    trace: Trace, way: Way, settings: Mapping[str, Any], machine: Mapping[str, Any]
) -> Panel:
    own = [entry for entry in trace.entries if entry.group == str(way)]
    timelines = [entry.metrics.timeline() for entry in own]
    place, first, last = telling_rounds(timelines)
    model = f"{settings['model']}, {settings['precision']}"
    if way.draft == "model" and settings["draft_model"]:
        model += f", draft {settings['draft_model']}"
    emulated = own[place].metrics.to_dict().get("emulated")
    return Panel(
        f"{way} · {model} · {machine['processor']}, {machine['cores']} cores"
        + (" · emulated" if emulated else ""),
        f"{own[place].title}: rounds {first + 1} to {last + 1} of {len(timelines[place].rounds)}",
        timelines[place],
        first,
        last,
    )
