"""An answer: the pieces of text as they come, and what is known of it by then."""

from collections.abc import Callable, Generator, Iterator
from threading import Event

from runtime.metrics import Metrics
from runtime.stream import TextStream

Blocks = Generator[tuple[int, ...], None, None]


class Answer:
    """A text with its tokens and metrics.

    `tokens` are those of the text: no end token, and nothing of a stop string or after it. Where a
    stop string begins inside a token, the token's first characters are in `text` but the token is
    not in `tokens`.
    """

    def __init__(self, stream: TextStream, metrics: Metrics) -> None:
        """An answer without text yet."""
        self.text = ""
        self.tokens: list[int] = []
        self.metrics = metrics
        self._stream = stream

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text!r} finish_reason={self.finish_reason}>"

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it has not."""
        return self.metrics.finish_reason

    def push(self, block: tuple[int, ...]) -> str:
        """Add committed tokens, up to a stop string; return the text that can be shown now."""
        pieces = []
        with self.metrics.delivering():
            for token in block:
                self.tokens.append(token)
                pieces.append(self._stream.push(token))
                if self._stream.stopped:
                    self._cut()
                    break
            return self._show("".join(pieces))

    def finish(self) -> str:
        """Nothing more comes: return the text that was held back."""
        piece = self._stream.finish()
        if self._stream.stopped:
            self._cut()
        return self._show(piece)

    def _show(self, piece: str) -> str:
        self.text += piece
        return piece

    def _cut(self) -> None:
        kept = self._stream.tokens_kept
        del self.tokens[kept:]
        self.metrics.withdraw(self.metrics.emitted_tokens - kept)
        self.metrics.finish_reason = "stop_string"


class StreamedAnswer(Answer, Iterator[str]):
    """An answer that is made while it is iterated, piece by piece."""

    def __init__(
        self,
        decode: Callable[[Callable[[], bool]], Blocks],
        stream: TextStream,
        metrics: Metrics,
    ) -> None:
        """`decode` gives blocks of committed tokens and asks now and then whether to cease."""
        super().__init__(stream, metrics)
        self._cancelled = Event()
        self._pieces = self._run(decode(self._cancelled.is_set))

    def __next__(self) -> str:
        return next(self._pieces)

    def cancel(self) -> None:
        """Stop within one step, from any thread; what came so far stays."""
        self._cancelled.set()

    def close(self) -> None:
        """Stop now, from the thread that iterates."""
        self._pieces.close()
        self.metrics.finish_reason = self.metrics.finish_reason or "cancelled"

    def _run(self, blocks: Blocks) -> Generator[str, None, None]:
        ending = "failed"
        self.metrics.started = self.metrics.clock()
        try:
            for block in blocks:
                if piece := self.push(block):
                    yield piece
                if self._stream.stopped:
                    break
            if piece := self.finish():
                yield piece
        except (GeneratorExit, KeyboardInterrupt):
            ending = "cancelled"
            raise
        finally:
            self.metrics.finish_reason = self.metrics.finish_reason or ending
            self.finish()  # what was held back when an interrupt or `close` came is text too
            blocks.close()
