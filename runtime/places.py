"""Where target and draft run, from what a program or a command line asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime import providers
from runtime.checks import path, text
from runtime.errors import UsageError
from runtime.providers import Place


def find_places(
    *,
    device: str | None,
    draft_device: str | None,
    execution_provider: str | None,
    draft_execution_provider: str | None,
    ep_libraries: Mapping[str, Any] | None,
    provider_options: Mapping[str, str] | None,
    draft_provider_options: Mapping[str, str] | None,
    report: Callable[[str], None] | None,
) -> tuple[Place, Place]:
    """The target's place and the draft's, each the CPU where nothing was asked for.

    report: is told which operators run on the CPU instead of the device asked for; None: none may.
    Raises UsageError for values of a wrong kind and for options that a provider does not have,
    ProviderError for a device or provider that cannot be used here.
    """
    libraries = _libraries(ep_libraries)
    target = providers.resolve(
        "target",
        device=_word("device", device),
        provider=_word("execution_provider", execution_provider),
        options=_options("provider_options", provider_options),
        libraries=libraries,
        report=report,
    )
    draft = providers.resolve(
        "draft",
        device=_word("draft_device", draft_device),
        provider=_word("draft_execution_provider", draft_execution_provider),
        options=_options("draft_provider_options", draft_provider_options),
        libraries=libraries,
        report=report,
    )
    return target, draft


def usual_precision(precision: str | None, place: Place) -> str | None:
    """What was asked for, int8 on the CPU; None takes what suits another provider best."""
    return "int8" if precision is None and place.provider == "CPU" else precision


def _word(name: str, value: object) -> str | None:
    return None if value is None else text(name, value)


def _options(name: str, asked: object) -> dict[str, str]:
    if asked is None:
        return {}
    if not isinstance(asked, Mapping):
        raise UsageError(f"{name} must be a mapping of keys and values; it is {asked!r:.80}.")
    return {text(f"a key of {name}", key): text(f"{name}[{key}]", asked[key]) for key in asked}


def _libraries(asked: object) -> dict[str, Path]:
    """Files by the key of the provider they are of."""
    if asked is None:
        return {}
    if not isinstance(asked, Mapping):
        raise UsageError(f"ep_libraries must be a mapping of names and files; it is {asked!r:.80}.")
    return {
        providers.key_of("library", text("a key of ep_libraries", name)): path(
            f"ep_libraries[{name}]", asked[name]
        )
        for name in asked
    }
