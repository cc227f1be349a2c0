"""Measure every strategy and draft beside plain decoding, in turn, in one process.

Each turn, every strategy answers the same prompt with the same seed; a ratio is that of the speeds
within one turn, so a machine that slows down for a while slows both sides of it. Prints a table of
medians and a last line of JSON. Leave the machine alone meanwhile.

    python scripts/compare_strategies.py --model smollm2-135m
"""

import argparse
import json
import statistics
from pathlib import Path

from runtime import Sampling, Session, open_session

PROMPTS = Path(__file__).resolve().parent.parent / "models" / "prompts" / "forty.jsonl"
ALONE = ("autoregressive", "none")
PAIRS = (
    ALONE,
    ("speculative", "lookup"),
    ("mirror", "lookup"),
    ("speculative", "model"),
    ("mirror", "model"),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-135m", help="recipe, bundle or GGUF")
    parser.add_argument("--tokens", type=int, default=64, help="per answer (64)")
    parser.add_argument("--every", type=int, default=4, help="take every N-th of 40 prompts (4)")
    parser.add_argument("--category", help="only prompts of this kind, all of them")
    options = parser.parse_args()

    lines = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    if options.category:
        lines = [line for line in lines if line["category"] == options.category]
    else:
        lines = lines[:: options.every]
    sessions = {
        pair: open_session(options.model, strategy=pair[0], draft=pair[1]) for pair in PAIRS
    }
    speeds: dict[tuple[str, str], list[float]] = {pair: [] for pair in PAIRS}
    for pair, session in sessions.items():
        _speed(session, "Hello!", 8)
        print(f"{pair[0]} {pair[1]}: {session.settings['threads']} threads", flush=True)
    for turn, line in enumerate(lines):
        order = PAIRS[turn % len(PAIRS) :] + PAIRS[: turn % len(PAIRS)]
        for pair in order:
            speeds[pair].append(_speed(sessions[pair], line["turns"][0], options.tokens))
    for session in sessions.values():
        session.close()

    results = {}
    for pair in PAIRS:
        ratios = [one / alone for one, alone in zip(speeds[pair], speeds[ALONE], strict=True)]
        results[" ".join(pair)] = {
            "tokens_per_s": statistics.median(speeds[pair]),
            "ratio": statistics.median(ratios),
            "lowest_ratio": min(ratios),
            "highest_ratio": max(ratios),
        }
        print(
            f"{' '.join(pair):24} {statistics.median(speeds[pair]):6.1f} tokens/s   "
            f"{statistics.median(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(json.dumps({"turns": len(lines), "tokens": options.tokens, "strategies": results}))


def _speed(session: Session, question: str, tokens: int) -> float:
    """Tokens/s of an answer after its first token."""
    answer = session.generate(
        [{"role": "user", "content": question}], Sampling(), max_new_tokens=tokens
    )
    for _ in answer:
        pass
    tpot = answer.metrics.to_dict()["tpot_s"]
    return 1 / tpot if tpot else 0.0


if __name__ == "__main__":
    main()
