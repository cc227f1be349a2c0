"""What applications use: open a session on a bundle, generate, close."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import providers
from runtime.answer import Answer, Blocks, StreamedAnswer
from runtime.batch import Job, LaneSession, decode_many
from runtime.drafter import Drafter, LookupDrafter, ModelDrafter
from runtime.engine import decode
from runtime.errors import BundleError, UsageError
from runtime.layout import Layout, lay_out
from runtime.locate import default_cache_dir, locate_bundle
from runtime.manifest import Manifest
from runtime.metrics import Metrics
from runtime.probe import exactness
from runtime.sampling import Sampling
from runtime.session import Cache, GraphSession
from runtime.strategy import Autoregressive, Mirror, Speculative, Strategy
from runtime.stream import TextStream
from runtime.text import Text
from runtime.worker import DraftWorker

PRECISIONS = ("int8", "fp32")
DRAFTS = ("model", "lookup", "none")
STRATEGIES = ("mirror", "speculative", "autoregressive")
MOST_DRAFT_TOKENS = 32

Message = Mapping[str, str]


def open_session(
    model: str | Path = "smollm2-135m",
    *,
    draft_model: str | Path | None = None,
    precision: str = "int8",
    draft: str = "model",
    strategy: str | None = None,
    num_draft_tokens: int = 4,
    context_length: int | None = None,
    threads: int | None = None,
    draft_threads: int | None = None,
    device: str = "CPU",
    draft_device: str = "CPU",
    cache_dir: Path | None = None,
    offline: bool = False,
    draft_time_limit_s: float = 5.0,
    progress: Callable[[str], None] | None = None,
) -> "Session":
    """Open a session on a recipe's name, a bundle folder or a GGUF file, building it at first use.

    strategy: mirror where there is a draft, else autoregressive. context_length: tokens, at most
    the model's own. threads, draft_threads: by default the cores are shared out.
    Raises UsageError for settings that do not go together, ProviderError for a device that cannot
    be used, BundleError or BuildError when there is no bundle to be had.
    """
    providers.check_device("target", device)
    providers.check_device("draft", draft_device)
    _one_of("precision", precision, PRECISIONS)
    _one_of("draft", draft, DRAFTS)
    strategy = strategy or ("autoregressive" if draft == "none" else "mirror")
    if not 1 <= num_draft_tokens <= MOST_DRAFT_TOKENS:
        raise UsageError(
            f"num_draft_tokens is {num_draft_tokens}; it must be 1 to {MOST_DRAFT_TOKENS}."
        )
    if draft_model is not None and draft != "model":
        raise UsageError(f"A draft model was named, but the draft is {draft!r}: leave one out.")

    def locate(name: str | Path) -> Manifest:
        report = progress or (lambda _line: None)
        return Manifest.load(
            locate_bundle(name, cache_dir=cache_dir, offline=offline, progress=report)
        )

    return Session(
        locate(model),
        locate(draft_model) if draft_model is not None else None,
        probes=(cache_dir or default_cache_dir(os.environ, sys.platform)) / "probes",
        precision=precision,
        draft=draft,
        strategy=strategy,
        num_draft_tokens=num_draft_tokens,
        context_length=context_length,
        threads=threads,
        draft_threads=draft_threads,
        draft_time_limit_s=draft_time_limit_s,
    )


class Session:
    """One conversation with one pair of models; `open_session` makes it, `close` ends it.

    Both caches keep what is common to one prompt and the next, so a later turn costs only what is
    new. One thread generates at a time; starting an answer ends the one before.
    """

    def __init__(
        self,
        manifest: Manifest,
        draft_manifest: Manifest | None,
        *,
        probes: Path,
        precision: str,
        draft: str,
        strategy: str,
        num_draft_tokens: int,
        context_length: int | None,
        threads: int | None,
        draft_threads: int | None,
        draft_time_limit_s: float,
    ) -> None:
        """Load what `strategy` needs; see `open_session`."""
        self._manifest = manifest
        self._draft_manifest = draft_manifest or manifest
        self._precision, self._draft = precision, draft
        self._num_draft_tokens = num_draft_tokens
        self._threads, self._draft_threads = threads, draft_threads
        self._draft_time_limit_s = draft_time_limit_s
        self._context = _context(manifest, context_length)
        self._text = Text.load(manifest.folder)
        self._end_tokens = frozenset(manifest.target.end_tokens)
        self._worker: DraftWorker | None = None
        self._lanes: LaneSession | None = None
        self._answer: StreamedAnswer | None = None
        self._check_strategy(strategy)
        self._layout = self._lay_out(strategy)
        self._target = self._load_target(
            self._layout, Cache(manifest.target.geometry, self._context)
        )
        self._exactness = exactness(
            self._target,
            bundle=manifest.folder,
            graph=manifest.graph_path("target", precision),
            threads=self._layout.threads,
            folder=probes,
        )
        self._strategy = self._prepare(strategy)
        self.default_sampling = _default_sampling(manifest.folder)

    @property
    def strategy(self) -> str:
        """The strategy's name; set it to switch between answers, the text stays the same."""
        return self._strategy.name

    @strategy.setter
    def strategy(self, name: str) -> None:
        self._check_strategy(name)
        self._strategy = self._prepare(name)

    def _check_strategy(self, name: str) -> None:
        _one_of("strategy", name, STRATEGIES)
        if name != "autoregressive" and self._draft == "none":
            raise UsageError(
                f"The strategy {name!r} needs a draft, and the draft is 'none': choose the draft "
                "'lookup' or 'model', or the strategy 'autoregressive'."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What this session runs with, every default filled in."""
        layout = self._layout
        return {
            "model": self._manifest.name,
            "bundle": str(self._manifest.folder),
            "precision": self._precision,
            "strategy": self.strategy,
            "draft": self._draft,
            "draft_model": self._draft_manifest.name if self._draft == "model" else None,
            "num_draft_tokens": self._num_draft_tokens,
            "context_length": self._context,
            "threads": layout.threads,
            "draft_threads": layout.draft_threads,
            "exactness": self._exactness.kind,
            "providers": self._providers,
        }

    def generate(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        max_new_tokens: int = 512,
        stop: Sequence[str] = (),
    ) -> StreamedAnswer:
        """Continue a text, or answer messages (role and content) by the model's chat template.

        The work happens as the answer is iterated. Raises UsageError for a negative budget or an
        empty stop string, TextError for text that cannot be used, ContextError (when iterated) for
        a prompt that does not fit.
        """
        if self._answer is not None:
            self._answer.close()
        sampling = sampling or self.default_sampling
        tokens = self._encode(prompt, max_new_tokens)
        metrics = Metrics(
            self.strategy,
            sampling.seed,
            self._providers,
            prompt_tokens=len(tokens),
            near_tie_bound=self._exactness.largest_difference,
        )

        target, strategy, worker = self._target, self._strategy, self._worker

        def run(cancelled: Callable[[], bool]) -> Blocks:
            try:
                yield from decode(
                    target,
                    strategy,
                    tokens,
                    sampling,
                    max_new_tokens=max_new_tokens,
                    end_tokens=self._end_tokens,
                    metrics=metrics,
                    cancelled=cancelled,
                )
            finally:
                if worker is not None and strategy.name != "autoregressive":
                    metrics.draft_error = worker.error

        self._answer = StreamedAnswer(run, TextStream(self._text, stop), metrics)
        return self._answer

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[Message]],
        sampling: Sampling | None = None,
        *,
        max_new_tokens: int = 512,
        stop: Sequence[str] = (),
    ) -> list[Answer]:
        """Answer many prompts together, without a draft; return the finished answers in order.

        Each is what `generate` gives for its prompt alone with the same sampling. Up to as many
        run at once as the bundle's widest graph has lanes. Raises as `generate`, before any runs.
        """
        if self._answer is not None:
            self._answer.close()
        sampling = sampling or self.default_sampling
        jobs = []
        for prompt in prompts:
            tokens = self._encode(prompt, max_new_tokens)
            metrics = Metrics(
                "autoregressive",
                sampling.seed,
                {"target": providers.CPU_PROVIDER},
                prompt_tokens=len(tokens),
                near_tie_bound=self._exactness.largest_difference,
            )
            answer = Answer(TextStream(self._text, stop), metrics)
            jobs.append(Job(tokens, sampling, max_new_tokens, answer))
        lanes = self._lanes_for(len(jobs))
        decode_many(jobs, self._target, lanes, end_tokens=self._end_tokens)
        return [job.answer for job in jobs]

    def close(self) -> bool:
        """End the draft's thread; False when it is stuck, and only ending the process frees it."""
        if self._answer is not None:
            self._answer.close()
        return self._worker is None or self._worker.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _providers(self) -> dict[str, str]:
        names = {"target": providers.CPU_PROVIDER}
        if self._draft == "model" and not isinstance(self._strategy, Autoregressive):
            names["draft"] = providers.CPU_PROVIDER
        return names

    def _prepare(self, name: str) -> Strategy:
        """Load what a strategy needs and does not find loaded."""
        layout = self._lay_out(name)
        if layout != self._layout:
            self._target = self._load_target(layout, self._target.cache)
            self._layout = layout
        if name == "autoregressive":
            return Autoregressive()
        if self._worker is None:
            self._worker = DraftWorker(
                self._make_drafter(layout),
                context=self._context,
                vocabulary=self._manifest.target.geometry.vocabulary,
                time_limit_s=self._draft_time_limit_s,
            )
        kind = Mirror if name == "mirror" else Speculative
        return kind(self._worker, num_draft_tokens=self._num_draft_tokens)

    def _lay_out(self, strategy: str) -> Layout:
        return lay_out(
            providers.usable_cores(),
            threads=self._threads,
            draft_threads=self._draft_threads,
            draft_runs=strategy != "autoregressive" and self._draft == "model",
        )

    def _load_target(self, layout: Layout, cache: Cache) -> GraphSession:
        return GraphSession(
            self._manifest.graph_path("target", self._precision),
            self._manifest.target.geometry,
            threads=layout.threads,
            cores=layout.cores,
            share_cpu=layout.shared,
            cache=cache,
        )

    def _lanes_for(self, count: int) -> LaneSession:
        """The narrowest graph that decodes `count` sequences at once, or the widest there is."""
        graph = self._manifest.graph("target", self._precision)
        widths = sorted(int(lanes) for lanes in graph.lanes)
        if not widths:
            raise BundleError(
                f"The bundle {self._manifest.folder} has no graph that decodes many sequences "
                "together; build it again."
            )
        lanes = next((width for width in widths if width >= count), widths[-1])
        if self._lanes is None or self._lanes.lanes != lanes:
            self._lanes = LaneSession(
                self._manifest.folder / graph.lanes[str(lanes)],
                self._manifest.target.geometry,
                lanes=lanes,
                threads=self._layout.threads,
            )
        return self._lanes

    def _encode(self, prompt: str | Sequence[Message], max_new_tokens: int) -> NDArray[np.int64]:
        """A prompt's tokens [n] int64; UsageError for a negative budget."""
        if max_new_tokens < 0:
            raise UsageError(f"max_new_tokens is {max_new_tokens}; it must be 0 or more.")
        text = self._text
        tokens = text.encode(prompt) if isinstance(prompt, str) else text.encode_chat(prompt)
        return np.array(tokens, np.int64)

    def _make_drafter(self, layout: Layout) -> Drafter:
        if self._draft == "lookup":
            return LookupDrafter()
        manifest = self._draft_manifest
        if manifest is not self._manifest:
            _check_vocabularies(self._text, Text.load(manifest.folder))
        role = manifest.draft or manifest.target
        geometry, graphs = role.geometry, role.graphs.values()
        cheapest = min(graphs, key=lambda graph: ("int4", "int8", "fp32").index(graph.precision))
        session = GraphSession(
            manifest.folder / cheapest.file,
            geometry,
            threads=layout.draft_threads,
            cores=layout.draft_cores,
            share_cpu=True,
            cache=Cache(geometry, min(geometry.context, self._context)),
        )
        return ModelDrafter(session, vocabulary=self._text.vocabulary)


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"The {what} {value!r} is not one of {', '.join(known)}.")


