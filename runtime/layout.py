"""Who gets which cores when draft and target share one processor."""

from dataclasses import dataclass

from runtime.errors import UsageError

MOST_THREADS = 512


@dataclass(frozen=True, slots=True)
class Layout:
    """Threads of each model and the logical cores they are pinned to (empty: not pinned)."""

    threads: int
    draft_threads: int
    cores: tuple[int, ...] = ()
    draft_cores: tuple[int, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether both models run at once, so that neither may spin while it waits."""
        return self.draft_threads > 0


def lay_out(
    cores: list[int], *, threads: int | None, draft_threads: int | None, draft_runs: bool
) -> Layout:
    """Divide `cores` (logical, lowest first) between the models.

    Alone, the target has all of them. Beside a draft model each gets half, the target the larger
    one, and both are pinned apart as long as there is a core for every thread. Raises UsageError
    for fewer than one thread or more than MOST_THREADS.
    """
    for name, value in (("threads", threads), ("draft threads", draft_threads)):
        if value is not None and not 1 <= value <= MOST_THREADS:
            raise UsageError(f"The number of {name} is {value}; it must be 1 to {MOST_THREADS}.")
    if not draft_runs:
        return Layout(threads or len(cores), 0)
    draft_threads = draft_threads or max(1, (len(cores) - (threads or 0)) // (1 if threads else 2))
    threads = threads or max(1, len(cores) - draft_threads)
    if threads + draft_threads > len(cores):
        return Layout(threads, draft_threads)
    return Layout(
        threads,
        draft_threads,
        tuple(cores[:threads]),
        tuple(cores[threads : threads + draft_threads]),
    )
