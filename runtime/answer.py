"""An answer: the pieces of text as they come, and what is known of it by then."""

from collections.abc import Callable, Generator, Iterator
from threading import Event

from runtime.metrics import Metrics
from runtime.stream import TextStream


class Answer(Iterator[str]):
    """Iterate for the pieces; `text`, `tokens` and `metrics` grow meanwhile.

    `tokens` are those of the text: no end token, and nothing of a stop string or after it. Where a
    stop string begins inside a token, the token's first characters are in `text` but the token is
    not in `tokens`.
    """

    def __init__(
        self,
        decode: Callable[[Callable[[], bool]], Generator[tuple[int, ...], None, None]],
        stream: TextStream,
        metrics: Metrics,
    ) -> None:
        """`decode` gives blocks of committed tokens and asks now and then whether to cease."""
        self.text = ""
        self.tokens: list[int] = []
        self.metrics = metrics
        self._cancelled = Event()
        self._stream = stream
        self._pieces = self._run(decode(self._cancelled.is_set))

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it has not."""
        return self.metrics.finish_reason

    def cancel(self) -> None:
        """Stop within one step, from any thread; what came so far stays."""
        self._cancelled.set()

    def close(self) -> None:
        """Stop now, from the thread that iterates."""
        self._pieces.close()
        self.metrics.finish_reason = self.metrics.finish_reason or "cancelled"

    def _run(self, blocks: Generator[tuple[int, ...], None, None]) -> Generator[str, None, None]:
        ending = "failed"
        try:
            for block in blocks:
                with self.metrics.delivering():
                    piece = self._take(block)
                if piece:
                    self.text += piece
                    yield piece
                if self._stream.stopped:
                    break
            piece = self._stream.finish()
            if piece:
                self.text += piece
                yield piece
        except (GeneratorExit, KeyboardInterrupt):
            ending = "cancelled"
            raise
        finally:
            if self.metrics.finish_reason is None:
                self.metrics.finish_reason = ending
            blocks.close()

    def _take(self, block: tuple[int, ...]) -> str:
        """Turn a block into text, up to a stop string."""
        pieces = []
        for token in block:
            self.tokens.append(token)
            pieces.append(self._stream.push(token))
            if self._stream.stopped:
                self.metrics.finish_reason = "stop_string"
                self.metrics.withdraw(self.metrics.emitted_tokens - self._stream.tokens_kept)
                del self.tokens[self._stream.tokens_kept :]
                break
        return "".join(pieces)
