"""What a session was asked to run with, checked before anything is loaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from runtime.checks import many, one_of, real, whole
from runtime.errors import UsageError
from runtime.hypotheses import SOURCES, USUAL_SOURCES, Source
from runtime.places import find_places, usual_precision
from runtime.providers import Place, device_of
from runtime.round_settings import check_hypotheses, check_planned, check_rounds

PRECISIONS = ("int8", "fp32", "fp16", "int4")
DRAFTS = ("model", "lookup", "none")
STRATEGIES = ("auto", "mirror", "speculative", "autoregressive")
TIME_LIMIT_S = 5.0  # how long a draft may give no answer
PLAYED_TIME_LIMIT_S = 300.0  # where software plays its device: a pass was seen to take 9 s


@dataclass(frozen=True, slots=True)
class Settings:
    """Values that go together; see `runtime.open_session` for their meaning.

    `precision`: None takes what suits the place best. `needs_draft`: a draft model was asked for,
    and is not merely what is usual. `place` and `draft_place`: where target and draft run.
    """

    precision: str | None
    draft: str
    needs_draft: bool
    strategy: str
    num_draft_tokens: int | None
    draft_tokens_per_pass: int | None
    num_siblings: int | None
    num_copied_tokens: int
    num_hypotheses: int | None
    hypothesis_sources: tuple[Source, ...]
    after_miss: str | None
    context_length: int | None
    threads: int | None
    draft_threads: int | None
    place: Place
    draft_place: Place
    draft_time_limit_s: float

    def keeping(self, folder: Path, say: Callable[[str], None]) -> "Settings":
        """The same, with a folder for what is compiled for both places."""
        return replace(
            self,
            place=self.place.keeping(folder, say),
            draft_place=self.draft_place.keeping(folder, say),
        )


def settle(
    *,
    precision: str | None,
    draft: str | None,
    has_draft_model: bool,
    strategy: str | None,
    num_draft_tokens: int | None,
    draft_tokens_per_pass: int | None,
    num_siblings: int | None,
    num_copied_tokens: int,
    num_hypotheses: int | None,
    hypothesis_sources: Sequence[str] | None,
    after_miss: str | None,
    context_length: int | None,
    threads: int | None,
    draft_threads: int | None,
    device: str | None,
    draft_device: str | None,
    execution_provider: str | None,
    draft_execution_provider: str | None,
    ep_libraries: Mapping[str, Any] | None,
    provider_options: Mapping[str, str] | None,
    draft_provider_options: Mapping[str, str] | None,
    report: Callable[[str], None] | None,
    draft_time_limit_s: float | None,
) -> Settings:
    """Fill in what is None and refuse what does not go together.

    report: is told which operators run on the CPU instead of the device asked for; None: none may.
    Raises UsageError, and ProviderError for a device or provider that cannot be used here.
    """
    kind = "model" if draft is None else draft
    if precision is not None:
        one_of("precision", precision, PRECISIONS)
    one_of("draft", kind, DRAFTS)
    on = draft_execution_provider or draft_device or draft_provider_options
    if on is not None and kind != "model":
        raise UsageError(
            f"A draft was asked for on {on}, but the draft is {kind!r}, which needs no provider: "
            "leave one out."
        )
    if has_draft_model and kind != "model":
        raise UsageError(f"A draft model was named, but the draft is {kind!r}: leave one out.")
    if draft_tokens_per_pass is not None and kind != "model":
        raise UsageError(
            f"draft_tokens_per_pass is for a draft model, but the draft is {kind!r}: leave one out."
        )
    if strategy is None:
        strategy = "autoregressive" if kind == "none" else "auto"
    check_strategy(strategy, kind)
    check_rounds(
        num_draft_tokens=num_draft_tokens,
        num_siblings=num_siblings,
        num_copied_tokens=num_copied_tokens,
        num_hypotheses=num_hypotheses,
        after_miss=after_miss,
    )
    check_planned(strategy, num_copied_tokens=num_copied_tokens, after_miss=after_miss)
    check_hypotheses(strategy, kind, num_hypotheses)
    for name, count in (
        ("draft_tokens_per_pass", draft_tokens_per_pass),
        ("context_length", context_length),
        ("threads", threads),
        ("draft_threads", draft_threads),
    ):
        if count is not None:
            whole(name, count, least=1)
    if draft_time_limit_s is not None:
        _check_time_limit(draft_time_limit_s)
    place, draft_place = find_places(
        device=device,
        draft_device=draft_device,
        execution_provider=execution_provider,
        draft_execution_provider=draft_execution_provider,
        ep_libraries=ep_libraries,
        provider_options=provider_options,
        draft_provider_options=draft_provider_options,
        report=report,
    )
    if draft_time_limit_s is None:
        played = kind == "model" and device_of(draft_place).emulated
        draft_time_limit_s = PLAYED_TIME_LIMIT_S if played else TIME_LIMIT_S
    return Settings(
        precision=usual_precision(precision, place),
        draft=kind,
        needs_draft=draft is not None
        or has_draft_model
        or on is not None
        or draft_tokens_per_pass is not None,
        strategy=strategy,
        num_draft_tokens=num_draft_tokens,
        draft_tokens_per_pass=draft_tokens_per_pass,
        num_siblings=num_siblings,
        num_copied_tokens=num_copied_tokens,
        num_hypotheses=num_hypotheses,
        hypothesis_sources=_sources(hypothesis_sources),
        after_miss=after_miss,
        context_length=context_length,
        threads=threads,
        draft_threads=draft_threads,
        place=place,
        draft_place=draft_place,
        draft_time_limit_s=draft_time_limit_s,
    )


def _check_time_limit(seconds: float) -> None:
    if not 0 < real("draft_time_limit_s", seconds) <= TIMEOUT_MAX:
        raise UsageError(
            f"draft_time_limit_s is {seconds}; it must be a number of seconds above 0 and at most "
            f"{TIMEOUT_MAX:g}."
        )


def check_strategy(name: str, draft: str) -> None:
    """Refuse a strategy that is not known or needs a draft where there is none; UsageError."""
    one_of("strategy", name, STRATEGIES)
    if name != "autoregressive" and draft == "none":
        raise UsageError(
            f"The strategy {name!r} needs a draft, and the draft is 'none': choose the draft "
            "'lookup' or 'model', or the strategy 'autoregressive'."
        )


def _sources(asked: Sequence[str] | None) -> tuple[Source, ...]:
    if asked is None:
        return USUAL_SOURCES
    for name in many("hypothesis_sources", asked):
        one_of("source of hypotheses", name, SOURCES)
    return tuple(source for source in SOURCES if source in asked)
