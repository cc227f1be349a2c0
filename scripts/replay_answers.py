"""Replay recorded answers on every device profile: what speculation and overlap give there.

    python scripts/replay_answers.py --records FOLDER --json FILE

Records are those of `scripts/record_answers.py`. Each strategy is tried with every setting of
LENGTHS and HYPOTHESES; of each profile the setting with the highest speed over all answers is
shown, also by kind, and beside it prompt lookup and `auto`. `scripted` drafts are made up, right
at each place with a given probability. A range in parentheses is what the profile's guesses make of
it, those of the target's device and those of the draft's each halved and doubled.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime.auto import Auto
from runtime.calibration import UNMEASURED
from runtime.planner import Planner
from runtime.profiles import Profile, load_profile, profile_folder
from runtime.strategy import Mirror, Speculative
from runtime.virtual_time import VirtualTiming
from scripts.draft.texts import KINDS, OVERALL
from scripts.emulated.figures import hit_rate, length, needed, overlap, tokens_per_s
from scripts.emulated.records import Record, load, scripted
from scripts.emulated.replay import MakeStrategy, Replayed, replay

AGREEMENTS = (0.5, 0.6, 0.7, 0.8, 0.9)
SCRIPTED_PLACES = 8
GOALS = (2.8, 5.8)
FACTORS = tuple(product((0.5, 2.0), repeat=2))  # of the target's guesses and of the draft's
TEMPERATURES = ("0", "0.8")
LENGTHS = (1, 2, 4, 7)
HYPOTHESES = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class Setting:
    """A strategy by name: draft tokens, hypotheses that are followed, who drafts."""

    strategy: str = "autoregressive"
    length: int = 0
    hypotheses: int = 0
    draft: Literal["model", "lookup"] = "model"

    def __str__(self) -> str:
        if not self.length:
            return self.strategy
        beside = f", B = {self.hypotheses}" if self.strategy == "mirror" else ""
        return f"{self.strategy}:{self.draft}, γ = {self.length}{beside}"

    def maker(self, places: int) -> MakeStrategy | None:
        """What makes it, for a draft that gives `places` tokens in a pass; one for all answers."""
        if self.strategy == "autoregressive":
            return None
        if self.strategy == "auto":
            planner = Planner(replace(UNMEASURED, tokens_per_pass=places))
            return partial(Auto, planner=planner, tokens_per_pass=places)
        if self.strategy == "speculative":
            return partial(Speculative, num_draft_tokens=self.length)
        return partial(Mirror, num_draft_tokens=self.length, num_hypotheses=self.hypotheses)


def settings(places: int) -> dict[str, list[Setting]]:
    """What is tried of each strategy, where a pass of the draft gives so many tokens."""
    lengths = [each for each in LENGTHS if each < places]
    return {
        "speculative": [Setting("speculative", each) for each in lengths],
        "mirror": [Setting("mirror", each, count) for each in lengths for count in HYPOTHESES],
        "lookup": [Setting("speculative", each, draft="lookup") for each in LENGTHS],
        "auto": [Setting("auto")],
    }


def main() -> None:
    """Print tables as Markdown, and write everything as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=Path, required=True, help="folder of records")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--per-kind", type=int, help="the first N answers of each kind (all)")
    parser.add_argument("--scripted-answers", type=int, default=12, help="how many (12)")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    records = {
        name: _first(load(options.records / f"answers-{name}.npz"), options.per_kind)
        for name in TEMPERATURES
    }
    few = records["0"][:: max(1, len(records["0"]) // options.scripted_answers)]
    jobs = [(path.stem, records, few) for path in sorted(profile_folder().glob("*.json"))]
    found = {}
    with ProcessPoolExecutor(options.processes) as pool:
        for name, figures in pool.map(_profile, jobs):
            print(f"{name} done", file=sys.stderr, flush=True)
            found[name] = figures
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    _show(found)


def _first(records: Sequence[Record], per_kind: int | None) -> list[Record]:
    """The first of each kind."""
    kinds = {kind: [of for of in records if of.kind == kind][:per_kind] for kind in KINDS}
    return [of for found in kinds.values() for of in found]


def _profile(
    job: tuple[str, Mapping[str, Sequence[Record]], Sequence[Record]],
) -> tuple[str, dict[str, Any]]:
    name, records, few = job
    profile = load_profile(name)
    figures: dict[str, Any] = {
        f"temperature {temperature}": _measured(profile, of) for temperature, of in records.items()
    }
    for agreement in AGREEMENTS:
        made_up = [
            scripted(of, agreement, places=SCRIPTED_PLACES, seed=number)
            for number, of in enumerate(few)
        ]
        figures[f"scripted {agreement:g}"] = _measured(profile, made_up, kinds=False)
    return name, figures


def _measured(profile: Profile, records: Sequence[Record], *, kinds: bool = True) -> dict[str, Any]:
    """The best setting of each strategy, and its figures; other guesses for these settings only."""
    plain = _replays(profile, records, Setting())
    best = {
        name: max(
            ((each, _replays(profile, records, each)) for each in tried),
            key=lambda pair: tokens_per_s(pair[1]),
        )
        for name, tried in settings(records[0].guesses.shape[1]).items()
    }
    found: dict[str, Any] = {name: {"setting": str(best[name][0])} for name in best}
    for kind in (OVERALL, *KINDS) if kinds else (OVERALL,):
        chosen = [place for place, of in enumerate(records) if kind in (OVERALL, of.kind)]
        if chosen:
            base = tokens_per_s([plain[place] for place in chosen])
            for name, (_, replays) in best.items():
                own = [replays[place] for place in chosen]
                found[name][kind] = _figures(own, profile, base)
            found.setdefault("autoregressive", {})[kind] = {"tokens_per_s": base}
    for factor in FACTORS:
        other = profile.scaled_guesses(factor[0], draft=factor[1])
        base = tokens_per_s(_replays(other, records, Setting()))
        for name, (setting, _) in best.items():
            figures = _figures(_replays(other, records, setting), other, base)
            found[name].setdefault("guesses scaled", []).append(figures)
    return found


def _replays(profile: Profile, records: Sequence[Record], setting: Setting) -> list[Replayed]:
    make = setting.maker(records[0].guesses.shape[1])
    return [replay(of, VirtualTiming(profile), make, draft=setting.draft) for of in records]


def _figures(replays: Sequence[Replayed], profile: Profile, base: float) -> dict[str, Any]:
    overlaps = overlap(replays, profile)
    return {
        "tokens_per_s": tokens_per_s(replays),
        "speed_up": tokens_per_s(replays) / base,
        "length": length(replays),
        "hit_rate": hit_rate(replays),
        "overlap_could": overlaps.could,
        "overlap_share": overlaps.share,
    }


def _show(found: Mapping[str, Any]) -> None:
    for temperature in TEMPERATURES:
        print(f"\nRecorded answers, temperature {temperature}; every figure is emulated.\n")
        print(
            "| profile | kind | tok/s | speculative | mirror | mirror / speculative | length | "
            "hits | (t+d)/T | share of it | lookup | auto | auto / best fixed |"
        )
        print("|---" * 13 + "|")
        for name, figures in found.items():
            _rows(name, figures[f"temperature {temperature}"])
    print("\nScripted drafts: speed-up of the best mirror over autoregressive; emulated.\n")
    print(
        f"| profile | {' | '.join(f'{each:g}' for each in AGREEMENTS)} | "
        f"{' | '.join(f'for {goal:g}' for goal in GOALS)} |"
    )
    print("|---" * (1 + len(AGREEMENTS) + len(GOALS)) + "|")
    for name, figures in found.items():
        mirrors = [figures[f"scripted {each:g}"]["mirror"] for each in AGREEMENTS]
        curve = [
            (each, of[OVERALL]["speed_up"]) for each, of in zip(AGREEMENTS, mirrors, strict=True)
        ]
        goals = (needed(curve, goal) for goal in GOALS)
        cells = [_ranged(of) for of in mirrors]
        cells += [f"> {AGREEMENTS[-1]:g}" if each is None else f"{each:.2f}" for each in goals]
        print(f"| {name} | {' | '.join(cells)} |")


def _rows(name: str, figures: Mapping[str, Any]) -> None:
    mirror, speculative = figures["mirror"], figures["speculative"]
    for kind in (OVERALL, *KINDS):
        if kind in mirror:
            own, other = mirror[kind], speculative[kind]
            overall = kind == OVERALL
            cells = [
                f"{name} ({speculative['setting']}; {mirror['setting']})" if overall else "",
                kind,
                f"{figures['autoregressive'][kind]['tokens_per_s']:.1f}",
                _ranged(speculative) if overall else f"{other['speed_up']:.2f}",
                _ranged(mirror) if overall else f"{own['speed_up']:.2f}",
                f"{own['speed_up'] / other['speed_up']:.2f}",
                f"{own['length']:.2f}",
                *(
                    "–" if own[key] is None else f"{own[key]:.2f}"
                    for key in ("hit_rate", "overlap_could", "overlap_share")
                ),
                *(f"{figures[each][kind]['speed_up']:.2f}" for each in ("lookup", "auto")),
                f"{_against_best(figures, kind):.2f}",
            ]
            print(f"| {' | '.join(cells)} |")


def _against_best(figures: Mapping[str, Any], kind: str) -> float:
    """The speed of `auto` over that of the best setting of all answers."""
    fixed = ("autoregressive", "speculative", "mirror", "lookup")
    best = max(fixed, key=lambda name: figures[name][OVERALL]["tokens_per_s"])
    own, other = figures["auto"][kind], figures[best][kind]
    return float(own["tokens_per_s"] / other["tokens_per_s"])


def _ranged(of: Mapping[str, Any]) -> str:
    """A speed-up, and the range of it with the guesses halved and doubled."""
    others = [each["speed_up"] for each in of["guesses scaled"]]
    return f"{of[OVERALL]['speed_up']:.2f} ({min(others):.2f}–{max(others):.2f})"


if __name__ == "__main__":
    main()
