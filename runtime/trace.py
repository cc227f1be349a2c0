"""Write what both threads did as a trace: a file that viewers of the Chrome trace format open.

The format is that of "Trace Event Format" (Chrome, also read by Perfetto): an object with the list
`traceEvents`; "X" is a span, "i" a moment, "M" a name; times are microseconds.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from runtime.timeline import Round, Run, Timeline, gaps, within
from runtime.whole_file import write_whole

TARGET, DRAFT = 1, 2
THREADS = {TARGET: "target (caller)", DRAFT: "draft"}

Event = dict[str, Any]


class Metrics(Protocol):
    """What an answer took."""

    def to_dict(self) -> dict[str, Any]:
        """The metrics by name, ready for JSON."""

    def timeline(self) -> Timeline:
        """What ran when, so far."""


class Entry(NamedTuple):
    """An answer in a trace."""

    group: str
    title: str
    metrics: Metrics


@dataclass(slots=True)
class Trace:
    """Answers whose timelines go to one file, on one axis of time."""

    program: str
    entries: list[Entry] = field(default_factory=list)

    def add(self, group: str, title: str, metrics: Metrics) -> None:
        """Take an answer, best before it begins: what it did by the time of writing is written.

        Answers of one group share two lines in a viewer, one for each thread.
        """
        self.entries.append(Entry(group, title, metrics))

    def to_dict(self) -> dict[str, Any]:
        """The whole trace, ready for JSON; time 0 is the start of the first answer."""
        timelines = [entry.metrics.timeline() for entry in self.entries]
        origin = min((timeline.start for timeline in timelines), default=0.0)
        groups = {entry.group: 0 for entry in self.entries}
        groups = {group: number for number, group in enumerate(groups, 1)}
        events: list[Event] = []
        for entry, timeline in zip(self.entries, timelines, strict=True):
            answer = _Answer(timeline, groups[entry.group], origin)
            events += answer.events(entry.title, entry.metrics.to_dict())
        events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
        return {
            "traceEvents": [*_names(groups), *events],
            "displayTimeUnit": "ms",
            "otherData": {"program": self.program},
        }

    def write(self, path: Path) -> None:
        """Write it as JSON, whole or not at all; raises MirrorError when that cannot be."""
        write_whole(path, json.dumps(self.to_dict(), allow_nan=False) + "\n")


def _names(groups: Mapping[str, int]) -> Iterator[Event]:
    for group, process in groups.items():
        yield _meta("process_name", process, 0, {"name": group})
        for thread, name in THREADS.items():
            yield _meta("thread_name", process, thread, {"name": name})
            yield _meta("thread_sort_index", process, thread, {"sort_index": thread})


def _meta(name: str, process: int, thread: int, arguments: Event) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}


@dataclass(frozen=True, slots=True)
class _Answer:
    """The events of one answer, of the group `process`; `origin` is second 0 of the trace."""

    timeline: Timeline
    process: int
    origin: float

    def events(self, title: str, metrics: dict[str, Any]) -> Iterator[Event]:
        """All of them; the metrics are arguments of the span of the whole answer."""
        timeline = self.timeline
        whole = Run(timeline.start, timeline.end, title)
        yield self._span("answer", TARGET, whole, metrics)
        yield from self._spans("target", TARGET, timeline.target)
        yield from self._spans("draft", DRAFT, timeline.draft)
        yield from self._spans("wait", TARGET, timeline.waits)
        yield from self._spans("overhead", TARGET, timeline.deliveries)
        for number, each in enumerate(timeline.rounds, 1):
            about = {"round": number, **_outcome(each)}
            yield self._span("round", TARGET, Run(each.start, each.end, f"round {number}"), about)
            yield from self._spans("overhead", TARGET, own_work(timeline, each))
            name = {True: "hit", False: "miss", None: "verified"}[each.hit]
            moment = {"ph": "i", "s": "t", "cat": "outcome", "name": name}
            yield moment | self._at(TARGET, each.end) | {"args": about}

    def _spans(self, kind: str, thread: int, runs: Iterable[Run]) -> Iterator[Event]:
        for run in runs:
            number = self.timeline.round_at(run.start)
            about = {"rows": run.rows or None, "round": None if number is None else number + 1}
            known = {name: value for name, value in about.items() if value is not None}
            yield self._span(kind, thread, run, known)

    def _span(self, kind: str, thread: int, run: Run, about: Event) -> Event:
        start, end = self._at(thread, run.start), self._at(thread, run.end)
        # Of the rounded times, so that what lies within a span still does.
        duration = round(end["ts"] - start["ts"], 3)
        return {"ph": "X", "cat": kind, "name": run.name, **start, "dur": duration, "args": about}

    def _at(self, thread: int, moment: float) -> Event:
        return {
            "pid": self.process,
            "tid": thread,
            "ts": round(1e6 * (moment - self.origin), 3),
        }


def own_work(timeline: Timeline, each: Round) -> list[Run]:
    """What the caller's thread did in a round besides running the target and waiting."""
    runs = within(timeline.target, each)
    last = runs[-1].start if runs else each.start
    return [
        gap._replace(name="prepare" if gap.start < last else "choose and commit")
        for gap in gaps(each.start, each.end, sorted([*runs, *within(timeline.waits, each)]))
    ]


def _outcome(each: Round) -> Event:
    found = {
        "proposed": each.proposed,
        "accepted": each.accepted,
        "final_token": each.final_token,
    }
    return found if each.hit is None else {**found, "hit": each.hit}
