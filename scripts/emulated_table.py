"""Replay recorded answers on every device profile: what speculation and overlap give there.

    python scripts/emulated_table.py --records FOLDER

Records are those of `scripts/record_answers.py`. Of each strategy the setting that is fastest on
some of the answers is replayed on all. `scripted` drafts are made up, right at each place with a
given probability. A range is what the profile's guesses make of a figure, those of the target's
device halved and those of the draft's doubled, and the other way round: where all is a guess, one
factor for both would change no ratio.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime.profiles import Profile, load_profile, profile_folder
from runtime.whole_file import write_whole
from scripts.draft.texts import KINDS, OVERALL
from scripts.emulated.figures import hit_rate, length, overlap, tokens_per_s
from scripts.emulated.records import Record, load, scripted
from scripts.emulated.replay import Replayed
from scripts.emulated.settings import LENGTHS, PLAIN, USUAL_HYPOTHESES, Setting, planned, replays
from scripts.emulated.shown import AGREEMENTS, BASE, FACTORS, TEMPERATURES, named, tables

SCRIPTED_PLACES = 9
HYPOTHESES = (1, 4, 8, 16)
FEW_HYPOTHESES = (1, 8)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does: a profile, the answers by temperature, how many of them choose."""

    profile: str
    records: Mapping[str, Sequence[Record]]
    choosing: int
    scripted: int


