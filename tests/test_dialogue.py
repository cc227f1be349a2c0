import io
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.conversation import Generation
from runtime.dialogue import Dialogue, cancelled_by_interrupt
from runtime.errors import BundleError
from runtime.sampling import Sampling
from runtime.screen import Screen
from tests.fake_session import FakeAnswer, FakeSession, Script


class Interrupting(io.StringIO):
    """A stream on which Ctrl-C is pressed `presses` times while it takes the first piece."""

    def __init__(self, presses: int) -> None:
        super().__init__()
        self.presses = presses

    def write(self, text: str) -> int:
        written = super().write(text)
        presses, self.presses = self.presses, 0
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        return written


class Closed(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def dialogue_on(
    session: FakeSession,
    stdout: io.StringIO | None = None,
    *,
    interactive: bool = False,
    limit_is_default: bool = True,
) -> tuple[Dialogue, io.StringIO]:
    """A dialogue and its standard error."""
    stderr = io.StringIO()
    screen = Screen(stdout or io.StringIO(), stderr)
    dialogue = Dialogue(
        session,
        screen,
        Generation(Sampling(), 8),
        interactive=interactive,
        limit_is_default=limit_is_default,
    )
    return dialogue, stderr


def contents(dialogue: Dialogue) -> list[str]:
    return [message["content"] for message in dialogue.conversation.messages]


def test_a_second_turn_sends_the_whole_conversation() -> None:
    session = FakeSession(Script(("a",)), Script(("b",)))
    dialogue, _ = dialogue_on(session)
    assert dialogue.ask("one") == "eos"
    dialogue.ask("two")
    assert [message["content"] for message in session.calls[1].messages] == ["one", "a", "two"]
    assert contents(dialogue) == ["one", "a", "two", "b"]


def test_one_ctrl_c_cancels_and_what_was_shown_is_kept() -> None:
    stdout = Interrupting(presses=1)
    dialogue, stderr = dialogue_on(FakeSession(Script(endless=True)), stdout, interactive=True)
    assert dialogue.ask("one") == "cancelled"
    assert contents(dialogue)[1] == stdout.getvalue().removesuffix("\n")
    assert stdout.getvalue().startswith("Hello there.")
    assert stderr.getvalue() == "Stopped.\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_ctrl_c_do_not_wait() -> None:
    stdout = Interrupting(presses=2)
    dialogue, _ = dialogue_on(FakeSession(Script(endless=True)), stdout)
    assert dialogue.ask("one") == "cancelled"
    assert contents(dialogue) == ["one", "Hello"]
    assert stdout.getvalue() == "Hello\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_word_the_question_stays_open() -> None:
    session = FakeSession(Script((), finish_reason="cancelled"), Script(("a",)))
    dialogue, _ = dialogue_on(session)
    dialogue.ask("one")
    assert contents(dialogue) == ["one"]
    dialogue.ask("two")
    assert contents(dialogue) == ["two", "a"]


def test_an_empty_answer_is_an_answer() -> None:
    dialogue, _ = dialogue_on(FakeSession(Script((), finish_reason="max_new_tokens")))
    dialogue.ask("one")
    assert contents(dialogue) == ["one", ""]


def test_an_error_before_the_first_word_prints_nothing() -> None:
    stdout = io.StringIO()
    dialogue, _ = dialogue_on(FakeSession(Script((), error=BundleError("Damaged."))), stdout)
    with pytest.raises(BundleError):
        dialogue.ask("one")
    assert stdout.getvalue() == ""


def test_an_error_leaves_the_question_open() -> None:
    session = FakeSession(Script(("Par",), error=BundleError("Damaged.")), Script(("a",)))
    dialogue, _ = dialogue_on(session)
    with pytest.raises(BundleError):
        dialogue.ask("one")
    assert contents(dialogue) == ["one"]
    assert dialogue.conversation.reopen()
    dialogue.retry()
    assert contents(dialogue) == ["one", "a"]


def test_a_closed_stdout_cancels_the_answer() -> None:
    dialogue, _ = dialogue_on(FakeSession(Script(endless=True)), Closed())
    with pytest.raises(BrokenPipeError):
        dialogue.ask("one")


def test_a_retry_takes_the_next_seed() -> None:
    session = FakeSession()
    dialogue, stderr = dialogue_on(session)
    dialogue.generation = Generation(Sampling(temperature=1.0, seed=2**64 - 1), 8)
    dialogue.ask("one")
    dialogue.conversation.reopen()
    dialogue.retry()
    assert [call.sampling.seed for call in session.calls] == [2**64 - 1, 0]
    assert session.calls[0].messages == session.calls[1].messages
    assert "seed 0" in stderr.getvalue()


def test_a_retry_without_noise_says_that_nothing_changes() -> None:
    dialogue, stderr = dialogue_on(FakeSession())
    dialogue.ask("one")
    dialogue.conversation.reopen()
    dialogue.retry()
    assert "temperature 0" in stderr.getvalue()


def test_a_lost_draft_is_told_once() -> None:
    session = FakeSession(Script(draft_error="it raised ValueError"))
    dialogue, stderr = dialogue_on(session, interactive=True)
    dialogue.ask("one")
    dialogue.ask("two")
    assert stderr.getvalue().count("it raised ValueError") == 1
    assert "until a fresh one takes over" in stderr.getvalue()


def test_after_the_only_answer_no_fresh_draft_is_promised() -> None:
    dialogue, stderr = dialogue_on(FakeSession(Script(draft_error="it raised ValueError")))
    dialogue.ask("one")
    assert "(it raised ValueError); the rest of the answer came without it." in stderr.getvalue()
    assert "fresh" not in stderr.getvalue()


class Slow(FakeSession):
    """Waits before each piece until a line was said, or before the second for a moment."""

    def __init__(self, said: threading.Event) -> None:
        super().__init__()
        self.said = said

    def generate(self, *prompt: Any, **settings: Any) -> FakeAnswer:
        answer = super().generate(*prompt, **settings)
        said = self.said

        class Waiting(FakeAnswer):
            def __iter__(self) -> Iterator[str]:
                assert said.wait(30)
                yield self._emit("a")
                said.clear()
                assert not said.wait(0.05)
                yield self._emit("b")

        return Waiting(answer.script, answer.sampling)


def test_silence_before_the_first_word_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.dialogue.ALIVE_S", 0.001)
    said = threading.Event()

    class Told(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            said.set()
            return written

    stdout, stderr = io.StringIO(), Told()
    dialogue = Dialogue(Slow(said), Screen(stdout, stderr), Generation(Sampling(), 8))
    dialogue.ask("one")
    assert stdout.getvalue() == "ab\n"
    assert stderr.getvalue().startswith("  … Reading the prompt: 0 s so far\n")


def test_emulated_metrics_are_called_so_and_void_ones_too() -> None:
    scripts = [Script(), Script(emulated="toaster"), Script(emulated="toaster", void_runs=3)]
    said = []
    for script in scripts:
        dialogue, stderr = dialogue_on(FakeSession(script))
        dialogue.stats = True
        dialogue.ask("one")
        said.append(stderr.getvalue())
    assert ["metrics (emulated: toaster)" in text for text in said] == [False, True, True]
    assert ["Void: 3 calls took longer" in text for text in said] == [False, False, True]


@pytest.mark.parametrize(
    ("mode", "remedy"), [("conversation", "/reset"), ("one question", "--context-length")]
)
def test_a_full_context_says_what_to_do(mode: str, remedy: str) -> None:
    session = FakeSession(Script(finish_reason="context_full"))
    dialogue, stderr = dialogue_on(session, interactive=mode == "conversation")
    assert dialogue.ask("one") == "context_full"
    assert "64 tokens is full" in stderr.getvalue()
    assert remedy in stderr.getvalue()
    assert contents(dialogue) == ["one", "Hello there."]


def test_a_limit_that_nobody_asked_for_is_told() -> None:
    session = FakeSession(Script(finish_reason="max_new_tokens"))
    dialogue, stderr = dialogue_on(session)
    dialogue.ask("one")
    assert "--max-new-tokens" in stderr.getvalue()
    dialogue, stderr = dialogue_on(session, limit_is_default=False)
    dialogue.ask("one")
    assert stderr.getvalue() == ""


def test_on_another_thread_interrupts_stay_as_they_are() -> None:
    seen = []

    def look() -> None:
        with cancelled_by_interrupt(FakeAnswer(Script(), Sampling())):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_ignored_interrupts_stay_ignored() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with cancelled_by_interrupt(FakeAnswer(Script(), Sampling())):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
