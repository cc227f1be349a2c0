"""Check that every strategy, draft and shape of a proposal writes the same text.

For each setting a text is written, the prompts taking turns, and compared with what the target in
one graph writes alone with all threads: the same tokens, and from bit-equal logits wherever a row
of the trunk chose one. Prints each difference as it is met, a table by the values of every factor,
and a last line of JSON; exits with 1 when anything differed.

    python scripts/check_equality.py --pairwise
    python scripts/check_equality.py --precision int8 --share 1/20
"""

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from runtime.locate import locate_bundle
from runtime.prompts import load_prompts, prompt_folder
from runtime.text import Text
from scripts.equality.pair import Pair
from scripts.equality.recorder import Written
from scripts.equality.settings import Setting, by_pairs, every

PROMPTS = prompt_folder() / "forty.jsonl"
SEED = 20
COLUMNS = ("texts", "tokens", "accepted", "off the trunk", "guard stops", "hits", "differences")
REPORT_S = 30.0  # between two lines of progress


class Tally:
    """What was counted for each value of each factor, and what differed."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.failures: list[str] = []

    def add(self, precision: str, setting: Setting, found: Written, failures: list[str]) -> None:
        """A text was written."""
        metrics = found.metrics
        counted = [1, len(found.tokens), metrics.draft_tokens_accepted, found.off_trunk]
        counted += [metrics.guard_stops, metrics.rounds_foreseen, len(failures)]
        values = {"all": "all", "precision": precision, **setting.values()}
        for place in values.items():
            self.counts[place].update(dict(zip(COLUMNS, counted, strict=True)))
        self.failures += failures

    @property
    def total(self) -> Counter[str]:
        """What was counted of all texts."""
        return self.counts["all", "all"]

    def table(self) -> str:
        """A table in Markdown, values in the order in which they were met within a factor."""
        lines = [f"| {' | '.join(('', '', *COLUMNS))} |", "|---|---" + "|---:" * len(COLUMNS) + "|"]
        for factor in dict.fromkeys(factor for factor, _ in self.counts):
            for value in sorted(value for known, value in self.counts if known == factor):
                counted = self.counts[factor, value]
                cells = [factor, value, *(f"{counted[column]:,}" for column in COLUMNS)]
                lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


def prompts(folder: Path, file: Path) -> list[list[int]]:
    """The first turn of every prompt in `file` by the bundle's chat template."""
    text = Text.load(folder)
    return [
        text.encode_chat([{"role": "user", "content": prompt.turns[0]}])
        for prompt in load_prompts(file)
    ]


def check(
    pair: Pair,
    precision: str,
    settings: Iterable[Setting],
    questions: Sequence[list[int]],
    tokens: int,
    tally: Tally,
) -> None:
    """Write a text in each setting; print what differs, and now and then how far it is."""
    started = reported = time.perf_counter()
    for number, setting in enumerate(settings):
        place = number % len(questions)
        found, failures = pair.check(questions[place], setting, SEED + place, tokens)
        failures = [f"{precision}, prompt {place}, {setting}: {each}" for each in failures]
        for failure in failures:
            print(failure, flush=True)
        tally.add(precision, setting, found, failures)
        if (now := time.perf_counter()) > reported + REPORT_S:
            reported = now
            print(f"{precision}: {number + 1} texts in {now - started:.0f} s", flush=True)


def share_of(text: str) -> tuple[int, int]:
    """From "i/n": the i-th of n parts, counted from 1."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no share like 1/20")
    return int(part), int(parts)


def main() -> int:
    """Check a share of the settings; 0 when everything was equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-135m", help="recipe, bundle or GGUF")
    parser.add_argument("--tokens", type=int, default=16, help="per text (16)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="lines of JSON with turns")
    parser.add_argument("--precision", nargs="+", default=["int8", "fp32"])
    parser.add_argument("--pairwise", action="store_true", help="few settings, all pairs of values")
    parser.add_argument("--share", type=share_of, default=(1, 1), help="the i-th of n parts (1/1)")
    options = parser.parse_args()

    folder = locate_bundle(options.model, cache_dir=None, offline=False, progress=print)
    questions = prompts(folder, options.prompts)
    settings = by_pairs() if options.pairwise else every()
    part, parts = options.share
    chosen, tally = settings[part - 1 :: parts], Tally()
    print(f"{len(chosen)} of {len(settings)} settings", flush=True)
    for precision in options.precision:
        pair = Pair(folder, precision)
        check(pair, precision, chosen, questions, options.tokens, tally)
        pair.close()
    print(tally.table())
    counted = {"settings": len(chosen), "of": len(settings), **tally.total}
    print(json.dumps({**counted, "differences": tally.failures}))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
