"""Mirror speculative decoding: a draft and a target model at work at the same time.

from runtime import Sampling, open_session

with open_session("smollm2-135m") as session:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    for piece in session.generate(question, Sampling(temperature=0.7, seed=1)):
        print(piece, end="", flush=True)
"""

import importlib
import os

TYPE_CHECKING = False  # as type checkers read it; loading typing here would take the time to main
if TYPE_CHECKING:
    from typing import Any

    from runtime.answer import Answer, StreamedAnswer
    from runtime.api import Session, open_session
    from runtime.errors import MirrorError
    from runtime.metrics import Metrics
    from runtime.sampling import Sampling

__all__ = [
    "Answer",
    "Metrics",
    "MirrorError",
    "Sampling",
    "Session",
    "StreamedAnswer",
    "open_session",
]

# From its import on, onnxruntime 1.32 notes what runs here for its makers, and would send it. What
# people write with this package stays on their device; whoever wants it otherwise sets it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "Answer": "answer",
    "Metrics": "metrics",
    "MirrorError": "errors",
    "Sampling": "sampling",
    "Session": "api",
    "StreamedAnswer": "answer",
    "open_session": "api",
}


def __getattr__(name: str) -> "Any":
    """Import a name when it is first used: help and errors must not need onnxruntime."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
