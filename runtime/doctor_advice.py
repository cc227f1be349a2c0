"""What to do where something cannot run, and the flags that would work on this machine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime.doctor_flags import LONG_LIMIT_S
from runtime.doctor_roles import RoleCheck
from runtime.doctor_tries import Found
from runtime.manifest import Precision, RoleName
from runtime.providers import BEST, PROVIDERS, Kind, Place, Surroundings, find_word, key_of

Takes = Callable[[RoleName, Place, Precision | None], bool]


def of_provider(
    key: str,
    found: Found,
    kinds: Sequence[Kind],
    said: str,
    here: Surroundings,
    *,
    emulated: bool = False,
) -> list[str]:
    """What helps where a provider lacks a device of one of `kinds`, or fails on it with `said`."""
    around = replace(here, missing=frozenset(found["missing"]), software=emulated)
    return [
        advice.text
        for advice in PROVIDERS[key].advice
        if any(advice.holds(kind, said, around) for kind in kinds)
    ]


def of_listing(key: str, found: Found, here: Surroundings) -> list[str]:
    """What helps with a provider that is installed and has no device, or one that fails."""
    failed = [each for each in found["devices"] if each["smoke"]["verdict"] == "failed"]
    texts = []
    for device in failed:
        said, emulated = device["smoke"]["reason"], device["emulated"]
        texts += of_provider(key, found, [device["kind"]], said, here, emulated=emulated)
    if not found["devices"] and is_installed(found):
        texts += of_provider(key, found, list(PROVIDERS[key].devices), found["reason"], here)
    return list(dict.fromkeys(texts))


def of_role(
    check: RoleCheck,
    asked: Mapping[str, Any],
    providers: Mapping[str, Found],
    here: Surroundings,
) -> list[str]:
    """What helps a role that cannot run as asked."""
    if check.reason is None:
        return []
    texts: list[str] = []
    if check.place is not None:
        key, kinds = check.place.provider, [check.place.kind]
        texts += of_provider(
            key, providers[key], kinds, check.reason, here, emulated=check.emulated
        )
        if "the time limit" in check.reason:
            texts.append(f"Give it longer: --time-limit {LONG_LIMIT_S}.")
        return list(dict.fromkeys(texts))
    kind = None if asked["device"] is None else find_word(asked["device"])[0]
    named = asked["execution_provider"]
    keys = BEST[kind] if named is None and kind else [key_of(check.role, named or "CPU")]
    for key in keys:
        if is_installed(providers[key]):
            kinds = [kind] if kind else list(PROVIDERS[key].devices)
            texts += of_provider(key, providers[key], kinds, check.reason, here)
    absent = [key for key in keys if not is_installed(providers[key])]
    wanted = next(iter(PROVIDERS[keys[0]].devices)) if kind is None else kind
    texts += _to_install(absent, wanted, here)
    return list(dict.fromkeys(texts))


def is_installed(found: Found) -> bool:
    """Whether a provider's library is here, with devices or without."""
    return found["version"] is not None or found["package"] is not None


def best_pair(providers: Mapping[str, Found], takes: Takes, *, emulated: bool = False) -> str:
    """The flags of the best pair on devices that computed right, "" for both on the CPU.

    takes: whether a role has a graph for a place, in a precision where one is named, and was not
    seen to fail there. A GPU that has no float16 gets fp32. emulated: on
    those that software plays, not on real ones.
    """
    target = _flags("target", "GPU", providers, takes, emulated=emulated)
    draft = _flags("draft", "NPU", providers, takes, emulated=emulated)
    if not target and not draft:  # the target may have no graph for a GPU, and the draft one
        draft = _flags("draft", "GPU", providers, takes, emulated=emulated)
    return " ".join((*target, *draft))


def _flags(
    role: RoleName,
    kind: Kind,
    providers: Mapping[str, Found],
    takes: Takes,
    *,
    emulated: bool,
) -> list[str]:
    """What asks for the best device of a kind; the provider only where the word means another."""
    device, provider = "--draft-device", "--draft-execution-provider"
    if role == "target":
        device, provider = "--device", "-e"
    here = [
        (key, found["smoke"])
        for key in BEST[kind]
        for found in providers[key]["devices"]
        if (found["kind"], found["number"], found["emulated"]) == (kind, 0, emulated)
    ]
    for key, smoke in here:
        precision: Precision | None = "fp32" if smoke.get("float16") is False else None
        if smoke["verdict"] == "right" and takes(role, Place(key, kind), precision):
            named = [] if not emulated and key == here[0][0] else [f"{provider} {key}"]
            told = [f"--precision {precision}"] if precision and role == "target" else []
            return [f"{device} {kind}", *named, *told]
    return []


def _to_install(keys: Sequence[str], kind: Kind, here: Surroundings) -> Iterator[str]:
    """How to get providers that are not here and of use on this system, by the kernel's devices."""
    useless = []
    for key in keys:
        provider = PROVIDERS[key]
        if here.system not in provider.systems:
            continue  # as its own error says
        if here.system == "linux" and not here.has(kind) and provider.stands_for != kind:
            useless.append(key)
            continue
        extra = f', the extra "{provider.extra}" of this package' if provider.extra else ""
        if provider.distribution is not None:
            yield f"{key}: python -m pip install {provider.distribution}{extra}"
        elif provider.extra is not None:
            yield (
                f"{key}: python -m pip install {provider.built_in}{extra}; uninstall onnxruntime "
                "before"
            )
    if useless:
        yield f"The kernel offers no {kind}: {', '.join(useless)} would find none."