def main() -> None:
    """Print tables as Markdown, and write everything as JSON where asked to, profile by profile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=Path, required=True, help="folder of records")
    parser.add_argument("--json", type=Path, help="file to write, and to go on from")
    parser.add_argument("--answers", type=int, default=12, help="of each temperature (12)")
    parser.add_argument("--choosing", type=int, default=2, help="of them choose settings (2)")
    parser.add_argument("--scripted-answers", type=int, default=3, help="how many (3)")
    parser.add_argument("--profiles", nargs="+", help="their names (all)")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    known = [path.stem for path in sorted(profile_folder().glob("*.json"))]
    records = {
        name: spread(load(options.records / f"answers-{name}.npz"), options.answers)
        for name in TEMPERATURES
    }
    found: dict[str, Any] = {}
    if options.json is not None and options.json.exists():
        found = json.loads(options.json.read_text(encoding="utf-8"))
    jobs = [
        Job(name, records, options.choosing, options.scripted_answers)
        for name in options.profiles or known
        if name not in found
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        for job, figures in zip(jobs, pool.map(of_profile, jobs), strict=True):
            found[job.profile] = figures
            print(f"{job.profile}: {figures['seconds']:.0f} s", file=sys.stderr, flush=True)
            if options.json is not None:
                write_whole(options.json, json.dumps(found, indent=1) + "\n")
    print("\n".join(tables(found)))
    print(f"\n{sum(of['seconds'] for of in found.values()) / 60:.1f} minutes of processor time.")


def spread(items: Sequence[Record], count: int) -> list[Record]:
    """So many of the records, longest first of each kind in turn; all where there are fewer."""
    by_kind = [
        sorted((of for of in items if of.kind == kind), key=lambda of: -len(of.answer))
        for kind in KINDS
    ]
    turns = range(max(len(of) for of in by_kind))
    return [of[turn] for turn in turns for of in by_kind if turn < len(of)][:count]


def of_profile(job: Job) -> dict[str, Any]:
    """All figures of one profile, and the processor's seconds that they took."""
    started = time.process_time()
    profile = load_profile(job.profile)
    figures: dict[str, Any] = {
        temperature: measured(
            profile, of, choosing=job.choosing, lengths=LENGTHS, hypotheses=HYPOTHESES
        )
        for temperature, of in job.records.items()
    }
    few = job.records[TEMPERATURES[0]][: job.scripted]
    for agreement in AGREEMENTS:
        made_up = [
            scripted(of, agreement, places=SCRIPTED_PLACES, seed=number)
            for number, of in enumerate(few)
        ]
        figures[f"scripted {agreement:g}"] = measured(
            profile,
            made_up,
            choosing=max(1, job.scripted // 2),
            lengths=LENGTHS[-2:],
            hypotheses=FEW_HYPOTHESES,
            has_kinds=False,
        )
    return {**figures, "seconds": time.process_time() - started}


def measured(
    profile: Profile,
    records: Sequence[Record],
    *,
    choosing: int,
    lengths: Sequence[int],
    hypotheses: Sequence[int],
    has_kinds: bool = True,
) -> dict[str, Any]:
    """Figures of each strategy at its best setting, with the guesses as they are and scaled.

    The first `choosing` answers choose. With kinds also by kind, and of `auto`.
    """
    found: dict[str, Any] = {}
    for factors in (BASE, *FACTORS):
        target, draft = factors
        devices = profile if factors == BASE else profile.scaled_guesses(target, draft=draft)
        tried = Tried(devices, records[:choosing])
        best = {
            "speculative": tried.best([Setting(each) for each in lengths]),
            "mirror": tried.mirror(lengths, hypotheses),
        }
        if has_kinds:
            best["lookup"] = tried.best([Setting(each, draft="lookup") for each in lengths])
        done = {name: replays(devices, records, setting) for name, setting in best.items()}
        if has_kinds:
            done["auto"] = planned(devices, records)
        if factors == BASE:
            found["settings"] = {name: str(setting) for name, setting in best.items()}
            found["tried"] = tried.speed_ups(best["mirror"].length)
        plain = replays(devices, records, PLAIN)
        for kind in (OVERALL, *KINDS) if has_kinds and factors == BASE else (OVERALL,):
            places = [place for place, of in enumerate(records) if kind in (OVERALL, of.kind)]
            base = tokens_per_s([plain[place] for place in places]) if places else 0.0
            for name, replayed in done.items() if places else ():
                own = figures_of([replayed[place] for place in places], devices, base)
                found.setdefault(name, {}).setdefault(named(factors), {})[kind] = own
    return found


class Tried:
    """Speeds of settings on some answers."""

    def __init__(self, profile: Profile, records: Sequence[Record]) -> None:
        """Nothing is tried yet."""
        self._profile, self._records = profile, records
        self._speeds: dict[Setting, float] = {}

    def best(self, settings: Sequence[Setting]) -> Setting:
        """The fastest of them."""
        return max(settings, key=self._speed)

    def mirror(self, lengths: Sequence[int], hypotheses: Sequence[int]) -> Setting:
        """The best mirror: first its length, then its hypotheses, then what follows a miss."""
        ends = (min(hypotheses), USUAL_HYPOTHESES)
        best = self.best([Setting(each, count) for each in lengths for count in ends])
        best = self.best([replace(best, hypotheses=each) for each in hypotheses])
        return self.best([best, replace(best, redraft=False)])

    def speed_ups(self, length: int) -> dict[str, float]:
        """Of the mirrors of that length that were tried, over plain decoding."""
        plain = self._speed(PLAIN)
        mirrors = [of for of in self._speeds if of.hypotheses and of.length == length]
        mirrors.sort(key=lambda of: (not of.redraft, of.hypotheses))
        return {str(each): self._speed(each) / plain for each in mirrors}

    def _speed(self, setting: Setting) -> float:
        if setting not in self._speeds:
            self._speeds[setting] = tokens_per_s(replays(self._profile, self._records, setting))
        return self._speeds[setting]


def figures_of(done: Sequence[Replayed], profile: Profile, base: float) -> Mapping[str, Any]:
    """What a table may say of some answers; base: tokens a second of plain decoding."""
    overlaps = overlap(done, profile)
    return {
        "plain": base,
        "speed_up": tokens_per_s(done) / base,
        "length": length(done),
        "hit_rate": hit_rate(done),
        "could": overlaps.could,
        "share": overlaps.share,
    }


if __name__ == "__main__":
    main()
