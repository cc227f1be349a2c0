import contextlib
import io
import os
import re
import select
import sys
from pathlib import Path

import pytest

from runtime.conversation import Generation, load
from runtime.dialogue import Dialogue
from runtime.errors import BundleError, ContextError
from runtime.repl import commands, converse
from runtime.sampling import Sampling
from runtime.screen import Screen
from tests.fake_session import FakeSession, Script

ROOT = Path(__file__).resolve().parent.parent


def talk(*lines: str | type[BaseException], session: FakeSession | None = None) -> "Talk":
    return Talk(session or FakeSession(Script(("One.",)), Script(("Two.",))), lines)


class Talk:
    """A whole conversation over scripted input; an exception in it is raised by the prompt."""

    def __init__(self, session: FakeSession, lines: tuple[str | type[BaseException], ...]) -> None:
        self.session = session
        self.left = list(lines)
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        screen = Screen(self.stdout, self.stderr)
        self.dialogue = Dialogue(session, screen, Generation(Sampling(), 8), interactive=True)
        converse(self.dialogue, self.read)

    def read(self) -> str:
        line = self.left.pop(0) if self.left else EOFError
        if isinstance(line, str):
            return line
        raise line

    @property
    def said(self) -> str:
        return self.stderr.getvalue()

    @property
    def contents(self) -> list[str]:
        return [message["content"] for message in self.dialogue.conversation.messages]


def test_questions_get_answers_until_the_end() -> None:
    chat = talk("a", "", "  ", "b")
    assert chat.stdout.getvalue() == "One.\nTwo.\n"
    assert chat.contents == ["a", "One.", "b", "Two."]


@pytest.mark.parametrize("end", ["/exit", "/exit ", "/quit", EOFError])
def test_the_ways_out(end: str | type[BaseException]) -> None:
    chat = talk(end, "never asked")
    assert chat.left == ["never asked"]
    assert chat.contents == []


def test_ctrl_c_at_the_prompt_clears_the_line_only() -> None:
    assert talk(KeyboardInterrupt, KeyboardInterrupt, "a").contents == ["a", "One."]


@pytest.mark.parametrize("line", ["/nonsense", "/leave", "/", "/usr/bin/env x", "/ help", "/Help"])
def test_unknown_commands_are_refused_with_the_list(line: str) -> None:
    chat = talk(line)
    for command in commands():
        assert f"/{command.name}" in chat.said
    assert chat.session.calls == []


@pytest.mark.parametrize(("line", "sent"), [("//help", "/help"), ("//", "/"), ("///x", "//x")])
def test_two_slashes_send_one(line: str, sent: str) -> None:
    assert talk(line).contents[0] == sent


def test_help_lists_every_command() -> None:
    said = talk("/help").said
    for command in commands():
        assert command.usage in said
        assert command.help in said


def test_commands_that_take_nothing_say_so() -> None:
    for name in ("help", "reset", "retry", "stats", "exit", "quit"):
        assert f"/{name} takes nothing" in talk(f"/{name} now").said


def test_reset_forgets_all_but_the_system_prompt() -> None:
    chat = talk("/system Be brief.", "a", "/reset", "b")
    assert chat.contents == ["Be brief.", "b", "Two."]


def test_retry_asks_again() -> None:
    chat = talk("a", "/retry")
    assert chat.contents == ["a", "Two."]
    assert chat.session.calls[0].messages == chat.session.calls[1].messages
    assert "no question" in talk("/retry").said
    assert "no question" in talk("/system x", "/retry").said


def test_system_sets_and_shows() -> None:
    chat = talk("/system", "/system Be  brief.\nAlways.", "/system")
    assert chat.said == "No system prompt is set.\n" + "System: Be  brief.\nAlways.\n" * 2


def test_stats_before_and_after_an_answer() -> None:
    assert "emitted_tokens" not in talk("/stats").said
    chat = talk("a", "/stats")
    assert "emitted_tokens" in chat.said
    assert "max_new_tokens" in chat.said


def test_strategy_switches_and_shows() -> None:
    chat = talk("/strategy speculative", "/strategy", "/strategy fast")
    assert chat.session.strategy == "speculative"
    assert chat.said.count("Strategy: speculative") == 2
    assert "no strategy 'fast'" in chat.said


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "my chat.json"
    chat = talk("/system Be brief.", "a", f"/save {path}")
    assert load(path) == (chat.dialogue.conversation.messages, chat.dialogue.generation)
    again = talk("lost", f"/load {path}", "b")
    assert again.contents == ["Be brief.", "a", "One.", "b", "Two."]


def test_a_chat_that_cannot_be_loaded_leaves_everything(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("{}")
    chat = talk("a", f"/load {tmp_path / 'f'}", "/load", "/save", "b")
    assert chat.contents == ["a", "One.", "b", "Two."]
    assert "not a saved chat" in chat.said
    assert "Name a file: /load FILE" in chat.said
    assert "Name a file: /save FILE" in chat.said


def test_errors_are_told_and_the_conversation_goes_on() -> None:
    session = FakeSession(
        Script((), error=BundleError("The bundle is damaged.")),
        Script((), error=ContextError("Too long.")),
        Script(("Fine.",)),
    )
    chat = talk("a", "b", "c", session=session)
    assert chat.said.splitlines() == [
        "The bundle is damaged.",
        "Too long. /reset starts a new conversation.",
    ]
    assert chat.contents == ["c", "Fine."]


if sys.platform != "win32":
    import pty

    # Only what hangs is silent for so long: a busy machine took 16 s to start the program.
    SILENCE_S = 150

    class Pty:
        """The chat in a terminal of its own."""

        def __init__(self, *arguments: str) -> None:
            command = [sys.executable, "-m", "tests.fake_session", *arguments]
            environ = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
            self.child, self.master = pty.fork()
            if self.child == 0:
                os.chdir(ROOT)
                os.execve(command[0], command, environ)
            self.seen = ""

        def type(self, text: str) -> None:
            os.write(self.master, text.encode())

        def expect(self, pattern: str) -> None:
            """Read until `pattern` appears, and forget all up to its end."""
            while not (found := re.search(pattern, self.seen)):
                assert select.select([self.master], [], [], SILENCE_S)[0], self.seen
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            self.seen = self.seen[found.end() :]

        def end(self) -> int:
            """The exit code, after the rest has been read: a full terminal would hold the child."""
            with contextlib.suppress(OSError):
                while os.read(self.master, 4096):
                    pass
            os.close(self.master)
            return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])

    @pytest.fixture(params=["editing", "plain"])
    def mode(request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_ctrl_c_stops_the_answer_and_not_the_program(mode: str, tmp_path: Path) -> None:
        flags = ["--cache-dir", str(tmp_path), *(["--json"] if mode == "plain" else [])]
        chat = Pty("endless", *flags)
        chat.expect(">")
        chat.type("half a question\x03")
        chat.expect(">")
        chat.type("go\r")
        chat.expect("go")
        chat.expect("word word" if mode == "editing" else r"Begun\.")
        chat.type("\x03")
        chat.expect(r"Stopped\." if mode == "editing" else '"finish_reason": "cancelled"')
        chat.expect(">")
        chat.type("on\r")
        chat.expect(r"And on\.")
        chat.expect(">")
        chat.type("\x04")
        assert chat.end() == 0
        assert (tmp_path / "chat_history").exists() == (mode == "editing")
