"""Where target and draft run, from what a program or a command line asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime import providers
from runtime.checks import path, text
from runtime.errors import ProviderError, UsageError
from runtime.providers import Place

OF_PLACES = (
    *("device", "draft_device", "execution_provider", "draft_execution_provider"),
    *("ep_libraries", "provider_options", "draft_provider_options"),
)


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
    Raises UsageError for values of a wrong kind, for options that a provider does not have and for
    what would be of no use; ProviderError for a device or provider that cannot be used here.
    """
    libraries = libraries_of(ep_libraries)
    words = _word("device", device), _word("execution_provider", execution_provider)
    draft_words = (
        _word("draft_device", draft_device),
        _word("draft_execution_provider", draft_execution_provider),
    )
    options = _options("provider_options", provider_options)
    draft_options = _options("draft_provider_options", draft_provider_options)
    shared: dict[str, Any] = {"libraries": libraries, "report": report}
    try:
        target = providers.resolve(
            "target",
            device=words[0],
            provider=words[1],
            options=options,
            beside=providers.candidates("draft", *draft_words),
            **shared,
        )
        draft = providers.resolve(
            "draft",
            device=draft_words[0],
            provider=draft_words[1],
            options=draft_options,
            beside=providers.candidates("target", *words),
            **shared,
        )
    except ProviderError as error:
        said = str(error).rstrip(".")
        raise ProviderError(f"{said}. mirror-doctor says what is here.") from error
    _check_used(libraries, target, draft)
    return target, draft


def of_target(settings: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Of what both models share, by the names of `open_session`, what is left for the target.

    place: the target's. For a session without a draft model, where the rest would be refused.
    """
    libraries = {
        name: file
        for name, file in (settings["ep_libraries"] or {}).items()
        if providers.key_of("library", name) == place.provider
    }
    return {
        "ep_libraries": libraries or None,
        "allow_cpu_fallback": settings["allow_cpu_fallback"] and place.provider != "CPU",
    }


def places_of(
    settings: Mapping[str, Any], report: Callable[[str], None] | None = None
) -> tuple[Place, Place]:
    """The places of settings by the names of `open_session`; raises as `find_places`."""
    return find_places(
        **{name: settings[name] for name in OF_PLACES},
        report=report if settings["allow_cpu_fallback"] else None,
    )


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


def libraries_of(asked: object) -> dict[str, Path]:
    """Files by the key of the provider they are of; raises UsageError."""
    if asked is None:
        return {}
    if not isinstance(asked, Mapping):
        raise UsageError(f"ep_libraries must be a mapping of names and files; it is {asked!r:.80}.")
    found: dict[str, Path] = {}
    for name in asked:
        key = providers.key_of("library", text("a key of ep_libraries", name))
        if key in found:
            raise UsageError(f"ep_libraries names {key} twice; a process takes one library of it.")
        found[key] = path(f"ep_libraries[{name}]", asked[name])
    return found


def _check_used(libraries: Mapping[str, Path], target: Place, draft: Place) -> None:
    """Refuse what neither model would use; UsageError."""
    used = {target.provider, draft.provider}
    where = f"the target runs on {target}, the draft on {draft}"
    for key in libraries:
        if key not in used:
            raise UsageError(
                f"ep_libraries (--ep-library) names a library of {key}, and neither model uses it: "
                f"{where}. Ask for {key}, or leave the library out."
            )
    if target.report is not None and used == {"CPU"}:
        raise UsageError(
            "allow_cpu_fallback is for operators that a device does not take, and no device was "
            f"asked for: {where}. Leave it out."
        )
