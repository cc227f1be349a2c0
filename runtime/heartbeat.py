"""Signs of life of a step that takes long."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

EVERY_S = 3.0
LONGEST_S = 30.0


@contextlib.contextmanager
def heartbeat(what: str, say: Callable[[str], None], *, every_s: float = EVERY_S) -> Iterator[None]:
    """While the block runs, say that `what` goes on and since when, after each of `pauses`.

    `say` is called from another thread, and never after the block; where it raises OSError there
    is nobody to tell, so it is left alone from then on.
    """
    done = threading.Event()
    start = time.monotonic()

    def beat() -> None:
        with contextlib.suppress(OSError):
            for pause in pauses(every_s):
                if done.wait(pause):
                    return
                say(f"  … {what}: {time.monotonic() - start:.0f} s so far")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    try:
        thread.start()  # in here: an interrupt may come before it returns
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()


def pauses(first_s: float) -> Iterator[float]:
    """Seconds between signs of life: each twice the last, up to LONGEST_S.

    What takes minutes would fill a log otherwise.
    """
    pause = first_s
    while True:
        yield pause
        pause = max(pause, min(2 * pause, LONGEST_S))
