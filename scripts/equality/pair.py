"""A bundle's models, and what they write in one way or another."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from runtime.auto import Auto
from runtime.calibration import UNMEASURED
from runtime.draft_model import load_drafter, tokens_per_pass
from runtime.drafter import Drafter, LookupDrafter
from runtime.early_exit import EarlyExit
from runtime.engine import decode
from runtime.flavours import choose_graph, open_exit_head, open_graph
from runtime.limits import exits_of
from runtime.manifest import Manifest
from runtime.metrics import Metrics
from runtime.models import tree_bound
from runtime.planner import Planner
from runtime.sampling import Sampling
from runtime.session import GraphSession
from runtime.split_session import SplitSession
from runtime.strategy import Autoregressive, Mirror, Speculative, Strategy
from runtime.worker import DraftWorker
from scripts.equality.drafts import Adversary, Dice
from scripts.equality.recorder import Recorder, Written, differences
from scripts.equality.settings import ALONE, SHAPES, Setting

CONTEXT = 512
# A draft model with as many tokens a pass as it was trained for, and with one.
MODELS = {"model": None, "model one by one": 1}
ADVERSARIES = ("wrong", "runner-up", "random")
LIMIT_S = 60.0  # a busy machine is no reason to drop a draft


class Pair:
    """A bundle's target, alone with all threads and beside a draft, whole and in two parts.

    Every draft is loaded when it is first needed. Raises BundleError for a bundle without an early
    exit.
    """

    def __init__(self, folder: Path, precision: str) -> None:
        self._manifest = Manifest.load(folder)
        self._graph = choose_graph(self._manifest, "target", "CPU", precision)
        self._bound = tree_bound(self._graph)
        self._alone = self._target(threads=2)
        self._beside = self._target(threads=1, sharing="at once")
        self._in_two, self._exit = self._with_exit()
        self._vocabulary = self._manifest.target.geometry.vocabulary
        self._adversaries = {kind: Adversary(kind, self._vocabulary) for kind in ADVERSARIES}
        self._workers: dict[str, DraftWorker] = {}
        self._ends = frozenset(self._manifest.target.end_tokens)
        self._references: dict[tuple[tuple[int, ...], Sampling, int], Written] = {}

    def check(
        self, prompt: list[int], setting: Setting, seed: int, count: int
    ) -> tuple[Written, list[str]]:
        """Write `count` tokens after `prompt`; also tell what differs from the target alone."""
        found = self.write(prompt, setting, seed, count)
        return found, list(differences(self.alone(prompt, setting.sampling, seed, count), found))

    def alone(self, prompt: list[int], sampling: Sampling, seed: int, count: int) -> Written:
        """What the target writes alone; kept."""
        key = (tuple(prompt), replace(sampling, seed=seed), count)
        if key not in self._references:
            setting = replace(ALONE, sampling=sampling)
            self._references[key] = self.write(prompt, setting, seed, count)
        return self._references[key]

    def write(
        self, prompt: list[int], setting: Setting, seed: int, count: int, *, repeats: int = 1
    ) -> Written:
        """Write `count` tokens after `prompt`, nothing of it cached before; see Recorder."""
        if setting.draft in ADVERSARIES:
            known = self.alone(prompt, setting.sampling, seed, count).tokens
            self._adversaries[setting.draft].text = np.array([*prompt, *known], np.int64)
        session = self._session(setting)
        session.crop(0)
        self._exit.tell(None)
        target = Recorder(session, repeats=repeats)
        sampling = replace(setting.sampling, seed=seed)
        metrics = Metrics(setting.strategy, seed, {}, prompt_tokens=len(prompt))
        metrics.tree_bound = self._bound
        blocks = decode(
            target,
            self._strategy(setting, seed),
            np.array(prompt, np.int64),
            sampling,
            max_new_tokens=count,
            end_tokens=self._ends,
            metrics=metrics,
            cancelled=lambda: False,
        )
        tokens = tuple(token for block in blocks for token in block)
        if setting.draft in self._workers:
            metrics.draft_error = self._workers[setting.draft].error
        return target.written(prompt, tokens, metrics)

    def close(self) -> None:
        """End the drafts' threads."""
        for worker in self._workers.values():
            worker.close()

    def _target(self, **settings: Any) -> GraphSession[Any]:
        return open_graph(
            self._manifest.folder,
            self._graph,
            self._manifest.target.geometry,
            context=CONTEXT,
            **settings,
        )

    def _with_exit(self) -> tuple[SplitSession, EarlyExit]:
        beside: dict[str, Any] = {"threads": 1, "sharing": "at once"}
        head = open_exit_head(self._manifest.folder, self._graph, **beside)
        target = self._target(exit_layer=self._manifest.target.early_exit_layer, **beside)
        assert isinstance(target, SplitSession)
        return target, EarlyExit(target, head)

    def _session(self, setting: Setting) -> GraphSession[Any]:
        if setting.strategy == ALONE.strategy:
            return self._alone
        return self._in_two if setting.early_exit else self._beside

    def _strategy(self, setting: Setting, seed: int) -> Strategy:
        if setting.strategy == ALONE.strategy:
            return Autoregressive()
        worker = self._worker(setting.draft)
        named = self._exit if "exit" in setting.sources else None
        siblings, copied = SHAPES[setting.shape]
        shape: dict[str, Any] = {
            "num_draft_tokens": setting.num_draft_tokens,
            "num_siblings": siblings,
            "num_copied_tokens": copied,
        }
        if setting.strategy == "speculative":
            return Speculative(worker, **shape)
        if setting.strategy == "mirror":
            return Mirror(
                worker,
                num_hypotheses=setting.num_hypotheses,
                sources=setting.sources,
                redraft=setting.redraft is not False,
                early_exit=named,
                **shape,
            )
        return Auto(
            worker,
            self._planner(setting, seed, siblings),
            tokens_per_pass=self._per_pass(setting.draft),
            in_turn=setting.strategy == "planned",
            sources=setting.sources,
            early_exit=named,
        )

    def _planner(self, setting: Setting, seed: int, siblings: int) -> Planner:
        """One that knows nothing of this machine, or none at all."""
        exits = exits_of(setting.sources)
        if setting.strategy == "dice":
            return Dice(
                seed,
                draft_tokens=setting.num_draft_tokens,
                hypotheses=setting.num_hypotheses,
                siblings=siblings,
                of_exit=setting.num_hypotheses // exits[-1] if exits[-1] else 0,
            )
        return Planner(
            replace(UNMEASURED, tokens_per_pass=self._per_pass(setting.draft)),
            most_draft_tokens=setting.num_draft_tokens,
            hypotheses=(setting.num_hypotheses,),
            siblings=sorted({0, siblings}),
            exits=exits,
        )

    def _per_pass(self, draft: str) -> int:
        return tokens_per_pass(self._manifest, MODELS.get(draft))

    def _worker(self, draft: str) -> DraftWorker:
        if draft not in self._workers:
            self._workers[draft] = DraftWorker(
                self._loader(draft),
                context=CONTEXT,
                vocabulary=self._vocabulary,
                time_limit_s=LIMIT_S,
            )
        return self._workers[draft]

    def _loader(self, draft: str) -> Callable[[], Drafter]:
        if draft in ADVERSARIES:
            return partial(self._adversaries.__getitem__, draft)
        if draft == "lookup":
            return LookupDrafter
        return partial(
            load_drafter,
            self._manifest,
            vocabulary=self._vocabulary,
            per_pass=MODELS[draft],
            threads=1,
            context=CONTEXT,
            sharing="at once",
        )
