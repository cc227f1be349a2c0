"""The doctor's document for a reader, and as rows of the table in docs/providers.md."""

import math
from collections.abc import Iterator, Mapping
from textwrap import shorten
from typing import Any

from runtime.doctor_flags import LONG_LIMIT_S
from runtime.doctor_roles import apart, listed

Report = Mapping[str, Any]


def shown(report: Report) -> str:
    """The report for a reader."""
    lines = [*_machine(report["machine"]), "", "providers"]
    for found in report["providers"]:
        lines += _provider(found)
    pair = report["pair"]
    for role in pair["roles"]:
        if role["graphs"]:
            lines += ["", *_shown_role(role)]
    lines.append("")
    if pair["needed_bytes"] is not None:
        needed, free = _size(pair["needed_bytes"]), _size(pair["available_bytes"])
        lines.append(f"memory: about {needed} needed, {free} available")
    places = ", ".join(
        f"{role['role']} on {role['place']['words'] if role['place'] else 'no device'}"
        for role in pair["roles"]
    )
    lines.append(f"The pair {_whether(pair)} run as asked: {places}.")
    lines += [f"  {reason}" for reason in pair["reasons"]]
    lines += [f"  advice: {text}" for text in pair["advice"]]
    best = pair["best"] or "both models on the CPU, without flags of devices"
    lines.append(f"The best pair here: {best}.")
    if pair["emulated"]:
        lines.append(
            f"Software plays devices, for a try: {pair['emulated']}. It is slow: with --model give "
            f"each step here --time-limit {LONG_LIMIT_S}."
        )
    return "\n".join(lines)


def _whether(pair: Report) -> str:
    late = [role for role in pair["roles"] if any(graph["late"] for graph in role["graphs"])]
    if pair["can_run"]:
        return "can"
    return "was not shown to" if len(late) == len(pair["reasons"]) else "cannot"


def rows(report: Report) -> Iterator[str]:
    """Rows for the table in docs/providers.md, of every graph that was tried."""
    versions = {found["provider"]: found for found in report["providers"]}
    for role in report["pair"]["roles"]:
        for graph in role["graphs"]:
            found = versions[role["place"]["provider"]]
            yield _row(role, graph, found, report["machine"])


def _row(role: Report, graph: Report, found: Report, machine: Mapping[str, Any]) -> str:
    key = found["provider"]
    version = found["package"] or f"onnxruntime {machine['onnxruntime']}"
    kind, number = role["place"]["kind"], role["place"]["number"]
    named = [
        each["name"] or each["vendor"]
        for each in found["devices"]
        if (each["kind"], each["number"]) == (kind, number)
    ]
    where = next((name for name in named if name), f"{kind}:{number}")
    if role["emulated"]:
        where = f"{kind} played by software on {machine['processor']}"
    elif kind == "CPU":
        where = machine["processor"]
    tried = [each for each in (graph["trial"], graph["greedy"]) if each is not None]
    far = max(tried, key=_share, default=None)
    beside = "–" if far is None else apart(far).removeprefix("off by ")
    equal = "–" if graph["trial"] is None or graph["reason"] else "not done"
    if graph["greedy"] is not None:
        equal = f"{graph['greedy']['equal']} of {graph['greedy']['rows']}"
    if graph["reason"] is not None:
        reason = " ".join(graph["reason"].replace("|", "/").split())
        beside = f"fails: {shorten(reason, 260, placeholder=' …')}"
    parity = graph["parity"]
    own = f"{parity['largest_logit_difference']:.2g}, {parity['equal_greedy_share']:.3g}"
    ran = f"{role['model']}, {role['role']}, on {where}"
    cells = (key, version, graph["flavour"], graph["precision"], ran, beside, equal, own)
    return f"| {' | '.join(cells)} |"


def _share(found: Report) -> float:
    """How far off, for a comparison; what is no number is furthest."""
    difference = found["largest_difference"]
    return math.inf if difference is None else float(difference) / (found["spread"] or 1.0)


def _machine(machine: Mapping[str, Any]) -> Iterator[str]:
    yield "machine"
    yield f"  processor    {machine['processor']}, {machine['cores']} cores for this process"
    free, there = _size(machine["available_bytes"]), _size(machine["memory_bytes"])
    yield f"  memory       {free} free of {there}"
    yield f"  system       {machine['system']}, Python {machine['python']}"
    packages = ", ".join(machine["onnxruntime_packages"])
    yield f"  onnxruntime  {packages or machine['onnxruntime']} ({machine['onnxruntime_build']})"
    for device in machine["devices"] or ():
        parts = [device["vendor"], device["device"], device["driver"], device["driver_version"]]
        told = " ".join(part for part in parts if part)
        memory = device["memory_bytes"]
        yield (
            f"  {device['file']}  {told or 'unknown'}"
            f"{f', {_size(memory)}' if memory else ''}"
            f"{'' if device['opens'] else ', not for this user'}"
        )
    if machine["devices"] == []:
        yield "  GPU, NPU     the kernel offers none (/dev/dri, /dev/accel)"


def _provider(found: Report) -> Iterator[str]:
    key = found["provider"]
    if not found["devices"]:
        yield f"  {found['reason']}"
    else:
        source = found["package"] or "in onnxruntime"
        yield f"  {key} {found['version']} ({source})"
        if found["library"]:
            yield f"    from {found['library']}"
    for device in found["devices"]:
        word = f"{device['kind']}:{device['number']}" if device["number"] else device["kind"]
        told = [device["name"] or device["vendor"] or "no more is told"]
        told += [f"{what} {device[what]}" for what in ("driver", "memory") if device[what]]
        told += ["played by software"] if device["emulated"] else []
        yield f"    {word}: {', '.join(told)}"
        yield f"      {_smoke(device['smoke'])}"
    for text in found["advice"]:
        yield f"    advice: {text}"


def _smoke(smoke: Report) -> str:
    if smoke["verdict"] == "failed":
        return f"a small graph fails: {smoke['reason']}"
    seconds = f"in {smoke['seconds']:.2g} s"
    lacks = ", and not in float16" if smoke["float16"] is False else ""
    return f"a small graph runs {smoke['verdict']}, {apart(smoke)}, {seconds}{lacks}"


def _shown_role(role: Report) -> Iterator[str]:
    emulated = ", which software plays" if role["emulated"] else ""
    yield f"{role['role']} on {role['place']['words']}{emulated}"
    for graph in role["graphs"]:
        yield (
            f"  {role['model']} {graph['name']}: {_size(graph['bytes'])} of files, "
            f"about {_size(graph['needed_bytes'])} of memory"
        )
        nodes = graph["nodes"]
        if nodes is not None:
            counts = {name: sum(kinds.values()) for name, kinds in nodes.items()}
            yield f"    nodes: {', '.join(f'{count} on {name}' for name, count in counts.items())}"
            if len(nodes) > 1:
                yield f"    {listed(nodes)}"
        trial = graph["trial"]
        if trial is not None:
            yield (
                f"    beside the CPU: {apart(trial)}, {trial['equal']} of {trial['rows']} rows "
                f"choose the same token; {trial['seconds']:.0f} s"
            )
        if graph["late"]:
            yield "    not done in time: a larger --time-limit may show whether it runs"
        else:
            yield f"    {'it runs' if graph['reason'] is None else 'it does not run'}"


def _size(count: int | None) -> str:
    if count is None:
        return "(the system does not say how much)"
    return f"{count / 1e9:.2g} GB" if count >= 1e8 else f"{count / 1e6:.2g} MB"