def _context(manifest: Manifest, asked: int | None) -> int:
    """The context in tokens; UsageError for more than the model was made for."""
    most = manifest.target.geometry.context
    if asked is not None and not 2 <= asked <= most:
        raise UsageError(
            f"The context length is {asked}; {manifest.name} takes 2 to {most} tokens."
        )
    return asked or most


def _default_sampling(folder: Path) -> Sampling:
    """The bundle's own generation settings; temperature 0 where it has none."""
    path = folder / "generation_config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        known = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        return Sampling(**{key: settings[key] for key in known if settings.get(key) is not None})
    except FileNotFoundError:
        return Sampling()
    except (ValueError, TypeError, AttributeError) as error:
        raise BundleError(f"{path} cannot be used: {error}; build the bundle again.") from error


def _check_vocabularies(target: Text, draft: Text) -> None:
    """Refuse a draft that means other text by the same token ids; padding at the end may differ."""
    theirs, ours = (_without_padding(text.vocabulary_tokens()) for text in (draft, target))
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            raise UsageError(
                f"The draft has another vocabulary: {len(theirs)} tokens where the target has "
                f"{len(ours)}, and token {place} is {other!r} where the target has {one!r}."
            )
    if len(ours) != len(theirs):
        raise UsageError(
            f"The draft has another vocabulary: {len(theirs)} tokens where the target has "
            f"{len(ours)}; the first that only one has is token {min(len(ours), len(theirs))}."
        )


def _without_padding(tokens: list[str]) -> list[str]:
    """The tokens up to the last that stands for anything: converters fill up with [PAD123]."""
    end = len(tokens)
    while end and (not tokens[end - 1] or re.fullmatch(r"\[PAD\d+\]", tokens[end - 1])):
        end -= 1
    return tokens[:end]
