"""What `runtime.bench` runs: strategies beside each other, on given streams."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from runtime.bench_flags import PROGRAM, WAYS, Options, parse
from runtime.bench_plot import panels
from runtime.bench_report import Preparation, answers, machine, make_report, shown
from runtime.bench_runs import Contest, Lap, Plan, Session, Way
from runtime.chat_options import OF_A_DRAFT_MODEL
from runtime.command_line import (
    FAILED,
    OK,
    exit_code,
    flush,
    readied,
    runtime_open_session,
)
from runtime.errors import MirrorError, UsageError
from runtime.locate import default_cache_dir, locate_bundle
from runtime.plot import drawn
from runtime.round_settings import takes_hypotheses
from runtime.screen import CONTROLS, Screen
from runtime.trace import Trace
from runtime.whole_file import write_whole

if TYPE_CHECKING:
    from runtime.providers import Place

BUSY = 0.5  # of the cores

OpenSession = Callable[..., Session]
Locate = Callable[..., Path]


def main(
    argv: Sequence[str] | None = None,
    *,
    open_session: OpenSession | None = None,
    locate: Locate = locate_bundle,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    leave: Callable[[int], object] = os._exit,
) -> int:
    """Run the bench and return its exit code: 0, 1 (failed or not equal), 2 (usage), 130.

    Everything the process offers can be given instead. `leave` ends the process at once when a
    session says that one of its threads is stuck in native code.
    """
    bench = _Bench(
        readied(stdout or sys.stdout), readied(stderr or sys.stderr), open_session, locate
    )
    arguments = sys.argv[1:] if argv is None else argv
    code = exit_code(PROGRAM, lambda: bench.run(arguments), bench.screen.note)
    if not bench.close():
        leave(code)
    return code


@dataclass(slots=True)
class _Bench:
    """The streams and the sessions of one run."""

    stdout: TextIO
    stderr: TextIO
    open_session: OpenSession | None
    locate: Locate
    sessions: dict[str, Session] = field(default_factory=dict, init=False)

    @property
    def screen(self) -> Screen:
        """What shows the report and says things beside it."""
        return Screen(self.stdout, self.stderr)

    def run(self, argv: Sequence[str]) -> int:
        """Do what `argv` says; errors pass through."""
        try:
            with contextlib.redirect_stdout(self.stdout):
                options = parse(argv)
        except SystemExit:  # --help or --version, and all is said
            return OK
        if options.calibrate:
            return self._calibrate(options)
        return self._compare(options, self._load(options))

    def _calibrate(self, options: Options) -> int:
        """Time the models' calls, keep the figures and show them."""
        runtime_open_session()  # which says what is not installed
        from runtime.calibrating import calibrate, described, pair_of

        found = self._located(options, *self._places(options))
        pair = pair_of(
            found["target"],
            found.get("draft"),
            options.open,
            report=self._tell,
        )
        cache = options.open["cache_dir"] or default_cache_dir(os.environ, sys.platform)
        pair = pair.keeping(cache / "compiled", self._tell)
        for sharing in pair.sharings:
            costs = calibrate(pair, sharing, folder=cache / "probes", say=self._tell)
            if self.stderr.isatty():
                self.screen.note("")
            self.screen.piece(described(costs, pair.layout(sharing)))
            self.screen.end_answer()
        return OK

    def _places(self, options: Options) -> tuple["Place", "Place"]:
        """Where target and draft run."""
        from runtime.places import places_of

        return places_of(options.open, self.screen.note)

    def _located(self, options: Options, target: "Place", draft: "Place") -> dict[str, Path]:
        """The bundles of the models that were named, by the role that each is for."""
        from runtime.wanted import for_draft, for_target

        of_draft = options.open["draft_model"]
        own_draft = draft if of_draft is None else None
        asked = {
            "target": (options.model, for_target(target, own_draft, options.open["precision"]))
        }
        if of_draft is not None:
            asked["draft"] = (of_draft, for_draft(draft))
        return {
            role: self.locate(
                name,
                cache_dir=options.open["cache_dir"],
                offline=options.open["offline"],
                progress=self.screen.note,
                graphs=graphs,
            )
            for role, (name, graphs) in asked.items()
        }

    def _compare(self, options: Options, load_s: dict[str, float]) -> int:
        plan = options.plan
        ways = [way for way in options.ways if way.session in self.sessions]
        trace = Trace(PROGRAM) if options.trace or options.plot else None
        contest = Contest(self.sessions, ways, trace)
        here = machine()
        load = here["load_average"]
        if load is not None and load > BUSY * here["cores"]:
            self.screen.note(
                f"This machine is busy: on {here['cores']} cores, {load:.1f} programs ran at once "
                "in the last minute. The figures will say less."
            )
        warm_up_s = {way: contest.warm_up(way, plan) for way in ways}
        preparation = Preparation(load_s, warm_up_s, contest.settings, here)
        laps: list[Lap] = []
        code = exit_code(PROGRAM, lambda: self._measure(contest, plan, laps), self.screen.note)
        try:
            return self._report(laps, plan, preparation, options.json, code) if laps else code
        finally:
            if trace is not None:
                self._show_times(options, trace, preparation)

    def _show_times(self, options: Options, trace: Trace, preparation: Preparation) -> None:
        """Write the trace and the drawing that were asked for."""
        if options.trace is not None:
            trace.write(options.trace)
        if options.plot is None:
            return
        shown = panels(trace, preparation.settings, preparation.machine)
        if shown:
            write_whole(options.plot, drawn(shown))
        else:
            self.screen.note(f"Nothing is drawn in {options.plot}: no draft had a round.")

    def close(self) -> bool:
        """Close the sessions; False when the process must not wait for their threads."""
        try:
            done = [session.close() for session in self.sessions.values()]
        except KeyboardInterrupt:
            done = [False]
        flush(self.stdout, self.stderr)
        return all(done)

    def _load(self, options: Options) -> dict[str, float]:
        """Open the sessions that the ways need; return the seconds each took, building left out.

        A draft model that nobody asked for is left out where there is none, or no room for it.
        """
        open_session = self.open_session or runtime_open_session()
        from runtime.places import of_target

        places = self._places(options)
        found = self._located(options, *places)
        usual = options.ways is WAYS and not any(options.open[name] for name in OF_A_DRAFT_MODEL)
        hypotheses = options.open["num_hypotheses"]

        def is_bare(way: Way) -> bool:
            return hypotheses is not None and not takes_hypotheses(way.strategy, way.draft)

        # Of a session's ways one that takes its settings opens it.
        ordered = sorted(options.ways, key=is_bare)
        first = {way.session: way for way in reversed(ordered)}
        load_s = {}
        for way in (way for way in options.ways if first[way.session] is way):
            started = time.perf_counter()
            settings = {**options.open, "draft_model": found.get("draft")}
            if way.draft != "model":
                settings |= dict.fromkeys(OF_A_DRAFT_MODEL) | of_target(settings, places[0])
            if is_bare(way):
                settings["num_hypotheses"] = None
            try:
                self.sessions[way.session] = open_session(
                    found["target"],
                    draft=way.draft,
                    strategy=way.strategy,
                    progress=self.screen.note,
                    **settings,
                )
            except UsageError as error:
                if way.draft != "model" or not usual:
                    raise
                self.screen.note(f"Measured without a draft model. {error}")
                continue
            load_s[way.session] = time.perf_counter() - started
        return load_s

    def _measure(self, contest: Contest, plan: Plan, laps: list[Lap]) -> int:
        """Have all conversations; those that are complete are in `laps` whatever happens."""
        started = time.perf_counter()
        try:
            for lap in contest.laps(plan):
                laps.append(lap)
                left_s = (time.perf_counter() - started) / len(laps) * (plan.size - len(laps))
                self._tell(
                    f"{len(laps)} of {plan.size}: {lap.prompt.category} {lap.prompt.question_id}, "
                    f"repeat {lap.repeat}; about {left_s:.0f} s left",
                )
        finally:
            if laps and self.stderr.isatty():
                self.screen.note("")
        return OK

    def _tell(self, progress: str) -> None:
        """Say how far it is: on a terminal in one line, written over again and again."""
        if not self.stderr.isatty():
            self.screen.note(progress)
            return
        with contextlib.suppress(OSError):  # nobody looks
            self.stderr.write("\r" + progress.translate(CONTROLS).ljust(78))
            self.stderr.flush()

    def _report(
        self, laps: list[Lap], plan: Plan, preparation: Preparation, path: Path | None, code: int
    ) -> int:
        report = make_report(laps, plan, preparation)
        self.screen.piece(shown(report))
        self.screen.end_answer()
        self.screen.piece(json.dumps(report, allow_nan=False))
        self.screen.end_answer()
        if path is not None:
            text = json.dumps({**report, "answers": answers(laps)}, allow_nan=False)
            try:
                path.write_text(text + "\n", encoding="utf-8")
            except OSError as error:
                raise MirrorError(
                    f"{path} cannot be written: {error.strerror or error}; all but the answers "
                    "is in the last line above."
                ) from error
        apart = any(of["equal"] == "no" for of in report["strategies"].values())
        return code or (FAILED if apart else OK)
