"""Which devices there are, and what a device's word and a provider's name mean here."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import ProviderError, UsageError
from runtime.providers.libraries import is_built_in, known_devices, register
from runtime.providers.options import read_options
from runtime.providers.place import Place
from runtime.providers.provider import KINDS, Kind
from runtime.providers.table import BEST, PROVIDERS

KINDS_OF_TYPES: Mapping[str, Kind] = {kind: kind for kind in KINDS}
ALIASES = {"tensorrtrtx": "NvTensorRTRTX"}


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a provider. number: among the provider's of its kind, real ones first.

    emulated: software plays it. listed: onnxruntime's OrtEpDevice, None where it lists none, of a
    provider that is built in the old way. hardware: equal where two providers mean one thing.
    """

    provider: str
    kind: Kind
    number: int
    emulated: bool
    listed: Any
    hardware: object


def devices(key: str) -> list[Device]:
    """What a provider finds here, after `register`."""
    provider = PROVIDERS[key]
    found: list[tuple[Kind, bool, Any]] = []
    for listed in known_devices(key):
        if str(listed.device.metadata.get("is_virtual", "0")) == "1":
            continue
        kind = KINDS_OF_TYPES.get(str(listed.device.type).rpartition(".")[2])
        played = provider.stands_for if kind == "CPU" else None
        if kind is not None:
            found.append((played or kind, played is not None, listed))
    if not found and is_built_in(key):
        found = [(kind, False, None) for kind in provider.devices]
    ordered = sorted(found, key=lambda each: each[1])  # stable: onnxruntime's order otherwise
    counted: list[Device] = []
    for kind, emulated, listed in ordered:
        number = sum(each.kind == kind for each in counted)
        if kind in provider.devices and not (number and provider.chooses_itself):
            hardware = (key, kind) if listed is None else _identity(listed.device)
            counted.append(Device(key, kind, number, emulated, listed, hardware))
    return counted


def find_word(word: str) -> tuple[Kind, int | None]:
    """A device's kind and number, None where it names none; UsageError for what is no word."""
    match = re.fullmatch(r"(CPU|GPU|NPU)(?::(\d{1,3}))?", word.strip().upper())
    if match is None:
        raise UsageError(
            f"{word!r} is no device: say {', '.join(KINDS)}, or GPU:1 for the second GPU."
        )
    kind = next(kind for kind in KINDS if kind == match[1])
    return kind, None if match[2] is None else int(match[2])


def key_of(role: str, name: str) -> str:
    """The key of PROVIDERS that `name` means, in any case and with onnxruntime's ending or not.

    Raises UsageError for a provider that is not known.
    """
    short = re.sub(r"[-_ ]", "", name.lower()).removesuffix("executionprovider")
    for key, provider in PROVIDERS.items():
        own = provider.ep_name.lower().removesuffix("executionprovider")
        if short in (key.lower(), own):
            return key
    if short in ALIASES:
        return ALIASES[short]
    lower = {key.lower(): key for key in PROVIDERS}
    near = difflib.get_close_matches(short, lower, n=1, cutoff=0.6)
    hint = f"; the nearest is {lower[near[0]]}" if near else ""
    if short.upper() in KINDS:
        hint = ": it is a device, not a provider"
    raise UsageError(
        f"The {role} was asked for on the execution provider {name!r}, which is not known{hint}. "
        f"Known are {', '.join(PROVIDERS)}."
    )


def candidates(role: str, device: str | None, provider: str | None) -> tuple[str, ...]:
    """The providers that `role` may get by a word and a name, best first; raises UsageError."""
    if provider is not None:
        return (key_of(role, provider),)
    return () if device is None else BEST[find_word(device)[0]]


