"""How many tokens a round settles, by the engine itself, with a target that replays its answers.

One seed gives one text whatever the draft, so the target need not work again for each setting: the
rounds, what is proposed and what stands are those of a session with the target. The draft has
always read the prompt by the first round, as it has beside a target that takes longer to.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.branches import NO_BRANCHES, Branches
from runtime.draft_model import load_drafter, tokens_per_pass
from runtime.drafter import Drafter, LookupDrafter, Rollout, Start
from runtime.engine import decode
from runtime.errors import DraftError
from runtime.manifest import Manifest
from runtime.metrics import Metrics
from runtime.sampling import Sampling
from runtime.strategy import Speculative
from runtime.text import Text
from runtime.worker import DraftWorker
from scripts.draft.models import context_of
from scripts.draft.texts import Tokens, Written, by_kind

LENGTHS = (4, 8)
TEMPERATURES = (0.0, 0.8)
SEED = 20
OTHER_SEED = 2**40
WAIT_S = 0.001
TIME_LIMIT_S = 60.0
FIGURES = ("rounds", "mean_acceptance_length", "acceptance_rate", "per_place_acceptance")


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to draft; tokens_per_pass is None for prompt lookup."""

    tokens_per_pass: int | None
    shared_noise: bool
    temperature: float
    num_draft_tokens: int

    def __str__(self) -> str:
        """As a table names it."""
        if self.tokens_per_pass is None:
            return "prompt lookup"
        noise = "" if not self.temperature or self.shared_noise else ", noise of its own"
        return f"draft, {self.tokens_per_pass} a pass{noise}"


class OwnNoise:
    """A drafter that chooses by other noise than the target's."""

    def __init__(self, drafter: Drafter) -> None:
        self.source = drafter.source
        self._drafter = drafter

    def catch_up(self, context: Tokens) -> bool:
        """As the drafter itself."""
        return self._drafter.catch_up(context)

    def draft(
        self, text: Tokens, starts: Sequence[Start], count: int, sampling: Sampling
    ) -> Sequence[Rollout]:
        """As the drafter itself with another seed."""
        other = replace(sampling, seed=sampling.seed + OTHER_SEED)
        return self._drafter.draft(text, starts, count, other)

    def stop(self) -> None:
        """As the drafter itself."""
        self._drafter.stop()


class Replay:
    """A target that chooses the tokens of a text that it wrote before, with any sampling."""

    def __init__(
        self, tokens: Tokens, *, vocabulary: int, context: int, ready: Callable[[], bool]
    ) -> None:
        """The text of `tokens`; its prompt is read when the draft is `ready`."""
        self.context = context
        self._tokens = tokens
        self._vocabulary = vocabulary
        self._ready = ready

    def prefill(self, tokens: Tokens) -> bool:
        """Wait a little for the draft."""
        if self._ready():
            return True
        time.sleep(WAIT_S)
        return False

    def extend(
        self, tokens: Tokens, *, num_logits: int = 1, branches: Branches = NO_BRANCHES
    ) -> NDArray[np.float32]:
        """Rows in which only the text's own next token is possible, none after the last."""
        fed = np.arange(len(tokens) - num_logits, len(tokens))
        places = 1 + np.concatenate([fed, branches.behind(len(tokens)).positions])
        rows = np.full((len(places), self._vocabulary), -np.inf, np.float32)
        known = np.flatnonzero(places < len(self._tokens))
        rows[known, self._tokens[places[known]]] = 0
        return rows


def settings_of(manifest: Manifest) -> list[Setting]:
    """All that are compared; those of one drafter stand together."""
    passes = sorted({1, tokens_per_pass(manifest)}, reverse=True)
    drafters = [*product(passes, (True, False)), (None, True)]
    return [
        Setting(per_pass, shared, temperature, count)
        for per_pass, shared in drafters
        for temperature, count in product(TEMPERATURES, LENGTHS)
        if shared or temperature
    ]


