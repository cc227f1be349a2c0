"""Loading a graph on the provider that was asked for: all of it there, or a word about the rest."""

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import onnxruntime as ort

from runtime.compiled import forget
from runtime.errors import BundleError, ProviderError
from runtime.layout import Sharing
from runtime.pages import huge_pages
from runtime.providers.devices import Device, device_of
from runtime.providers.keeping import Form, compiling_form, kept_form
from runtime.providers.native import native
from runtime.providers.place import Place
from runtime.providers.quiet import printed_to_stderr
from runtime.providers.table import PROVIDERS, as_place
from runtime.providers.turns import in_turn, turn_on

MOST_REASON = 800  # characters; WebGPU takes 630 to say that there is no GPU
FALLBACK = " --allow-cpu-fallback (allow_cpu_fallback in a program) lets them run there."
DOCTOR, REBUILD = "ask mirror-doctor of the device, or ", "build the bundle again."
FORBIDDEN = "fallback to CPU EP has been explicitly disabled"  # onnxruntime's own words


def load(
    path: Path,
    *,
    threads: int,
    name: str | Place = "CPU",
    cores: tuple[int, ...] = (),
    sharing: Sharing = "alone",
) -> ort.InferenceSession:
    """Load a graph in a place, or on the first kind of device of a provider, all of it there.

    threads: how many threads one run uses, the calling thread among them.
    cores: one logical core for each of them; the first is the caller's, who pins itself.
    sharing: with a session that works in turn, threads spin during a run and no longer; with one
    that works at once, idle threads sleep.
    Raises BundleError when onnxruntime cannot read the graph, ProviderError when a node of it
    would run anywhere but where it was asked to and the place has no `report` for that.
    """
    place = as_place(name)
    device = device_of(place)
    options = partial(_session_options, threads, cores, sharing)
    told, plain = (told_options(place, device, count) for count in (threads, 1))
    form = kept_form(path, place, device, told, plain=plain)
    try:
        return _in_turn(form, path, place, device, options)
    except (BundleError, ProviderError) as error:
        if form.kept is None:
            raise
        # As another driver may refuse it, or what was made elsewhere for a chip that is not here.
        if place.say is not None:
            place.say(f"What was compiled of it in {form.kept} is of no use: {error}")
        with contextlib.suppress(OSError):
            forget(form.kept)
    form = kept_form(path, place, device, told, plain=plain)
    return _in_turn(form, path, place, device, options)


def keep(path: Path, place: Place) -> Path | None:
    """Compile a graph where its place keeps that and does not have it yet; the folder of it.

    None: nothing is kept. Raises ProviderError where compiling fails.
    """
    device = device_of(place)
    plain = told_options(place, device, 1)
    return kept_form(path, place, device, plain, plain=plain).kept


def compile_graph(path: Path, to: Path, *, place: Place) -> None:
    """Have a provider compile a graph into the folder `to`, in this process; errors as `load`."""
    device = device_of(place)
    form = compiling_form(path, place, told_options(place, device, 1), to)
    _in_turn(form, path, place, device, partial(_session_options, 1, (), "alone"))


def _in_turn(
    form: Form, path: Path, place: Place, device: Device, new_options: Callable[[], Any]
) -> ort.InferenceSession:
    """The session of a graph's `form`, which takes turns where the provider needs that."""
    provider = PROVIDERS[place.provider]

    def open_session(*, strict: bool) -> ort.InferenceSession:
        options = new_options()
        if place.provider == "CPU":
            return _open(form.file, options, ["CPUExecutionProvider"])
        options.enable_mem_pattern = provider.memory_pattern
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if strict:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            for key, value in form.entries.items():
                options.add_session_config_entry(key, value)
        told = {key: native(value) for key, value in form.options.items()}
        if device.listed is None:
            return _open(form.file, options, [(provider.ep_name, told)])
        options.add_provider_for_devices([device.listed], told)
        return _open(form.file, options, None)

    # Only there, as what another thread prints meanwhile, of an answer too, goes the same way.
    quiet = printed_to_stderr() if device.emulated else contextlib.nullcontext()
    with turn_on(place), quiet:
        session = _opened(open_session, path, place)
    return in_turn(session, place)


