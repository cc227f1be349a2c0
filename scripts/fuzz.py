"""Give the program thousands of broken GGUF headers and manifests, each made from its number.

Every case runs the real entry points in a child process with limits on its memory and its time, and
must end in success or in an error of this project's own. Anything else (another exception, a crash,
too much memory, no end) is printed with its number, its input is kept as a file, and the exit code
is 1. The same seed gives the same cases.

    python scripts/fuzz.py --cases 20000 --jobs 2
    python scripts/fuzz.py --kind gguf --only 1000042
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import MirrorError

if TYPE_CHECKING:
    from scripts.fuzz_cases import Cases

MOST_BYTES = 2_000_000_000  # that a case may take above what its process has at the start
TIME_LIMIT_S = 30.0  # for one case; a machine with other work takes a while
START_LIMIT_S = 300.0
FINE = ("accepted", "refused")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended: "accepted", "refused", or what went wrong, with its details."""

    kind: str
    number: int
    ending: str
    details: str = ""


@dataclass(slots=True)
class Tally:
    """What came of the cases so far."""

    total: int
    endings: Counter[str] = field(default_factory=Counter)
    findings: list[Outcome] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome, print a finding at once, and now and then the progress."""
        self.endings[f"{outcome.kind} {outcome.ending}"] += 1
        if outcome.ending not in FINE:
            self.findings.append(outcome)
            print(f"\n{outcome.kind} {outcome.number}: {outcome.ending}\n{outcome.details}")
        done = self.endings.total()
        if done % 1000 == 0 or done == self.total:
            pace = done / (time.monotonic() - self.started)
            print(f"{done:,} of {self.total:,} cases, {pace:.0f} a second", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; returns 1 when there was a finding."""
    # Only here: a worker loads them for itself, and a worker that died is soon replaced.
    from scripts.fuzz_cases import KINDS, prepare

    options = _parser(tuple(KINDS)).parse_args(arguments)
    kinds = tuple(KINDS) if options.kind == "all" else (options.kind,)
    if options.only is not None:
        cases = [(kind, options.only) for kind in kinds]
    else:
        first = options.seed * 1_000_000
        cases = [(kinds[n % len(kinds)], first + n) for n in range(options.cases)]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        tally = hunt(cases, work, (Path(folder),), jobs=options.jobs)
        for finding in tally.findings:
            made = KINDS[finding.kind](Path(folder), Path(tempfile.mkdtemp(dir=folder)))
            path = options.keep / f"{finding.kind}-{finding.number}{made.suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made.make(finding.number))
            print(f"kept {path}; again: --kind {finding.kind} --only {finding.number}")
    took = time.monotonic() - tally.started
    shown = ", ".join(f"{count:,} {ending}" for ending, count in sorted(tally.endings.items()))
    print(f"{len(cases):,} cases in {took:.0f} s: {shown}; {len(tally.findings)} findings")
    return 1 if tally.findings else 0


def _parser(kinds: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all cases (%(default)s)")
    parser.add_argument("--kind", choices=(*kinds, "all"), default="all", help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="(%(default)s)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this one case again")
    parser.add_argument(
        "--keep",
        type=Path,
        default=Path(tempfile.gettempdir()) / "fuzz-findings",
        metavar="FOLDER",
        help="where inputs that were found are kept (%(default)s)",
    )
    return parser


Worker = Callable[..., None]


def hunt(
    cases: Sequence[tuple[str, int]],
    worker: Worker,
    arguments: tuple[Path, ...] = (),
    *,
    jobs: int = 1,
    time_limit_s: float = TIME_LIMIT_S,
) -> Tally:
    """Run cases (kind, number) in `jobs` child processes, each of which runs `worker`.

    A worker gets a connection and `arguments`. It sends None when it is ready; then each case that
    it receives is answered by an outcome. One that dies or stalls is a finding, and is replaced.
    """
    tally, lock = Tally(len(cases)), threading.Lock()
    waiting = iter(cases)

    def take() -> tuple[str, int] | None:
        with lock:
            return next(waiting, None)

    def add(outcome: Outcome) -> None:
        with lock:
            tally.add(outcome)

    threads = [
        threading.Thread(target=_keep_busy, args=(worker, arguments, take, add, time_limit_s))
        for _ in range(min(jobs, len(cases)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def _keep_busy(
    worker: Worker,
    arguments: tuple[Path, ...],
    take: Callable[[], tuple[str, int] | None],
    add: Callable[[Outcome], None],
    time_limit_s: float,
) -> None:
    """Feed one worker after the other with cases until there are no more."""
    for kind, number in iter(take, None):
        case: tuple[str, int] | None = (kind, number)
        with _Child(worker, arguments) as child:
            while case is not None:
                outcome, alive = child.run(case, time_limit_s)
                add(outcome)
                if not alive:
                    break
                case = take()


class _Child:
    """One worker's process."""

    def __init__(self, worker: Worker, arguments: tuple[Path, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=worker, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        if not self._ours.poll(START_LIMIT_S) or self._ours.recv() is not None:
            raise RuntimeError("a worker did not start")

    def run(self, case: tuple[str, int], time_limit_s: float) -> tuple[Outcome, bool]:
        """A case's outcome, and whether the process lives on."""
        try:
            self._ours.send(case)
            if self._ours.poll(time_limit_s):
                ending, details = self._ours.recv()
                return Outcome(*case, ending, details), True
        except (EOFError, OSError):
            self._process.join()
            return Outcome(*case, "crashed", f"exit code {self._process.exitcode}"), False
        return Outcome(*case, "no end", f"within {time_limit_s:g} s"), False

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *error: object) -> None:
        self._ours.close()
        self._process.kill()
        self._process.join()


def work(connection: "Connection[object, tuple[str, int]]", shared: Path) -> None:
    """What a worker does: run the cases it is sent, within limits."""
    from scripts.fuzz_cases import KINDS

    with tempfile.TemporaryDirectory(dir=shared) as name:
        kinds = {}
        for kind, make in KINDS.items():
            folder = Path(name) / kind
            folder.mkdir()
            kinds[kind] = make(shared, folder)
        limit_memory(MOST_BYTES)
        connection.send(None)
        for kind, number in _received(connection):
            cases = kinds[kind]
            connection.send(judged(partial(_run, cases, number)))


def _run(cases: "Cases", number: int) -> None:
    cases.run(number, cases.make(number))


def judged(act: Callable[[], object]) -> tuple[str, str]:
    """How an act ended, and its traceback where it ended badly."""
    try:
        act()
    except MirrorError:
        return "refused", ""
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
        return f"raised {type(error).__name__}", traceback.format_exc(limit=-8)
    return "accepted", ""


def limit_memory(size: int) -> None:
    """Let this process map so many bytes more than it has; where the system knows such limits."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + size
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _received(connection: "Connection[object, tuple[str, int]]") -> Iterator[tuple[str, int]]:
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


if __name__ == "__main__":
    sys.exit(main())
