"""Who gets which cores when draft and target share one processor."""

from dataclasses import dataclass
from typing import Literal

from runtime.errors import UsageError

MOST_THREADS = 512
Sharing = Literal["alone", "in turn", "at once"]  # of one processor by the sessions of a process


@dataclass(frozen=True, slots=True)
class Layout:
    """Threads of each model and the logical cores they are pinned to (empty: not pinned)."""

    threads: int
    draft_threads: int
    cores: tuple[int, ...] = ()
    draft_cores: tuple[int, ...] = ()
    sharing: Sharing = "alone"


def lay_out(
    cores: list[int], *, threads: int | None, draft_threads: int | None, sharing: Sharing
) -> Layout:
    """Divide `cores` (logical, lowest first) between the models.

    Alone, the target has all of them. In turn, each model has all of them, and neither is pinned.
    At once, each gets half, the target the larger one, and both are pinned apart as long as there
    is a core for every thread. Raises UsageError for fewer than one thread or more than
    MOST_THREADS.
    """
    for name, value in (("threads", threads), ("draft threads", draft_threads)):
        if value is not None and not 1 <= value <= MOST_THREADS:
            raise UsageError(f"The number of {name} is {value}; it must be 1 to {MOST_THREADS}.")
    if sharing == "alone":
        return Layout(threads or len(cores), 0)
    if sharing == "in turn":
        return Layout(threads or len(cores), draft_threads or len(cores), sharing=sharing)
    draft_threads = draft_threads or max(1, (len(cores) - (threads or 0)) // (1 if threads else 2))
    threads = threads or max(1, len(cores) - draft_threads)
    if threads + draft_threads > len(cores):
        return Layout(threads, draft_threads, sharing=sharing)
    return Layout(
        threads,
        draft_threads,
        tuple(cores[:threads]),
        tuple(cores[threads : threads + draft_threads]),
        sharing,
    )