def told_options(place: Place, device: Device, threads: int) -> dict[str, str]:
    """What the provider is told: its defaults here, then what the user said."""
    provider = PROVIDERS[place.provider]
    defaults = provider.defaults(place.kind, threads)
    if device.emulated:
        defaults |= provider.emulated
    if device.listed is None and provider.number_key is not None:
        defaults[provider.number_key] = str(place.number)
    return provider.merge(defaults, dict(place.options))


def strays(session: ort.InferenceSession, place: Place) -> dict[str, Counter[str]]:
    """How many nodes of which operators a session runs elsewhere, by the provider they are on."""
    own = PROVIDERS[place.provider].ep_name
    return {name: kinds for name, kinds in placed(session).items() if name != own}


def placed(session: ort.InferenceSession) -> dict[str, Counter[str]]:
    """How many nodes of which operators a session runs by each provider.

    Of one on the CPU provider alone onnxruntime was not asked to tell.
    """
    found: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        kinds = Counter(str(node.op_type) for node in part.get_nodes())
        found.setdefault(str(part.ep_name), Counter()).update(kinds)
    return found


def _session_options(threads: int, cores: tuple[int, ...], sharing: Sharing) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its errors are raised too
    # Or the CPU provider rounds rows to 8 bits where a graph's weights are in levels.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if sharing == "at once":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif sharing == "in turn":
        options.add_session_config_entry("session.force_spinning_stop", "1")
    if len(cores) == threads and threads > 1:
        others = ";".join(str(core + 1) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    return options


def _open(path: Path, options: ort.SessionOptions, names: list[Any] | None) -> ort.InferenceSession:
    with huge_pages():
        session = ort.InferenceSession(native(path), options, providers=names)
    session.disable_fallback()
    return session


def _opened(
    open_session: Callable[..., ort.InferenceSession], path: Path, place: Place
) -> ort.InferenceSession:
    """The session, with its nodes where they belong; errors as `load`."""
    strict = place.report is None
    try:
        session = open_session(strict=strict)
    except Exception as error:  # onnxruntime raises a dozen unrelated classes for a bad file
        if strict and FORBIDDEN in str(error):
            raise _misplaced(path, place, strays(open_session(strict=False), place)) from None
        # OpenVINO says first in which of its files, and at last what is wrong.
        reason = shorten(str(error), MOST_REASON, placeholder=" …") or type(error).__name__
        advice = "" if place.provider == "CPU" else DOCTOR
        if place.options:
            advice = f"leave out {' and '.join(key for key, _ in place.options)}, {advice}"
        raise BundleError(
            f"{path} cannot be loaded on {place}: {reason}; {advice}{REBUILD}"
        ) from error
    if place.provider == "CPU":
        used = [each for each in session.get_providers() if each != "CPUExecutionProvider"]
        if used:
            raise ProviderError(f"{path} was to run on CPU but onnxruntime chose {used}.")
        return session
    elsewhere = strays(session, place)
    if elsewhere and place.report is None:
        raise _misplaced(path, place, elsewhere)
    if elsewhere and place.report is not None:
        place.report(f"{path} runs on {place}, except for {_listed(elsewhere)}.")
    return session


def _misplaced(path: Path, place: Place, elsewhere: dict[str, Counter[str]]) -> ProviderError:
    return ProviderError(
        f"{path} was to run on {place}, but onnxruntime put operators elsewhere "
        f"({_listed(elsewhere) or 'it does not say which'}).{FALLBACK}"
    )


def _listed(elsewhere: dict[str, Counter[str]]) -> str:
    return "; ".join(
        f"{where}: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}"
        for where, kinds in sorted(elsewhere.items())
    )
