"""Is `auto` ever slower than the best fixed way? At least 0.97 of its speed is claimed.

    python scripts/never_slower.py emulated --records FOLDER
    python scripts/never_slower.py measured --json FILE

The fixed ways are autoregressive, and speculative and mirror with 1, 2, 4 and 8 tokens of prompt
lookup and of the draft model. The best of them is chosen on one half of the answers and compared
on the other; what counts is the lower end of a 95 % interval of the ratios of speeds after the
first token. Answers of fewer than 128 tokens are joined with the next of their kind.

`emulated` replays records (`scripts/record_answers.py`) on every profile, with the recorded draft
and with one that is always wrong; `auto` learns from the first answer on. Of each kind there are as
many answers as make `--pairs` of 128 tokens. `measured` reads what
`python -m runtime.bench --json FILE` writes when it is told of these ways and of auto:model.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime.profiles import load_profile, profile_folder
from runtime.whole_file import write_whole
from scripts.draft.texts import KINDS, OVERALL
from scripts.emulated.paired import LEAST_TOKENS, Compared, Took, compare, joined
from scripts.emulated.records import Record, load, scripted
from scripts.emulated.settings import fixed_ways, planned, replays
from scripts.emulated.shown import TEMPERATURES, table

CLAIM = 0.97
AUTO = "auto:model"
DRAFTS = ("recorded", "useless")
NEVER = 1e-12  # the agreement of a draft that is useless
SEED = 0  # of the order of answers
WAYS = {each.way: each for each in fixed_ways()}

Ways = Mapping[str, Sequence[Took]]
Job = tuple[str, str, str, Sequence[Record]]


def main() -> None:
    """Print a table, and fail where the claim does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    emulated = commands.add_parser("emulated", help="replay records on device profiles")
    emulated.add_argument("--records", type=Path, required=True, help="folder of records")
    emulated.add_argument("--json", type=Path, help="file to write, and to go on from")
    emulated.add_argument("--again", action="store_true", help=f"replay {AUTO} though it is there")
    emulated.add_argument("--pairs", type=int, metavar="N", default=24, help="of each kind (24)")
    emulated.add_argument(
        "--useless-pairs", type=int, metavar="N", default=5, help="of each kind, useless draft (5)"
    )
    emulated.add_argument("--profiles", nargs="+", help="their names (all)")
    emulated.add_argument("--processes", type=int, default=1)
    measured = commands.add_parser("measured", help="read what a bench wrote")
    measured.add_argument("--json", type=Path, required=True, help="the bench's file")
    options = parser.parse_args()
    if options.command == "measured":
        found: Mapping[str, Ways] = {
            "measured": of_bench(json.loads(options.json.read_text(encoding="utf-8")))
        }
    else:
        found = replayed(options)
    holds = list(show(found))
    if not holds:
        sys.exit("Nothing can be compared: there are fewer than two answers that all ways share.")
    if not all(holds):
        sys.exit(1)


