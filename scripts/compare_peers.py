"""Decode speed and agreement with float32 beside onnxruntime-genai, on the same weights.

    python scripts/compare_peers.py --work FOLDER [--gguf MODEL.gguf] [--threads 1 2]

Makes throw-away environments, exports and a bundle in the work folder (about 5 GB; a second run
takes what is complete), then starts one process for each engine and precision. All decode the same
prompt greedily, one after the other, round by round, so that a change in the machine's speed meets
all of them; a ratio is the median of the rounds' own ratios. Agreement: float32 writes the answers
to a set of questions, and each engine, fed the same tokens, says what it would have written.
Prints a table and, as the last line, all numbers as JSON.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.peers.parts import GENAI, GENAI_PRECISIONS, ROOT, Parts

RECIPE = "smollm2-135m"
OURS, OUR_FLOAT, PEER = "mirror int8", "mirror fp32", "genai int8"
SETTLE_S = 0.1  # after a run an engine's idle threads spin for a while, on the next one's cores
SPEED_PROMPT = "Write a long story about a lighthouse keeper."
QUESTIONS = (
    "What is the capital of France? Tell me about its history.",
    "Explain to a child why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Give me a recipe for pancakes, step by step.",
    "List ten animals and say one thing about each.",
    "Translate into French and explain: The weather is nice today.",
    "Summarise how a bill becomes a law in the United States.",
    "A train leaves at 9:40 and arrives at 12:05. How long did it travel? Show your steps.",
)


@dataclass(frozen=True, slots=True)
class Engine:
    """How to start one engine: the interpreter and the worker's arguments but the threads."""

    name: str
    python: Path
    arguments: tuple[str, ...]


class Worker:
    """A running engine; a context manager that ends its process."""

    def __init__(self, engine: Engine, threads: int, *, amx: bool) -> None:
        self.engine = engine
        script = ROOT / "scripts" / "peers" / "worker.py"
        flags = ["--threads", str(threads), *([] if amx else ["--without-amx"])]
        self._process = subprocess.Popen(
            [str(engine.python), str(script), *engine.arguments, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer; SystemExit when the process has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says it
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.engine.name} died at {request['do']!r}; its words are above")
        return dict(json.loads(line))


def question(worker: Worker, text: str) -> dict[str, Any]:
    """The part of a request that holds a prompt, as messages and as tokens; `worker` is ours."""
    messages = [{"role": "user", "content": text}]
    return {"messages": messages} | worker.ask(do="encode", messages=messages)


def measure_speed(
    workers: Sequence[Worker], *, new_tokens: int, repeats: int
) -> dict[str, list[float]]:
    """Tokens per second of each engine in each round; engines take turns at being first."""
    prompt = question(workers[0], SPEED_PROMPT)
    speeds: dict[str, list[float]] = {worker.engine.name: [] for worker in workers}
    for worker in workers:
        worker.ask(do="decode", new_tokens=8, **prompt)
    for turn in range(repeats):
        first = turn % len(workers)
        for worker in [*workers[first:], *workers[:first]]:
            time.sleep(SETTLE_S)
            answer = worker.ask(do="decode", new_tokens=new_tokens, **prompt)
            if len(answer["tokens"]) != new_tokens:
                raise SystemExit(
                    f"{worker.engine.name} ended after {len(answer['tokens'])} of {new_tokens} "
                    "tokens, so speeds cannot be compared; lower --new-tokens"
                )
            speeds[worker.engine.name].append(answer["tokens_per_s"])
    return speeds


def measure_agreement(workers: Sequence[Worker], new_tokens: int) -> tuple[dict[str, float], int]:
    """The share of float32's greedy tokens that each engine chooses too, and how many there are."""
    reference = next(worker for worker in workers if worker.engine.name == OUR_FLOAT)
    equal = {worker.engine.name: 0 for worker in workers}
    total = 0
    for text in QUESTIONS:
        prompt = question(reference, text)
        tokens = reference.ask(do="decode", new_tokens=new_tokens, **prompt)["tokens"]
        total += len(tokens)
        for worker in workers:
            choices = worker.ask(do="follow", prompt=prompt["prompt"], text=tokens)["choices"]
            equal[worker.engine.name] += sum(map(int.__eq__, choices, tokens))
    return {name: count / total for name, count in equal.items()}, total


def ratio(speeds: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """The median over the rounds of one engine's speed by another's."""
    return statistics.median(a / b for a, b in zip(speeds[name], speeds[base], strict=True))


def engines(parts: Parts, gguf: Path) -> list[Engine]:
    """Every engine to compare, ours first, with all they need made."""
    bundle, exports = parts.bundle(gguf), parts.genai_exports(gguf)
    ours, theirs = parts.mirror_python(), parts.genai_python()
    return [
        Engine(OURS, ours, ("mirror", str(bundle), "--precision", "int8")),
        Engine(OUR_FLOAT, ours, ("mirror", str(bundle), "--precision", "fp32")),
        *(Engine(f"genai {p}", theirs, ("genai", str(exports[p]))) for p in GENAI_PRECISIONS),
    ]


def print_table(
    speeds: Mapping[int, Mapping[str, Sequence[float]]], agreement: Mapping[str, float]
) -> None:
    """Print one row for each thread count and engine."""
    print(f"| threads | engine | tokens/s | lowest – highest | × {PEER} | × {OUR_FLOAT} | agrees |")
    print("|---|---|---|---|---|---|---|")
    for threads, by_name in speeds.items():
        for name, values in by_name.items():
            print(
                f"| {threads} | {name} | {statistics.median(values):.1f} "
                f"| {min(values):.1f} – {max(values):.1f} | {ratio(by_name, name, PEER):.2f} "
                f"| {ratio(by_name, name, OUR_FLOAT):.2f} | {agreement[name]:.3f} |"
            )


def main() -> None:
    """Prepare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for all that is made")
    parser.add_argument("--gguf", type=Path, help=f"the weights; default: those of {RECIPE}")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--new-tokens", type=int, default=128, help="in one timed run")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of timed runs")
    parser.add_argument("--agreement-tokens", type=int, default=96, help="for each question")
    parser.add_argument(
        "--without-amx",
        action="store_true",
        help="deny every engine the matrix unit that servers have, and phones and laptops lack",
    )
    options = parser.parse_args()
    parts = Parts(options.work)
    gguf = options.gguf.absolute() if options.gguf else parts.gguf_of_recipe(RECIPE)
    compared = engines(parts, gguf)
    speeds: dict[int, dict[str, list[float]]] = {}
    agreement: dict[str, float] = {}
    total = 0
    for threads in options.threads:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(Worker(engine, threads, amx=not options.without_amx))
                for engine in compared
            ]
            speeds[threads] = measure_speed(
                workers, new_tokens=options.new_tokens, repeats=options.repeats
            )
            if not agreement:
                agreement, total = measure_agreement(workers, options.agreement_tokens)
    print(f"{options.repeats} rounds of {options.new_tokens} tokens; agreement on {total} tokens")
    print_table(speeds, agreement)
    summary = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "amx": not options.without_amx,
        "peer": list(GENAI),
        "new_tokens": options.new_tokens,
        "tokens_per_s": speeds,
        "ratio_to_genai_int8": {t: ratio(s, OURS, PEER) for t, s in speeds.items()},
        "ratio_to_our_fp32": {t: ratio(s, OURS, OUR_FLOAT) for t, s in speeds.items()},
        "agreement": agreement,
        "agreement_tokens": total,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