def resolve(
    role: str,
    *,
    device: str | None = None,
    provider: str | None = None,
    options: Mapping[str, str] | None = None,
    libraries: Mapping[str, Path] | None = None,
    beside: tuple[str, ...] = (),
    report: Callable[[str], None] | None = None,
) -> Place:
    """Where `role` runs: on the CPU where nothing is asked for.

    device: a word; without a provider the best one that has such a device, never an emulated one.
    provider: a name; without a device the first of its kinds that is here. libraries: files by the
    provider's key. beside: what the other model may run on. Raises UsageError for what cannot be
    meant, ProviderError for what is not here.
    """
    kind, number = (None, None) if device is None else find_word(device)
    if provider is None:
        if kind in (None, "CPU") and not number:
            found = _unlisted("CPU", "CPU", 0)
        else:
            found = _best(role, kind or "CPU", number or 0, libraries or {})
    else:
        found = _of_provider(role, key_of(role, provider), kind, number or 0, libraries or {})
    own = PROVIDERS[found.provider]
    for key in options or {}:
        others = [each for each in beside if key in PROVIDERS[each].option_keys]
        if key not in own.option_keys and others:
            raise UsageError(_meant_for_the_other(role, found.provider, key, others[0]))
        if key in own.elsewhere:
            raise UsageError(
                f"The {role}'s provider {found.provider} ignores the option {key}; say it by "
                f"{own.elsewhere[key]}."
            )
    read = read_options(role, found.provider, own.options, options or {})
    return Place(
        found.provider,
        found.kind,
        found.number,
        tuple(sorted(read.items())),
        (libraries or {}).get(found.provider),
        report,
    )


def device_of(place: Place) -> Device:
    """The device of a place, its library registered; ProviderError where it is not here."""
    register(place.provider, place.library)
    for device in devices(place.provider):
        if (device.kind, device.number) == (place.kind, place.number):
            return device
    if _told_by_number(place.provider, place.kind):
        return _unlisted(place.provider, place.kind, place.number)
    raise ProviderError(f"{place}: {place.provider} finds no such device on this machine.")


def _meant_for_the_other(role: str, provider: str, key: str, other: str) -> str:
    flag = "--draft-provider-option" if role == "target" else "--provider-option"
    name = flag.removeprefix("--").replace("-", "_")
    return (
        f"The {role}'s provider {provider} has no option {key!r}, and {other} has it: for the "
        f"other model it is {flag} {key}=… ({name}s in a program)."
    )


def _best(role: str, kind: Kind, number: int, libraries: Mapping[str, Path]) -> Device:
    """The device of a kind, by the best provider that has it.

    Counted are distinct ones, in the order in which the providers, best first, name them.
    """
    seen: list[object] = []
    reasons: list[str] = []
    for key in BEST[kind]:
        try:
            register(key, libraries.get(key))
            own = [each for each in devices(key) if each.kind == kind]
        except ProviderError as error:
            reasons.append(str(error).partition(": it comes with")[0].rstrip("."))
            continue
        for found in own:
            if found.emulated:
                reasons.append(f"{key} only emulates one, and must be named for that")
            elif found.hardware not in seen:
                seen.append(found.hardware)
                if len(seen) > number:
                    return found
        if not own:
            reasons.append(f"{key} finds none")
    word = f"{kind}:{number}" if number else kind
    raise ProviderError(
        f"The {role} was asked for on {word}, and there is no such device that an execution "
        f"provider runs on. {' '.join(f'{each}.' for each in reasons)}".rstrip()
    )


def _of_provider(
    role: str, key: str, kind: Kind | None, number: int, libraries: Mapping[str, Path]
) -> Device:
    register(key, libraries.get(key))
    if kind is not None and kind not in PROVIDERS[key].devices:
        raise ProviderError(
            f"The {role} was asked for on {key}'s {kind}; {key} runs on "
            f"{' and '.join(PROVIDERS[key].devices)}."
        )
    own = devices(key)
    kinds = [kind] if kind else list(PROVIDERS[key].devices)
    for each in kinds:
        for found in own:
            if (found.kind, found.number) == (each, number):
                return found
        if _told_by_number(key, each):
            return _unlisted(key, each, number)
    names = ", ".join(f"{each.kind}:{each.number}" for each in own)
    asked = f" {kind}:{number}" if kind else ""
    raise ProviderError(
        f"The {role} was asked for on {key}{asked}, and {key} finds "
        f"{names or 'no device of its own'} on this machine."
    )


def _told_by_number(key: str, kind: Kind) -> bool:
    """Whether onnxruntime lists none of the provider's devices and it takes a number instead."""
    provider = PROVIDERS[key]
    takes = provider.number_key is not None and kind in provider.devices
    return takes and is_built_in(key) and not known_devices(key)


def _unlisted(key: str, kind: Kind, number: int) -> Device:
    """A device that onnxruntime is told by its number."""
    return Device(key, kind, number, emulated=False, listed=None, hardware=(key, kind, number))


def _identity(hardware: Any) -> object:
    described = tuple(sorted((str(key), str(value)) for key, value in hardware.metadata.items()))
    return (str(hardware.type), hardware.vendor_id, hardware.device_id, described)