def measure(
    manifest: Manifest,
    texts: Mapping[float, Sequence[Written]],
    *,
    max_new_tokens: int,
    threads: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The figures of every setting by kind; `texts` are the target's, by temperature."""
    found = []
    worker: DraftWorker | None = None
    before: Setting | None = None
    for setting in settings_of(manifest):
        if worker is None or before is None or _drafter(before) != _drafter(setting):
            if worker is not None:
                worker.close()
            worker = new_worker(manifest, setting, threads=threads)
        before = setting
        sampling = Sampling(temperature=setting.temperature, seed=SEED)
        runs = [
            (text.kind, run(manifest, worker, setting, text, sampling, max_new_tokens))
            for text in texts[setting.temperature]
        ]
        found.append(asdict(setting) | {"name": str(setting), "kinds": by_kind(runs, pooled)})
        say(f"acceptance: {setting} T={setting.temperature} n={setting.num_draft_tokens}")
    if worker is not None:
        worker.close()
    return found


def _drafter(setting: Setting) -> tuple[int | None, bool]:
    return setting.tokens_per_pass, setting.shared_noise


def new_worker(manifest: Manifest, setting: Setting, *, threads: int) -> DraftWorker:
    """The draft's thread for a setting, and those that differ in temperature and length only."""

    def make() -> Drafter:
        if setting.tokens_per_pass is None:
            return LookupDrafter()
        drafter = load()
        return drafter if setting.shared_noise else OwnNoise(drafter)

    load = partial(
        load_drafter,
        manifest,
        vocabulary=Text.load(manifest.folder).vocabulary,
        per_pass=setting.tokens_per_pass,
        threads=threads,
        context=context_of(manifest),
        sharing="at once",
    )
    return DraftWorker(
        make,
        context=context_of(manifest),
        vocabulary=manifest.target.geometry.vocabulary,
        time_limit_s=TIME_LIMIT_S,
    )


def run(
    manifest: Manifest,
    worker: DraftWorker,
    setting: Setting,
    text: Written,
    sampling: Sampling,
    max_new_tokens: int,
) -> Metrics:
    """Have the engine write `text` once more; raises DraftError where the draft failed."""
    prompt = text.tokens[: text.start]
    metrics = Metrics("speculative", sampling.seed, {}, prompt_tokens=len(prompt))
    target = Replay(
        np.append(text.tokens, text.after),
        vocabulary=manifest.target.geometry.vocabulary,
        context=context_of(manifest),
        ready=worker.ready,
    )
    for _ in decode(
        target,
        Speculative(worker, num_draft_tokens=setting.num_draft_tokens),
        prompt,
        sampling,
        max_new_tokens=max_new_tokens,
        end_tokens=frozenset(manifest.target.end_tokens),
        metrics=metrics,
        cancelled=lambda: False,
    ):
        pass
    if worker.error is not None:
        raise DraftError(worker.error)
    return metrics


def pooled(runs: Sequence[Metrics]) -> dict[str, Any]:
    """The figures of many answers as if they were one."""
    whole = Metrics("speculative", 0, {})
    for each in runs:
        whole.rounds += each.rounds
        whole.settled_tokens += each.settled_tokens
        whole.draft_tokens_proposed += each.draft_tokens_proposed
        whole.draft_tokens_accepted += each.draft_tokens_accepted
        whole.accepted_at += each.accepted_at
        whole.evaluated_at += each.evaluated_at
    found = whole.to_dict()
    return {name: found[name] for name in FIGURES}


def tables(
    found: Sequence[Mapping[str, Any]],
) -> Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Head and rows of both tables: mean acceptance length by kind, and the rest of all kinds."""
    order = sorted(found, key=lambda of: (of["num_draft_tokens"], of["temperature"]))
    kinds = list(order[0]["kinds"])
    head = ("tokens", "T", "drafts")
    yield (
        (*head, *kinds),
        [
            (*_named(of), *(_length(of["kinds"][kind]["mean_acceptance_length"]) for kind in kinds))
            for of in order
        ],
    )
    yield (
        (*head, "accepted of all proposed", "accepted at place 1, 2, …, where all before were"),
        [(*_named(of), *_whole(of["kinds"][kinds[-1]])) for of in order],
    )


def _named(of: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(of["num_draft_tokens"]), f"{of['temperature']:g}", of["name"]


def _length(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _whole(of: Mapping[str, Any]) -> tuple[str, str]:
    rate = of["acceptance_rate"]
    places = (f"{share:.2f}" for share in of["per_place_acceptance"])
    return "–" if rate is None else f"{rate:.3f}", " ".join(places) or "–"
