"""Measure a bundle's draft on the six kinds of held-out prompts; print tables for docs/draft.md.

    python scripts/measure_draft.py --model BUNDLE --out FILE.json

agreement: the share of the target's greedy tokens that the draft, fed the same text, has as its
first choice, or among its first; and its guesses at further places, in one pass and one by one.
acceptance: tokens a round by the engine, for two numbers of draft tokens and two temperatures, with
the target's noise and with other noise, beside prompt lookup.
cost: milliseconds of the draft's passes beside the target's calls; leave the machine alone then.

What all of it is worth in speed, for each kind, the bench says:

    python -m runtime.bench -m BUNDLE --limit 0 --repeats 1 --max-new-tokens 128 \
        --strategies autoregressive,speculative:lookup,speculative:model \
        --num-draft-tokens 4 --threads 2 --draft-threads 2 --json FILE.json
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime import Sampling
from runtime.bench_report import machine
from runtime.draft_model import tokens_per_pass
from runtime.locate import locate_bundle
from runtime.manifest import Manifest
from runtime.providers import usable_cores
from scripts.draft import acceptance, agreement, cost
from scripts.draft.texts import Writer, Written, prompts_of_kinds

PARTS = ("agreement", "acceptance", "cost")


def main() -> None:
    """Measure what is asked for; the file is written anew after each part."""
    options = _options()
    folder = locate_bundle(options.model, cache_dir=None, offline=False, progress=_say)
    manifest = Manifest.load(folder)
    if manifest.draft is None:
        raise SystemExit(f"{folder} has no draft model: build it with one (--draft FILE).")
    report: dict[str, Any] = {
        "model": manifest.name,
        "draft": manifest.draft_source.file if manifest.draft_source else "stand-in",
        "layers": manifest.draft.geometry.layers,
        "tokens_per_pass": tokens_per_pass(manifest),
        "max_new_tokens": options.max_new_tokens,
        "prompts_per_kind": options.prompts_per_kind,
        "machine": machine(),
    }
    texts: dict[float, list[Written]] = {}
    if temperatures := _temperatures(options.parts):
        texts = _write(manifest, temperatures, options)
        report["texts"] = {f"{temperature:g}": len(of) for temperature, of in texts.items()}
    for part in options.parts:
        if part == "agreement":
            found: Any = agreement.measure(manifest, texts[0.0], threads=options.threads, say=_say)
            tables = agreement.tables(found)
        elif part == "acceptance":
            found = acceptance.measure(
                manifest,
                texts,
                max_new_tokens=options.max_new_tokens,
                threads=options.threads,
                say=_say,
            )
            tables = acceptance.tables(found)
        else:
            found = cost.measure(manifest, repeats=options.repeats, say=_say)
            tables = cost.tables(found)
        report[part] = found
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        for head, rows in tables:
            print("\n" + markdown(head, rows), flush=True)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown has it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="recipe, bundle or GGUF")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON to write")
    parser.add_argument("--prompts-per-kind", type=int, metavar="N", help="the first N (all)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of an answer (128)")
    parser.add_argument("--parts", type=_parts, default=PARTS, help=f"({','.join(PARTS)})")
    parser.add_argument("--threads", type=int, default=len(usable_cores()), help="but for cost")
    parser.add_argument("--repeats", type=int, default=61, help="of every timed call (61)")
    return parser.parse_args()


def _parts(text: str) -> tuple[str, ...]:
    asked = text.split(",")
    if unknown := set(asked) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{min(unknown)!r} is none of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in asked)


def _temperatures(parts: Sequence[str]) -> tuple[float, ...]:
    """At which temperatures the target must write for these parts; agreement is of greedy texts."""
    if "acceptance" in parts:
        return acceptance.TEMPERATURES
    return (0.0,) if "agreement" in parts else ()


def _write(
    manifest: Manifest, temperatures: Sequence[float], options: argparse.Namespace
) -> dict[float, list[Written]]:
    prompts = prompts_of_kinds(options.prompts_per_kind)
    texts = {}
    with Writer(manifest, threads=options.threads) as writer:
        for temperature in temperatures:
            sampling = Sampling(temperature=temperature, seed=acceptance.SEED)
            texts[temperature] = writer.write(
                prompts, sampling, max_new_tokens=options.max_new_tokens
            )
            _say(f"{len(texts[temperature])} answers at temperature {temperature:g}")
    return texts


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
