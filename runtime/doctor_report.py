"""What the doctor tells, as one document for JSON."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.doctor_advice import best_pair, is_installed, of_listing, of_role
from runtime.doctor_roles import Pair, RoleCheck, check_memory
from runtime.doctor_tries import Found
from runtime.errors import BundleError
from runtime.flavours import choose_graph, suited
from runtime.manifest import Precision, RoleName
from runtime.memory import available_bytes
from runtime.providers import PROVIDERS, Place, Surroundings

FORMAT, FORMAT_VERSION = "mirror-doctor", 1
Report = dict[str, Any]


def document(
    *,
    machine: Mapping[str, Any],
    providers: Mapping[str, Found],
    checks: Sequence[RoleCheck],
    pair: Pair | None,
    asked: Mapping[str, Mapping[str, Any]],
    here: Surroundings,
) -> Report:
    """Everything there is to say, ready for JSON; docs/doctor.md explains it."""
    reasons = [f"{check.role}: {check.reason}" for check in checks if check.reason is not None]
    advice = [
        text for check in checks for text in of_role(check, asked[check.role], providers, here)
    ]
    needed = None
    if pair is not None and any(check.graphs for check in checks):
        needed, short = check_memory(list(checks), pair)
        reasons += [] if short is None else [short]
    if pair is not None:
        advice += [text for check in checks for text in _other_precisions(check, pair)]
    if len(builds := machine["onnxruntime_packages"]) > 1:
        advice.append(
            f"Several builds of onnxruntime are installed ({', '.join(builds)}) and overwrite each "
            "other: uninstall all, then install one."
        )

    def takes(role: RoleName, place: Place, precision: Precision | None) -> bool:
        if any(_fails(each, role, place, precision) for each in checks):
            return False
        if pair is None:
            return True
        found = pair.of(role)
        if found is None:
            return False
        try:
            graph = choose_graph(*found, place, precision if role == "target" else None)
        except BundleError:
            return False
        return precision is None or graph.precision != "fp16"

    found: Report = _finite(
        {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "machine": dict(machine),
            "providers": [
                {
                    "provider": key,
                    "ep_name": PROVIDERS[key].ep_name,
                    "installed": is_installed(found),
                    **{name: value for name, value in found.items() if name != "missing"},
                    "advice": of_listing(key, found, here),
                }
                for key, found in providers.items()
            ],
            "pair": {
                "can_run": not reasons,
                "reasons": reasons,
                "advice": list(dict.fromkeys(advice)),
                "best": best_pair(providers, takes),
                "emulated": best_pair(providers, takes, emulated=True),
                "needed_bytes": needed,
                "available_bytes": available_bytes(),
                "roles": [_role(check) for check in checks],
            },
        }
    )
    return found


def _fails(check: RoleCheck, role: RoleName, place: Place, precision: Precision | None) -> bool:
    """Whether a role was seen to fail in a place, in this precision where one is named.

    Software that was only slow may be tried on.
    """
    if check.role != role or check.reason is None or check.place is None:
        return False
    slow = check.emulated and any(graph.late for graph in check.graphs)
    other = any(graph.precision == "fp16" for graph in check.graphs) and precision is not None
    return place.same_device(check.place) and not slow and not other


def _other_precisions(check: RoleCheck, pair: Pair) -> list[str]:
    """Of a target whose graph fails in its place, which precisions the bundle has there besides."""
    found = pair.of(check.role)
    if check.role != "target" or check.reason is None or not check.graphs or found is None:
        return []
    assert check.place is not None  # a graph was tried there
    tried = {graph.precision for graph in check.graphs}
    others = {graph.precision: None for graph in suited(*found, check.place)}
    left = [each for each in others if each not in tried]
    if not left:
        return []
    return [f"The bundle has other graphs for {check.place}: --precision {' or '.join(left)}."]


def _finite(value: Any) -> Any:
    """The value with None for what is no number, or infinite, as JSON has neither."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _role(check: RoleCheck) -> Report:
    found = dataclasses.asdict(dataclasses.replace(check, place=None))
    if check.place is None:
        return found
    place = {**check.place.as_data(), "words": str(check.place)}
    for name in ("compiled", "wide"):  # nothing is kept here, nor tried with calls of any width
        del place[name]
    return found | {"place": place}
