"""Mirror speculative decoding: a draft and a target model at work at the same time.

    from runtime import Sampling, open_session

    with open_session("smollm2-135m") as session:
        for piece in session.generate([{"role": "user", "content": "Hello!"}], Sampling(seed=1)):
            print(piece, end="", flush=True)
"""

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
