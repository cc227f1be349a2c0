"""Compare emulated devices that really wait with replays on the virtual clock.

    python scripts/check_emulator.py --model BUNDLE --records FOLDER

A session on emulated devices answers prompts, computing and waiting; the same prompts' records
(`scripts/record_answers.py`, of the same bundle) are replayed on the virtual clock, with the
overhead that the session was measured to have. The time after the first token is compared.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime import Sampling, Session, open_session
from runtime.manifest import Manifest
from runtime.metrics import Metrics
from runtime.profiles import Figure, load_profile
from runtime.strategy import Mirror, Speculative
from runtime.text import Text
from runtime.virtual_time import VirtualTiming
from scripts.draft.texts import prompts_of_kinds
from scripts.emulated.records import Record, load
from scripts.emulated.replay import MakeStrategy, replay

PROFILES = ("lunar-lake-igpu-npu", "dual-desktop-gpu")
TIME_SCALES = (4.0, 60.0)  # with room for what else a machine does
STRATEGIES = ("autoregressive", "speculative", "mirror")
CLEARING = "."  # has no beginning in common with a prompt in chat form


def main() -> None:
    """Print a line for each profile and strategy, and then how far apart they are at most."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True, help="bundle")
    parser.add_argument("--records", type=Path, required=True, help="folder of its records")
    parser.add_argument("--answers", type=int, default=3, help="how many (3)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of each (64)")
    parser.add_argument(
        "--time-scales", type=float, nargs=len(PROFILES), default=TIME_SCALES, help="(4 60)"
    )
    options = parser.parse_args()
    records = load(options.records / "answers-0.npz")
    encode = Text.load(Manifest.load(options.model).folder).encode_chat
    chosen = list(islice(_recorded(records, encode), options.answers))
    apart = []
    print("| emulated | strategy | real s | virtual s | real / virtual | overhead ms | void |")
    print("|---|---|---|---|---|---|---|")
    for name, scale in zip(PROFILES, options.time_scales, strict=True):
        for strategy in STRATEGIES:
            with open_session(
                options.model, strategy=strategy, emulate=name, time_scale=scale, progress=_say
            ) as session:
                real = list(_answers(session, chosen, options.max_new_tokens))
                overhead = median(each.overheads_s[n] for each in real for n in range(each.rounds))
                profile = replace(
                    load_profile(name), overhead_ms=Figure(1000 * overhead, derived="measured")
                )
                make = _maker(session.settings)
            cut = [record.cut(options.max_new_tokens) for _, record in chosen]
            virtual = [replay(record, VirtualTiming(profile), make).metrics for record in cut]
            took, modelled = _seconds(real), _seconds(virtual)
            apart.append(abs(took / modelled - 1))
            void = sum(each.void_runs for each in real)
            print(
                f"| {name} | {strategy} | {took:.3f} | {modelled:.3f} | {took / modelled:.4f} | "
                f"{1000 * overhead:.3f} | {void} |",
                flush=True,
            )
    print(f"\nAt most {100 * max(apart):.2f} % apart.")


def _recorded(
    records: Sequence[Record], encode: Callable[[list[Mapping[str, str]]], Sequence[int]]
) -> Iterator[tuple[str, Record]]:
    """First questions whose answers are among the records, with these."""
    for prompt in prompts_of_kinds(None):
        asked = list(encode([{"role": "user", "content": prompt.turns[0]}]))
        for record in records:
            if record.prompt.tolist() == asked:
                yield prompt.turns[0], record


def _maker(settings: Mapping[str, Any]) -> MakeStrategy | None:
    """What makes the strategy that a session has."""
    count = settings["num_draft_tokens"]
    return {
        "autoregressive": None,
        "speculative": partial(Speculative, num_draft_tokens=count),
        "mirror": partial(
            Mirror, num_draft_tokens=count, num_hypotheses=settings["num_hypotheses"]
        ),
    }[settings["strategy"]]


def _seconds(answers: Sequence[Metrics]) -> float:
    """Seconds after the first token, of all of them."""
    return sum((each.ended or 0.0) - (each.first_token or 0.0) for each in answers)


def _answers(
    session: Session, chosen: list[tuple[str, Record]], max_new_tokens: int
) -> Iterator[Metrics]:
    for question, record in chosen:
        for _ in session.generate(CLEARING, Sampling(), max_new_tokens=4):
            pass
        answer = session.generate(
            [{"role": "user", "content": question}], Sampling(), max_new_tokens=max_new_tokens
        )
        for _ in answer:
            pass
        if answer.tokens != record.answer[: len(answer.tokens)].tolist():
            raise SystemExit("The records are of another bundle: the answers differ.")
        yield answer.metrics


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
