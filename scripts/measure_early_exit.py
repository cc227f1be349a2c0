"""Measure what a target's early exit knows of its next token; print tables for docs/early-exit.md.

    python scripts/measure_early_exit.py --model BUNDLE --gguf MODEL.gguf \
        --lenses models/smollm2-135m-lenses.safetensors --out FILE.json

The target writes greedy answers to the six kinds of held-out prompts. Then its layers are computed
in numpy, and the final norm and the head read some of them: how often the token that was written
is among the first, over the whole head and over the draft's short list. Last, the answers are gone
through in rounds of one-pass proposals of the bundle's draft: was the token that ended the round
among the draft's runner-ups there, or the exit's.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from export import gguf_file, lens_file
from runtime import Sampling
from runtime.bundle_files import file_sha256
from runtime.manifest import Manifest
from runtime.providers import usable_cores
from runtime.text import Text
from scripts.draft.texts import OVERALL, Writer, prompts_of_kinds
from scripts.early_exit import rounds, shares
from scripts.measure_draft import markdown


def main() -> None:
    """Measure, print and write."""
    options = _options()
    manifest = Manifest.load(options.model)
    model = gguf_file.read(options.gguf).model
    sha256 = file_sha256(options.gguf)
    lenses = {}
    if options.lenses:
        lenses = lens_file.load(options.lenses, model.geometry, target_sha256=sha256)
    vocabulary = Text.load(manifest.folder).vocabulary
    with Writer(manifest, threads=options.threads) as writer:
        prompts = prompts_of_kinds(options.prompts_per_kind)
        texts = writer.write(prompts, Sampling(), max_new_tokens=options.max_new_tokens)
    texts = [text for text in texts if len(text.tokens) > text.start]
    tokens = sum(len(text.tokens) - text.start for text in texts)
    _say(f"{len(texts)} answers of {tokens} tokens")
    head, ended = rounds.measure(
        manifest, texts, vocabulary=vocabulary, threads=options.threads, say=_say
    )
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
    accepted = float(np.concatenate([each.accepted for each in ended]).mean())
    report = {"model": manifest.name, "answers": len(texts), "tokens": tokens, **found}
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _say(f"{sum(len(each.places) for each in ended)} rounds, {accepted:.2f} accepted in each")
    for kind in found["rounds"] if options.kinds else (OVERALL,):
        for head_row, rows in shares.tables(found, kind):
            print(f"\n{kind}\n\n{markdown(head_row, rows)}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True, help="a bundle with a draft")
    parser.add_argument("--gguf", type=Path, required=True, help="the file it was built from")
    parser.add_argument("--lenses", type=Path, help="a file of tuned lenses (none)")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON to write")
    parser.add_argument("--layers", type=_layers, default=(5, 10, 15, 20, 25), help="5,10,15,…")
    parser.add_argument("--prompts-per-kind", type=int, metavar="N", help="the first N (all)")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="of an answer (96)")
    parser.add_argument("--threads", type=int, default=len(usable_cores()), help="of the graphs")
    parser.add_argument("--kinds", action="store_true", help="print the tables of each kind too")
    return parser.parse_args()


def _layers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
