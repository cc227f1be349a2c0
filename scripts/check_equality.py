"""Check that every strategy, draft and number of draft tokens writes the same text.

For each prompt, temperature and precision the autoregressive engine writes the text alone, with
all threads; then every other engine must give the same tokens from bit-equal logits. Prints each
difference as it is met, a table, and a last line of JSON; exits with 1 when anything differed.

    python scripts/check_equality.py --model smollm2-135m --tokens 24
"""

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.draft_model import load_drafter
from runtime.drafter import Drafter, LookupDrafter
from runtime.engine import Target, decode
from runtime.fused import FusedSession
from runtime.hypotheses import SOURCES
from runtime.locate import locate_bundle
from runtime.manifest import Manifest
from runtime.metrics import Metrics
from runtime.models import USUAL_HYPOTHESES
from runtime.prompts import load_prompts, prompt_folder
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive, Mirror, Speculative, Strategy
from runtime.text import Text
from runtime.worker import DraftWorker

PROMPTS = prompt_folder() / "forty.jsonl"
# A draft model with as many tokens a pass as it was trained for, and with one.
MODELS = {"model": None, "model one by one": 1}
MIRRORS: dict[str, dict[str, Any]] = {
    "mirror": {"num_hypotheses": USUAL_HYPOTHESES},
    "mirror of every source, bare after a miss": {
        "num_hypotheses": 2 * USUAL_HYPOTHESES, "sources": SOURCES, "redraft": False,
    },
}  # fmt: skip
CONTEXT = 512
SEED = 20


