"""Signs of life of a step that takes long."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

EVERY_S = 3.0


@contextlib.contextmanager
def heartbeat(what: str, say: Callable[[str], None], *, every_s: float = EVERY_S) -> Iterator[None]:
    """While the block runs, say every `every_s` seconds that `what` goes on and since when.

    `say` is called from another thread, and never after the block; where it raises OSError there
    is nobody to tell, so it is left alone from then on.
    """
    done = threading.Event()
    start = time.monotonic()

    def beat() -> None:
        with contextlib.suppress(OSError):
            while not done.wait(every_s):
                say(f"  … {what}: {time.monotonic() - start:.0f} s so far")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    try:
        thread.start()  # in here: an interrupt may come before it returns
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()
