"""Measure how often each graph of a bundle chooses the token that float32 chooses.

The float32 graph writes greedy text (many sequences together), then every graph reads the same
text and its most likely token is compared at each place. Prints a table and a last line of JSON.

    python scripts/measure_agreement.py --model smollm2-135m --tokens 5000
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from runtime import Sampling, open_session
from runtime.draft_model import load_head_tokens
from runtime.flavours import open_graph
from runtime.locate import locate_bundle
from runtime.manifest import Graph, Manifest, Role
from runtime.prompts import load_prompts, prompt_folder
from runtime.providers import usable_cores
from runtime.text import Text

PROMPTS = prompt_folder() / "forty.jsonl"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-m", "--model", default="smollm2-135m", help="recipe, bundle or GGUF")
    parser.add_argument("--tokens", type=int, default=5000, help="compare at least so many (5000)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="lines of JSON with turns")
    options = parser.parse_args()

    folder = locate_bundle(options.model, cache_dir=None, offline=False, progress=print)
    manifest = Manifest.load(folder)
    questions = [prompt.turns[0] for prompt in load_prompts(options.prompts)]
    each = -(-options.tokens // len(questions))
    texts = _write(folder, questions, each)
    counted = sum(len(text) - start for start, text in texts)
    print(f"{counted} greedy tokens of float32 on {len(texts)} prompts")
    results = {}
    for name, role in (("target", manifest.target), ("draft", manifest.draft)):
        if role is None:
            continue
        for key, graph in role.graphs.items():
            share, largest = _compare(folder, manifest.target, role, graph, texts)
            results[f"{name}/{key}"] = {"agreement": share, "largest_logit_difference": largest}
            print(f"{name}/{key:13} agreement {share:.4f}   largest difference {largest:.3f}")
    print(json.dumps({"model": manifest.name, "tokens": counted, "graphs": results}))


def _write(folder: Path, questions: list[str], each: int) -> list[tuple[int, np.ndarray]]:
    """Greedy texts of float32 as (where the answer starts, tokens [n] int64).

    Answers that end early are followed by further ones, to other prompts, until there are enough.
    """
    encode = Text.load(folder).encode_chat
    texts: list[tuple[int, np.ndarray]] = []
    with open_session(folder, precision="fp32", draft="none") as session:
        prompts = [[{"role": "user", "content": question}] for question in questions]
        missing, wanted = each * len(questions), each
        while missing > 0:
            answers = session.generate_many(prompts, Sampling(), max_new_tokens=wanted)
            for prompt, answer in zip(prompts, answers, strict=True):
                start = encode(prompt)
                texts.append((len(start), np.array([*start, *answer.tokens], np.int64)))
                missing -= len(answer.tokens)
            prompts = [
                [
                    *prompt,
                    {"role": "assistant", "content": answer.text},
                    {"role": "user", "content": "Tell me more."},
                ]
                for prompt, answer in zip(prompts, answers, strict=True)
            ]
    return texts


def _compare(
    folder: Path, target: Role, role: Role, graph: Graph, texts: list[tuple[int, np.ndarray]]
) -> tuple[float, float]:
    """The share of equal greedy tokens and the largest logit difference from float32's graph.

    The difference is that of the tokens which the role's head is about.
    """
    longest = max(len(text) for _, text in texts)
    settings: dict[str, Any] = {"threads": len(usable_cores()), "context": longest}
    head = np.arange(role.geometry.vocabulary)
    if role.head_tokens is not None:
        head = load_head_tokens(folder / role.head_tokens, role.geometry.vocabulary)
    exact = open_graph(folder, target.graphs["fused-fp32"], target.geometry, **settings)
    other = open_graph(folder, graph, role.geometry, columns=len(head), **settings)
    equal, count, largest = 0, 0, 0.0
    for start, text in texts:
        rows = len(text) - start
        if rows < 1 or len(text) > other.context:
            continue
        expected = exact.extend(text[:-1], num_logits=rows)
        found = other.extend(text[:-1], num_logits=rows)
        equal += int((expected.argmax(axis=1) == head[found.argmax(axis=1)]).sum())
        largest = max(largest, float(np.abs(expected[:, head] - found).max()))
        count += rows
    return equal / count, largest


if __name__ == "__main__":
    main()
