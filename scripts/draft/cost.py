"""What a pass of the draft costs beside a call of the target, all in turn on the same text."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from runtime.draft_model import draft_role, open_draft, tokens_per_pass
from runtime.errors import BundleError, ProviderError
from runtime.flavours import choose_graph
from runtime.manifest import Manifest
from runtime.prompts import load_prompts, prompt_folder
from runtime.session import GraphSession
from runtime.text import Text
from scripts.draft.models import context_of, open_target
from scripts.draft.texts import Tokens

LENGTH = 256  # tokens that are cached
ROWS = 5  # of the target's call that verifies four tokens
WARM_UP = 3
RUNS = (("CPU", 1), ("CPU", 2), ("OpenVINO", 1), ("OpenVINO", 2))

Call = Callable[[], object]


def measure(
    manifest: Manifest, *, repeats: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Medians in ms for each provider of the draft and number of threads.

    Where the draft cannot run there, `error` says why.
    """
    found = []
    for provider, threads in RUNS:
        try:
            figures = _beside(manifest, provider, threads, repeats)
        except (ProviderError, BundleError) as error:
            figures = {"error": str(error)}
        found.append({"provider": provider, "threads": threads, **figures})
        say(f"cost: draft on {provider}, {threads} threads")
    return found


def _beside(manifest: Manifest, provider: str, threads: int, repeats: int) -> dict[str, Any]:
    """Idle threads sleep, as those of a pair do."""
    draft, _ = open_draft(
        manifest,
        provider=provider,
        threads=threads,
        context=context_of(manifest),
        sharing="at once",
    )
    target = open_target(manifest, threads=threads, sharing="at once")
    per_pass = tokens_per_pass(manifest)
    graph = choose_graph(manifest, draft_role(manifest), provider)
    text = _text(manifest, LENGTH + max(per_pass, ROWS))
    times = medians_ms(calls(draft, target, text, per_pass), repeats=repeats)
    return {"graph": f"{graph.flavour}-{graph.precision}", "tokens_per_pass": per_pass, **times}


def _text(manifest: Manifest, length: int) -> Tokens:
    """The first tokens of a prompt set, [length] int64."""
    texts = [prompt.turns[0] for prompt in load_prompts(prompt_folder() / "rag.jsonl")]
    return np.array(Text.load(manifest.folder).encode("\n".join(texts))[:length], np.int64)


def calls(
    draft: GraphSession[Any], target: GraphSession[Any], text: Tokens, per_pass: int
) -> dict[str, Call]:
    """What is timed: each finds the same tokens in the cache, and feeds some of the last of `text`.

    A pass of k feeds one of them and the masks.
    """
    cached = len(text) - max(per_pass, ROWS)
    first = cached + 1
    masks = draft.vocabulary + np.arange(per_pass - 1)

    def several() -> None:
        for end in range(first, first + per_pass):
            draft.extend(text[:end])

    packed = np.append(text[:first], masks)
    return {
        "target_1_row": partial(target.extend, text[:first]),
        "draft_pass_of_1": partial(draft.extend, text[:first]),
        f"target_{ROWS}_rows": partial(target.extend, text[: cached + ROWS], num_logits=ROWS),
        "draft_pass_of_k": partial(draft.extend, packed, num_logits=per_pass),
        "draft_k_passes_of_1": several,
    }


def medians_ms(
    timed: Mapping[str, Call], *, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median milliseconds of each call, all made in turn `repeats` times."""
    spent: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(WARM_UP + repeats):
        for name, call in timed.items():
            started = clock()
            call()
            if turn >= WARM_UP:
                spent[name].append(1000 * (clock() - started))
    return {name: statistics.median(values) for name, values in spent.items()}


def tables(
    found: Sequence[Mapping[str, Any]],
) -> Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Head and rows of the table."""
    yield (
        (
            "draft on",
            "threads",
            "target, 1 row",
            f"target, {ROWS} rows",
            "draft, a pass of 1",
            "draft, a pass of k",
            "draft, k passes of 1",
        ),
        [(of["provider"], str(of["threads"]), *_cells(of)) for of in found],
    )


def _cells(of: Mapping[str, Any]) -> list[str]:
    names = ("target_1_row", f"target_{ROWS}_rows", "draft_pass_of_1", "draft_pass_of_k")
    return [f"{of[name]:.1f}" if name in of else "–" for name in (*names, "draft_k_passes_of_1")]
