"""Where a graph runs: the only file that names an execution provider."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnxruntime as ort

from runtime.errors import BundleError, ProviderError
from runtime.pages import huge_pages

SUPPORTED_DEVICES = ("CPU",)
CPU_PROVIDER = "CPUExecutionProvider"


def check_device(role: str, device: str) -> None:
    """Refuse a device word that nothing here can honour; raises ProviderError."""
    if device not in SUPPORTED_DEVICES:
        raise ProviderError(
            f"The {role} was asked for on {device!r}; this version runs on "
            f"{', '.join(SUPPORTED_DEVICES)} only, so leave the option out."
        )


def usable_cores() -> list[int]:
    """The logical cores this process may use, lowest first."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Keep the calling thread on one logical core, where the system can; None leaves it free."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def load(
    path: Path, *, threads: int, cores: tuple[int, ...] = (), share_cpu: bool = False
) -> ort.InferenceSession:
    """Load a graph on the CPU.

    threads: how many threads one run uses, the calling thread among them.
    cores: one logical core for each of them; the first is the caller's, who pins itself.
    share_cpu: another session works at the same time, so idle threads must sleep, not spin.
    Raises BundleError when onnxruntime cannot read the graph, ProviderError when it would run
    anywhere but where it was asked to.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its errors are raised too
    if share_cpu:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if len(cores) == threads and threads > 1:
        others = ";".join(str(core + 1) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    try:
        with huge_pages():
            session = ort.InferenceSession(path, options, providers=[CPU_PROVIDER])
    except Exception as error:  # onnxruntime raises a dozen unrelated classes for a bad file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BundleError(f"{path} cannot be loaded: {reason}; build the bundle again.") from error
    session.disable_fallback()
    used = session.get_providers()
    if used != [CPU_PROVIDER]:
        raise ProviderError(f"{path} was to run on {CPU_PROVIDER} but onnxruntime chose {used}.")
    return session