@dataclass(frozen=True, slots=True)
class Written:
    """A text: its tokens, and a digest of the logits that chose each of them."""

    tokens: tuple[int, ...]
    digests: tuple[str, ...]
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to write a text."""

    strategy: str
    draft: str
    num_draft_tokens: int

    def __str__(self) -> str:
        return f"{self.strategy} {self.draft} {self.num_draft_tokens}"


ALONE = Setting("autoregressive", "none", 0)
OTHERS = tuple(
    Setting(*factors)
    for factors in itertools.product(("speculative", *MIRRORS), (*MODELS, "lookup"), (1, 4, 8))
)


class Recorder:
    """A target that notes, for each place of the text, a digest of the last logits given for it.

    It runs every call `repeats` times, as a larger model would take longer.
    """

    def __init__(self, target: Target, *, repeats: int = 1) -> None:
        self.context = target.context
        self.digests: dict[int, str] = {}
        self._target = target
        self._repeats = repeats

    def prefill(self, tokens: NDArray[np.int64]) -> bool:
        """The target's own progress."""
        return self._target.prefill(tokens)

    def extend(
        self, tokens: NDArray[np.int64], *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        """The target's own answer."""
        for _ in range(self._repeats):
            logits = self._target.extend(tokens, num_logits=num_logits, branches=branches)
        for place, row in enumerate(logits[:num_logits], len(tokens) - num_logits + 1):
            self.digests[place] = hashlib.sha256(row.tobytes()).hexdigest()
        return logits


class Pair:
    """A bundle's target, once alone with all threads and once beside a draft, and every draft."""

    def __init__(self, folder: Path, precision: str) -> None:
        manifest = Manifest.load(folder)
        geometry, path = manifest.target.geometry, manifest.graph_path("target", precision)
        self._alone = FusedSession(path, geometry, threads=2, context=CONTEXT)
        self._beside = FusedSession(path, geometry, threads=1, context=CONTEXT, sharing="at once")
        size = geometry.vocabulary
        settings: dict[str, Any] = {
            "vocabulary": size,
            "threads": 1,
            "context": CONTEXT,
            "sharing": "at once",
        }
        loads: dict[str, Callable[[], Drafter]] = {
            draft: partial(load_drafter, manifest, per_pass=per_pass, **settings)
            for draft, per_pass in MODELS.items()
        }
        self._workers = {
            draft: DraftWorker(load, context=CONTEXT, vocabulary=size)
            for draft, load in (loads | {"lookup": LookupDrafter}).items()
        }
        self._ends = frozenset(manifest.target.end_tokens)

    def write(
        self,
        prompt: list[int],
        setting: Setting,
        sampling: Sampling,
        count: int,
        *,
        repeats: int = 1,
    ) -> Written:
        """Write `count` tokens after `prompt`, nothing of it cached before; see Recorder."""
        session = self._alone if setting == ALONE else self._beside
        session.crop(0)
        target = Recorder(session, repeats=repeats)
        metrics = Metrics(setting.strategy, sampling.seed, {}, prompt_tokens=len(prompt))
        blocks = decode(
            target,
            self._strategy(setting),
            np.array(prompt, np.int64),
            sampling,
            max_new_tokens=count,
            end_tokens=self._ends,
            metrics=metrics,
            cancelled=lambda: False,
        )
        tokens = tuple(token for block in blocks for token in block)
        if setting != ALONE:
            metrics.draft_error = self._workers[setting.draft].error
        places = range(len(prompt), len(prompt) + len(tokens))
        return Written(tokens, tuple(target.digests[place] for place in places), metrics)

    def close(self) -> None:
        """End the drafts' threads."""
        for worker in self._workers.values():
            worker.close()

    def _strategy(self, setting: Setting) -> Strategy:
        if setting == ALONE:
            return Autoregressive()
        worker, count = self._workers[setting.draft], setting.num_draft_tokens
        if setting.strategy == "speculative":
            return Speculative(worker, num_draft_tokens=count)
        return Mirror(worker, num_draft_tokens=count, **MIRRORS[setting.strategy])


def differences(expected: Written, found: Written) -> Iterator[str]:
    """What two texts that should be equal differ in."""
    if found.metrics.draft_error is not None:
        yield f"the draft failed: {found.metrics.draft_error}"
    if expected.tokens != found.tokens:
        yield f"tokens {found.tokens} where alone it wrote {expected.tokens}"
    elif expected.digests != found.digests:
        pairs = zip(expected.digests, found.digests, strict=True)
        place = next(i for i, (one, other) in enumerate(pairs) if one != other)
        yield f"the logits of token {place} have other bits"


def prompts(folder: Path, file: Path) -> list[list[int]]:
    """The first turn of every prompt in `file` by the bundle's chat template."""
    text = Text.load(folder)
    return [
        text.encode_chat([{"role": "user", "content": prompt.turns[0]}])
        for prompt in load_prompts(file)
    ]


def main() -> int:
    """Run the whole matrix; 0 when everything was equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-135m", help="recipe, bundle or GGUF")
    parser.add_argument("--tokens", type=int, default=24, help="per text (24)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="lines of JSON with turns")
    parser.add_argument("--precision", nargs="+", default=["int8", "fp32"])
    parser.add_argument("--temperature", nargs="+", type=float, default=[0.0, 0.7, 1.2])
    options = parser.parse_args()

    folder = locate_bundle(options.model, cache_dir=None, offline=False, progress=print)
    texts, tokens, failures = 0, 0, []
    for precision in options.precision:
        pair = Pair(folder, precision)
        for number, prompt in enumerate(prompts(folder, options.prompts)):
            for temperature in options.temperature:
                sampling = Sampling(temperature=temperature, seed=SEED + number)
                expected = pair.write(prompt, ALONE, sampling, options.tokens)
                for setting in OTHERS:
                    found = pair.write(prompt, setting, sampling, options.tokens)
                    texts, tokens = texts + 1, tokens + len(found.tokens)
                    for difference in differences(expected, found):
                        where = f"{precision}, prompt {number}, T={temperature}, {setting}"
                        failures.append(f"{where}: {difference}")
                        print(failures[-1], flush=True)
            print(f"{precision} prompt {number}: {texts} texts so far", flush=True)
        pair.close()
    print(f"{texts} texts, {tokens} tokens, {len(failures)} differences")
    print(json.dumps({"texts": texts, "tokens": tokens, "differences": failures}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
