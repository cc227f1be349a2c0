"""Record a target's answers to the held-out prompts and what its draft guesses at every place.

    python scripts/record_answers.py --model BUNDLE --out FOLDER

One file for each temperature, 0 and 0.8, of the six kinds of prompt; `scripts/emulated_table.py`,
`scripts/never_slower.py` and `scripts/check_emulator.py` replay them on emulated devices. Kinds
whose answers are short are asked again at 0.8 with further seeds, until there are
`--tokens-per-kind`.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime import Sampling
from runtime.draft_model import load_drafter, tokens_per_pass
from runtime.locate import locate_bundle
from runtime.manifest import Manifest
from runtime.providers import usable_cores
from runtime.text import Text
from scripts.draft.models import context_of
from scripts.draft.texts import Writer, prompts_of_kinds
from scripts.emulated.records import Record, record, save

TEMPERATURES = (0.0, 0.8)
SEED = 1
MOST_SEEDS = 16


def main() -> None:
    """Write, then guess; a file for each temperature."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="recipe, bundle or GGUF")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--prompts-per-kind", type=int, metavar="N", help="the first N (all)")
    parser.add_argument("--tokens-per-kind", type=int, metavar="N", default=0, help="at least (0)")
    parser.add_argument("--max-new-tokens", type=int, default=160, help="of an answer (160)")
    parser.add_argument("--threads", type=int, default=len(usable_cores()))
    options = parser.parse_args()
    folder = locate_bundle(options.model, cache_dir=None, offline=False, progress=_say)
    manifest = Manifest.load(folder)
    prompts = prompts_of_kinds(options.prompts_per_kind)
    options.out.mkdir(parents=True, exist_ok=True)
    drafter = load_drafter(
        manifest,
        vocabulary=Text.load(folder).vocabulary,
        threads=options.threads,
        context=context_of(manifest),
    )
    places, found = tokens_per_pass(manifest), Counter[str]()
    for temperature in TEMPERATURES:
        records: list[Record] = []
        asked, seed = prompts, SEED
        started = time.perf_counter()
        while asked and seed < SEED + MOST_SEEDS:
            sampling = Sampling(temperature=temperature, seed=seed)
            with Writer(manifest, threads=options.threads) as writer:
                texts = writer.write(asked, sampling, max_new_tokens=options.max_new_tokens)
            new = [record(text, drafter, sampling, places=places) for text in texts]
            for each in new:
                found[each.kind] += len(each.answer)
            records += new
            _say(f"temperature {temperature:g}, seed {seed}: {len(records)} answers, {found}")
            short = [each for each in prompts if found[each.category] < options.tokens_per_kind]
            asked, seed = short if temperature else [], seed + 1
        save(options.out / f"answers-{temperature:g}.npz", records)
        _say(f"temperature {temperature:g}: took {time.perf_counter() - started:.0f} s")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
