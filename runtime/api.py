"""What applications use: open a session on a bundle, generate, close."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import providers, wanted
from runtime.answer import Answer, Blocks, StreamedAnswer
from runtime.batch import Job, decode_many
from runtime.checks import many, path, whole
from runtime.emulation import emulated_devices
from runtime.engine import decode
from runtime.errors import BundleError, UsageError
from runtime.locate import default_cache_dir, locate_bundle
from runtime.manifest import Manifest
from runtime.metrics import Metrics
from runtime.models import Models
from runtime.round_settings import check_draft_tokens, check_planned
from runtime.sampling import Sampling
from runtime.settings import check_strategy, settle
from runtime.strategies import Strategies
from runtime.strategy import Autoregressive, Strategy
from runtime.stream import TextStream
from runtime.strict_json import read_object

Message = Mapping[str, str]
TRIAL, TRIAL_TOKENS = "One, two, three, four, five. " * 40, 32  # what times an emulation


def open_session(
    model: str | Path = "smollm2-135m",
    *,
    draft_model: str | Path | None = None,
    precision: str | None = None,
    draft: str | None = None,
    strategy: str | None = None,
    num_draft_tokens: int | None = None,
    draft_tokens_per_pass: int | None = None,
    num_siblings: int | None = None,
    num_copied_tokens: int = 0,
    num_hypotheses: int | None = None,
    hypothesis_sources: Sequence[str] | None = None,
    after_miss: str | None = None,
    context_length: int | None = None,
    threads: int | None = None,
    draft_threads: int | None = None,
    device: str | None = None,
    draft_device: str | None = None,
    execution_provider: str | None = None,
    draft_execution_provider: str | None = None,
    ep_libraries: Mapping[str, str | Path] | None = None,
    provider_options: Mapping[str, str] | None = None,
    draft_provider_options: Mapping[str, str] | None = None,
    allow_cpu_fallback: bool = False,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    verify: bool = False,
    draft_time_limit_s: float | None = None,
    emulate: str | Path | None = None,
    time_scale: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> "Session":
    """Open a session on a recipe's name, a bundle folder or a GGUF file, building it at first use.

    draft: by default the draft model, left out where the bundle has none or memory is short.
    strategy: auto where there is a draft, else autoregressive. num_draft_tokens: 4; in mirror
    one less than a draft model gives in a pass of several, as that is the guess after them.
    draft_tokens_per_pass: as many as the draft model was trained for. num_siblings: so many of the
    draft's second choices are verified beside its first, as leaves of a tree; 0. num_copied_tokens:
    and so many tokens that followed elsewhere in the text. num_hypotheses: how many outcomes of a
    round the draft follows in mirror; 8. hypothesis_sources: some of bonus, runner-ups, masks and
    exit; the first two. after_miss: redraft, or verify the pending token alone; the former. In auto
    num_draft_tokens, num_siblings and num_hypotheses are the most that it may choose, by default 8,
    4 and 16; num_copied_tokens and after_miss are refused. context_length:
    tokens, at most the model's own. threads, draft_threads: by default the cores are shared out.
    device, draft_device: CPU, GPU, GPU:1 or NPU, by the best provider; execution_provider and
    draft_execution_provider name one. ep_libraries: files of providers, by name. provider_options,
    draft_provider_options: by key, see docs/providers.md. allow_cpu_fallback: operators that a
    provider does not take run on the CPU, which `progress` is told, and are no error.
    draft_time_limit_s: how long the draft may give no answer before it is dropped; by default 5,
    and 300 where software plays its device.
    verify: hash also the files that are unchanged since they were last hashed.
    emulate: a device profile's name or file; every time is then one of its devices', see
    docs/emulation.md. time_scale: how much slower than there the time goes here; by default
    measured, so that the computing fits.
    Raises UsageError for settings that do not go together, ProviderError for a device that cannot
    be used, BundleError or BuildError when there is no bundle to be had.
    """
    say = progress or (lambda _line: None)
    settings = settle(
        precision=precision,
        draft=draft,
        has_draft_model=draft_model is not None,
        strategy=strategy,
        num_draft_tokens=num_draft_tokens,
        draft_tokens_per_pass=draft_tokens_per_pass,
        num_siblings=num_siblings,
        num_copied_tokens=num_copied_tokens,
        num_hypotheses=num_hypotheses,
        hypothesis_sources=hypothesis_sources,
        after_miss=after_miss,
        context_length=context_length,
        threads=threads,
        draft_threads=draft_threads,
        device=device,
        draft_device=draft_device,
        execution_provider=execution_provider,
        draft_execution_provider=draft_execution_provider,
        ep_libraries=ep_libraries,
        provider_options=provider_options,
        draft_provider_options=draft_provider_options,
        report=say if allow_cpu_fallback else None,
        draft_time_limit_s=draft_time_limit_s,
    )
    devices = emulated_devices(emulate, time_scale)
    cache = (
        path("cache_dir", cache_dir) if cache_dir else default_cache_dir(os.environ, sys.platform)
    )

    def locate(name: str | Path, graphs: wanted.Wanted) -> Manifest:
        named = name if isinstance(name, str) else path("model", name)
        asked: dict[str, Any] = {"offline": offline, "verify": verify, "graphs": graphs}
        return Manifest.load(locate_bundle(named, cache_dir=cache, progress=say, **asked))

    place, draft_place = settings.place, settings.draft_place
    own_draft = draft_place if draft_model is None else None

    return Session(
        Models(
            locate(model, wanted.for_target(place, own_draft, settings.precision)),
            None if draft_model is None else locate(draft_model, wanted.for_draft(draft_place)),
            settings.keeping(cache / "compiled", say),
            probes=cache / "probes",
            say=say,
            devices=devices,
        ),
        time_scale=time_scale,
    )


class Session:
    """One conversation with one pair of models; `open_session` makes it, `close` ends it.

    Both caches keep what is common to one prompt and the next, so a later turn costs only what is
    new. One thread generates at a time; starting an answer ends the one before.
    """

    def __init__(self, models: Models, *, time_scale: float | None = None) -> None:
        """A session with `models`, which are prepared for the strategy of their settings.

        time_scale: of emulated devices; None: measured by answering TRIAL twice.
        """
        self._models = models
        self._answer: StreamedAnswer | None = None
        self._closed = False
        self._strategies = Strategies(models)
        self._strategy: Strategy = self._strategies.make(models.settings.strategy)
        self.default_sampling = _default_sampling(models.manifest)
        if models.devices is not None:
            if time_scale is None:
                models.devices.fit(self._try)
            models.say(models.devices.described)

    @property
    def strategy(self) -> str:
        """The strategy's name; set it to switch between answers, the text stays the same."""
        return self._strategy.name

    @strategy.setter
    def strategy(self, name: str) -> None:
        check_strategy(name, self._models.draft)
        asked = self._models.settings
        check_planned(name, num_copied_tokens=asked.num_copied_tokens, after_miss=asked.after_miss)
        self._end_answer()
        self._models.prepare(name)
        self._strategy = self._strategies.make(name)

    @property
    def num_draft_tokens(self) -> int | None:
        """How long a guess was asked to be; None leaves it to draft and strategy. Can be set."""
        return self._models.settings.num_draft_tokens

    @num_draft_tokens.setter
    def num_draft_tokens(self, count: int | None) -> None:
        check_draft_tokens(count)
        self._end_answer()
        models = self._models
        models.settings = replace(models.settings, num_draft_tokens=count)
        self._strategy = self._strategies.make(self.strategy)

    @property
    def settings(self) -> dict[str, Any]:
        """What this session runs with, every default filled in."""
        models = self._models
        return {
            "model": models.manifest.name,
            "bundle": str(models.manifest.folder),
            "precision": models.precision,
            "strategy": self.strategy,
            "draft": models.draft,
            "draft_model": models.draft_manifest.name if models.draft == "model" else None,
            "draft_left_out": models.draft_left_out,
            "draft_tokens_per_pass": models.draft_tokens_per_pass,
            **self._strategies.rounds(self.strategy),
            "hypothesis_sources": list(models.settings.hypothesis_sources),
            "lookup_first": models.lookup_first,
            "context_length": models.context,
            "threads": models.layout.threads,
            "draft_threads": models.layout.draft_threads,
            "exactness": models.exactness.kind,
            "emulated": models.devices.profile.name if models.devices else None,
            "time_scale": models.devices.timing.scale if models.devices else None,
            "devices": {role: str(place) for role, place in self._places.items()},
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
        self._end_answer()
        if self._models.worker is None:
            self._models.prepare(self.strategy)
            self._strategy = self._strategies.make(self.strategy)
        tokens = self._encode(prompt, max_new_tokens)
        return self._write(tokens, self._sampling(sampling), max_new_tokens, stop)

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
        self._end_answer()
        if self._models.devices is not None:
            raise UsageError("Emulated devices write one text at a time: ask for them one by one.")
        sampling = self._sampling(sampling)
        stop = many("stop", stop)
        jobs = []
        for prompt in many("prompts", prompts):
            tokens = self._encode(prompt, max_new_tokens)
            metrics = self._metrics(Autoregressive(), sampling, tokens)
            answer = Answer(TextStream(self._models.text, stop), metrics)
            jobs.append(Job(tokens, sampling, max_new_tokens, answer))
        decode_many(
            jobs,
            *self._models.lanes_for(len(jobs)),
            end_tokens=frozenset(self._models.manifest.target.end_tokens),
        )
        return [job.answer for job in jobs]

    def close(self) -> bool:
        """End the draft's thread; False when it is stuck, and only ending the process frees it."""
        if not self._closed:
            self._end_answer()
        self._closed = True
        return self._models.worker is None or self._models.worker.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _providers(self) -> dict[str, str]:
        return {
            role: providers.PROVIDERS[place.provider].ep_name
            for role, place in self._places.items()
        }

    @property
    def _places(self) -> dict[str, providers.Place]:
        settings = self._models.settings
        if self._models.draft == "model" and self.strategy != "autoregressive":
            return {"target": settings.place, "draft": settings.draft_place}
        return {"target": settings.place}

    def _write(
        self,
        tokens: NDArray[np.int64],
        sampling: Sampling,
        max_new_tokens: int,
        stop: Sequence[str],
    ) -> StreamedAnswer:
        """The answer that continues `tokens` [n] int64."""
        metrics = self._metrics(self._strategy, sampling, tokens)
        strategy, models = self._strategy, self._models
        late = models.devices.late if models.devices else 0

        def run(cancelled: Callable[[], bool]) -> Blocks:
            try:
                yield from decode(
                    models.target,
                    strategy,
                    tokens,
                    sampling,
                    max_new_tokens=max_new_tokens,
                    end_tokens=frozenset(models.manifest.target.end_tokens),
                    metrics=metrics,
                    cancelled=cancelled,
                )
            except KeyboardInterrupt:
                models.drop_worker()  # a message may be half written
                raise
            finally:
                if models.worker is not None and strategy.name != "autoregressive":
                    metrics.draft_error = models.worker.error
                if models.devices is not None:
                    metrics.void_runs = models.devices.late - late

        self._answer = StreamedAnswer(run, TextStream(models.text, stop), metrics)
        return self._answer

    def _try(self) -> None:
        """Do what an answer does, for a while."""
        tokens = self._encode(TRIAL, TRIAL_TOKENS)[: self._models.context // 2]
        for _ in self._write(tokens, Sampling(), TRIAL_TOKENS, ()):
            pass

    def _metrics(
        self, strategy: Strategy, sampling: Sampling, tokens: NDArray[np.int64]
    ) -> Metrics:
        alone = strategy.name == "autoregressive"
        devices = self._models.devices
        return Metrics(
            strategy.name,
            sampling.seed,
            {"target": self._providers["target"]} if alone else self._providers,
            prompt_tokens=len(tokens),
            near_tie_bound=self._models.exactness.largest_difference,
            tree_bound=self._models.tree_bound,
            emulated=devices.profile.name if devices else None,
            clock=devices.timing if devices else time.perf_counter,
        )

    def _sampling(self, asked: object) -> Sampling:
        if not isinstance(asked, Sampling | None):
            raise UsageError(f"sampling must be a Sampling; it is {asked!r:.80}.")
        return asked or self.default_sampling

    def _encode(self, prompt: str | Sequence[Message], max_new_tokens: int) -> NDArray[np.int64]:
        """A prompt's tokens [n] int64; UsageError for a budget that is no whole number."""
        whole("max_new_tokens", max_new_tokens, least=0)
        text = self._models.text
        tokens = text.encode(prompt) if isinstance(prompt, str) else text.encode_chat(prompt)
        return np.array(tokens, np.int64)

    def _end_answer(self) -> None:
        if self._closed:
            raise UsageError("This session is closed; open another.")
        if self._answer is not None:
            try:
                self._answer.close()
            except ValueError as error:  # the generator is running, elsewhere
                raise UsageError(
                    "Another thread still reads this session's answer: cancel it there first."
                ) from error


def _default_sampling(manifest: Manifest) -> Sampling:
    """The bundle's own generation settings; temperature 0 where it has none."""
    if "generation_config.json" not in manifest.files:
        return Sampling()
    path = manifest.folder / "generation_config.json"
    settings = read_object(path)
    try:
        known = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        return Sampling(**{key: settings[key] for key in known if settings.get(key) is not None})
    except (ValueError, TypeError, OverflowError) as error:
        raise BundleError(f"{path} cannot be used: {error}; build the bundle again.") from error
