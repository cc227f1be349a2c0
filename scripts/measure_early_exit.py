"""Measure what a target's early exit knows and costs; print tables for docs/early-exit.md.

    python scripts/measure_early_exit.py shares --model BUNDLE --out FILE.json \
        --gguf MODEL.gguf --lenses models/smollm2-135m-lenses.safetensors
    python scripts/measure_early_exit.py hypotheses --model BUNDLE --out FILE.json
    python scripts/measure_early_exit.py cost --model BUNDLE --out FILE.json

The target writes greedy answers to the six kinds of held-out prompts, and these are gone through in
rounds of one-pass proposals of the bundle's draft.

shares: the target's layers are computed in numpy, and the final norm and the head read some of
them: how often the token that was written is among the first, over the whole head and over the
draft's short list; and, at the place where a round ended, whether its token was among the draft's
runner-ups or the exit's.
hypotheses: with the graphs of a bundle that has an early exit, how often a round's outcome, place
and token, is among the likeliest few by the draft, by the exit and by both.
cost: no texts, but the time of such a bundle's target in two parts beside the whole one, and of the
exit's head in either thread. Leave the machine alone then.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from export import gguf_file, lens_file
from runtime import Sampling
from runtime.bundle_files import file_sha256
from runtime.manifest import Manifest
from runtime.providers import usable_cores
from runtime.text import Text
from scripts.draft.texts import OVERALL, Tokens, Writer, Written, prompts_of_kinds
from scripts.early_exit import cost, likeliest, rounds, shares
from scripts.early_exit.rounds import Rounds
from scripts.measure_draft import markdown

Table = tuple[Sequence[str], Iterable[Sequence[str]]]
Tables = Callable[[str], Iterable[Table]]  # of a kind


def main() -> None:
    """Measure, write and print."""
    options = _options()
    manifest = Manifest.load(options.model)
    report: Any
    if options.what == "cost":
        counts = range(1, options.threads + 1)
        report = cost.measure(manifest, threads=counts, repeats=options.repeats, say=_say)
        tables: list[tuple[str, Sequence[str], Iterable[Sequence[str]]]]
        tables = [("", *cost.table(report))]
    else:
        measured = _shares if options.what == "shares" else _hypotheses
        report, by_kind = measured(manifest, options, *_texts(manifest, options))
        kinds = report["rounds"] if options.kinds else (OVERALL,)
        tables = [(f"{kind}\n\n", *table) for kind in kinds for table in by_kind(kind)]
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for title, head, rows in tables:
        print(f"\n{title}{markdown(head, rows)}", flush=True)


def _texts(
    manifest: Manifest, options: argparse.Namespace
) -> tuple[list[Written], Tokens, list[Rounds]]:
    """The answers, the tokens that the draft can name, and the rounds of each answer."""
    with Writer(manifest, threads=options.threads) as writer:
        prompts = prompts_of_kinds(options.prompts_per_kind)
        texts = writer.write(prompts, Sampling(), max_new_tokens=options.max_new_tokens)
    texts = [text for text in texts if len(text.tokens) > text.start]
    tokens = sum(len(text.tokens) - text.start for text in texts)
    _say(f"{len(texts)} answers of {tokens} tokens")
    vocabulary = Text.load(manifest.folder).vocabulary
    settings: dict[str, Any] = {"vocabulary": vocabulary, "threads": options.threads, "say": _say}
    return texts, *rounds.measure(manifest, texts, **settings)


def _shares(
    manifest: Manifest,
    options: argparse.Namespace,
    texts: Sequence[Written],
    head: Tokens,
    ended: Sequence[Rounds],
) -> tuple[dict[str, Any], Tables]:
    if options.gguf is None:
        raise SystemExit("shares needs --gguf: layers are computed from the model's file.")
    model, lenses = gguf_file.read(options.gguf).model, {}
    if options.lenses:
        sha256 = file_sha256(options.gguf)
        lenses = lens_file.load(options.lenses, model.geometry, target_sha256=sha256)
    vocabulary = Text.load(manifest.folder).vocabulary
    found = shares.measure(
        model,
        lenses,
        options.layers,
        texts,
        head=head,
        vocabulary=vocabulary,
        rounds=ended,
        say=_say,
    )
    return {"model": manifest.name, **found}, lambda kind: shares.tables(found, kind)


def _hypotheses(
    manifest: Manifest,
    options: argparse.Namespace,
    texts: Sequence[Written],
    _head: Tokens,
    ended: Sequence[Rounds],
) -> tuple[dict[str, Any], Tables]:
    vocabulary = Text.load(manifest.folder).vocabulary
    found = likeliest.measure(
        manifest, texts, ended, vocabulary=vocabulary, threads=options.threads, say=_say
    )
    report = {
        "model": manifest.name,
        "early_exit_layer": manifest.target.early_exit_layer,
        "rounds": shares.lengths(texts, ended),
        "hypotheses": found,
    }
    return report, lambda kind: [likeliest.table(found, kind)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("shares", "hypotheses", "cost"))
    parser.add_argument("-m", "--model", type=Path, required=True, help="a bundle with a draft")
    parser.add_argument("--gguf", type=Path, help="the file it was built from, for shares")
    parser.add_argument("--lenses", type=Path, help="a file of tuned lenses (none)")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON to write")
    parser.add_argument("--layers", type=_layers, default=(5, 10, 15, 20, 25), help="5,10,15,…")
    parser.add_argument("--prompts-per-kind", type=int, metavar="N", help="the first N (all)")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="of an answer (96)")
    parser.add_argument("--threads", type=int, default=len(usable_cores()), help="of the graphs")
    parser.add_argument("--repeats", type=int, default=81, help="of every timed call (81)")
    parser.add_argument("--kinds", action="store_true", help="print the tables of each kind too")
    return parser.parse_args()


def _layers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