def replayed(options: argparse.Namespace) -> dict[str, dict[str, list[Took]]]:
    """What every answer took on every profile, by profile and draft."""
    records = [
        of
        for name in TEMPERATURES
        for of in load(options.records / f"answers-{name}.npz")
        if len(of.answer) > 1
    ]
    random.Random(SEED).shuffle(records)
    answers = {
        "recorded": enough(records, options.pairs),
        "useless": [
            scripted(of, NEVER, places=of.guesses.shape[1])
            for of in enough(records, options.useless_pairs)
        ],
    }
    known = [path.stem for path in sorted(profile_folder().glob("*.json"))]
    found = read(options.json) if options.json and options.json.exists() else {}
    if options.again:
        found = {name: {k: v for k, v in ways.items() if k != AUTO} for name, ways in found.items()}
    jobs = [
        (name, draft, way, own)
        for name in options.profiles or known
        for draft, own in answers.items()
        for way in (AUTO, *WAYS)
        if way not in found.get(title(name, draft), {})
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        for (name, draft, way, _), took in zip(jobs, pool.map(replayed_by, jobs), strict=True):
            found.setdefault(title(name, draft), {})[way] = took
            print(f"{title(name, draft)}, {way}: done", file=sys.stderr, flush=True)
            if options.json is not None:
                write_whole(options.json, json.dumps(found, default=asdict) + "\n")
    return found


def enough(records: Sequence[Record], pairs: int) -> list[Record]:
    """The first of each kind, as many as give `pairs` answers that are long enough; all else."""
    found: list[Record] = []
    for of in records:
        own = [Took(each.kind, len(each.answer) - 1, 1.0) for each in found if each.kind == of.kind]
        if sum(each.tokens >= LEAST_TOKENS for each in joined(own)) < pairs:
            found.append(of)
    return found


def title(profile: str, draft: str) -> str:
    """What a row of the table is called."""
    return f"{profile}, {draft} draft"


def read(path: Path) -> dict[str, dict[str, list[Took]]]:
    """What was written of earlier profiles."""
    return {
        name: {way: [Took(**of) for of in own] for way, own in ways.items()}
        for name, ways in json.loads(path.read_text(encoding="utf-8")).items()
    }


def replayed_by(job: Job) -> list[Took]:
    """Every answer on a profile by one way, after its first token."""
    name, _, way, records = job
    profile = load_profile(name)
    done = planned(profile, records) if way == AUTO else replays(profile, records, WAYS[way])
    found = []
    for of, each in zip(records, done, strict=True):
        metrics = each.metrics
        if metrics.emitted_tokens > 1 and metrics.ended and metrics.first_token is not None:
            seconds = metrics.ended - metrics.first_token
            found.append(Took(of.kind, metrics.emitted_tokens - 1, seconds))
    return found


def of_bench(report: Mapping[str, Any]) -> dict[str, list[Took]]:
    """Every answer of a bench by every way; not those that the ways do not share, or of a token.

    Other planned ways than the one claimed are left out: they are not fixed.
    """
    if AUTO not in report["strategies"]:
        sys.exit(f"The bench did not run {AUTO}: name it among its --strategies.")
    ways = [way for way in report["strategies"] if way == AUTO or way.split(":")[0] != "auto"]
    if missing := [way for way in WAYS if way not in ways]:
        print(f"Not measured, and not compared with: {', '.join(missing)}.", file=sys.stderr)
    by_answer: dict[tuple[Any, ...], dict[str, Any]] = {}
    for answer in report["answers"]:
        named = tuple(answer[key] for key in ("category", "question_id", "repeat", "turn"))
        if answer["strategy"] in ways:
            by_answer.setdefault(named, {})[answer["strategy"]] = answer
    found: dict[str, list[Took]] = {way: [] for way in ways}
    for answers in by_answer.values():
        texts = {tuple(answer["tokens"]) for answer in answers.values()}
        if len(answers) == len(ways) and len(texts) == 1 and len(texts.pop()) > 1:
            for way, answer in answers.items():
                later = answer["metrics"]["emitted_tokens"] - 1
                seconds = later * answer["metrics"]["tpot_s"]
                found[way].append(Took(answer["category"], later, seconds))
    return found


def show(found: Mapping[str, Ways]) -> Iterator[bool]:
    """Print a row for each of `found` and kind; whether the claim holds in each."""
    rows, holds = [], []
    for name, ways in found.items():
        for kind in (OVERALL, *KINDS):
            compared = compared_of(ways, kind)
            if compared is not None:
                holds.append(compared.low >= CLAIM)
                rows.append(_row(name if kind == OVERALL else "", kind, compared))
    head = "where | kind | pairs | best of the other half | auto / best | 95 % interval | holds"
    print("\n".join(table(head, rows)))
    print(f"\n{sum(holds)} of {len(holds)} hold.")
    return iter(holds)


def compared_of(ways: Ways, kind: str) -> Compared | None:
    """`auto` against the best fixed way on the answers of a kind; None of fewer than two."""
    speeds = {
        way: [each.speed for each in joined(of for of in own if kind in (OVERALL, of.kind))]
        for way, own in ways.items()
    }
    return compare(speeds, AUTO) if len(speeds[AUTO]) > 1 else None


def _row(name: str, kind: str, compared: Compared) -> list[str]:
    return [
        name,
        kind,
        str(compared.pairs),
        ", ".join(dict.fromkeys(compared.best)),
        f"{compared.mean:.3f}",
        f"{compared.low:.3f}–{compared.high:.3f}",
        "yes" if compared.low >= CLAIM else "no",
    ]


if __name__ == "__main__":
    main()
