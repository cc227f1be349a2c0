"""The conversation loop: questions, and the commands that begin with a slash."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.chat_flags import STRATEGIES
from runtime.conversation import load, save
from runtime.dialogue import Dialogue
from runtime.errors import ContextError, MirrorError, UsageError
from runtime.reader import Read


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `run` gets the dialogue and what stands after the name."""

    name: str
    argument: str
    help: str
    run: Callable[[Dialogue, str], None]
    other_names: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """How the command is typed."""
        return f"/{self.name} {self.argument}".rstrip()


def converse(dialogue: Dialogue, read: Read) -> None:
    """Read and answer until /exit or the end of the input.

    Errors of the session are told and the conversation goes on; Ctrl-C only ends what is under way.
    """
    while True:
        try:
            handle(dialogue, read())
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        except ContextError as error:
            dialogue.screen.note(f"{error} /reset starts a new conversation.")
        except MirrorError as error:
            dialogue.screen.note(str(error))


def handle(dialogue: Dialogue, line: str) -> None:
    """Run a command or ask a question; a question that begins with a slash has it doubled.

    Raises UsageError for a command that does not exist or lacks what it needs, EOFError for /exit.
    """
    if not line.strip():
        return
    if not line.startswith("/") or line.startswith("//"):
        dialogue.ask(line.removeprefix("/"))
        return
    name, argument = (*line[1:].split(maxsplit=1), "", "")[:2]
    command = next((one for one in commands() if name in (one.name, *one.other_names)), None)
    if command is None:
        known = ", ".join(f"/{command.name}" for command in commands())
        raise UsageError(
            f"There is no command /{name}. The commands are {known}. "
            "To send a message that begins with a slash, begin it with two."
        )
    if argument and not command.argument:
        raise UsageError(f"/{name} takes nothing after it.")
    command.run(dialogue, argument.strip())


def commands() -> tuple[Command, ...]:
    """Every command, in the order of /help."""
    return (
        Command("help", "", "this list", _help),
        Command("reset", "", "forget the conversation, keep the system prompt", _reset),
        Command("retry", "", "answer the last question again, with the next seed", _retry),
        Command("system", "TEXT", "set the system prompt; without TEXT, show it", _system),
        Command("stats", "", "settings, and what the last answer took", _stats),
        Command("strategy", "NAME", "switch to " + ", ".join(STRATEGIES), _strategy),
        Command("save", "FILE", "save settings and messages as JSON", _save),
        Command("load", "FILE", "go on with a saved chat", _load),
        Command("exit", "", "leave; so do /quit and Ctrl-D", _exit, ("quit",)),
    )


def _help(dialogue: Dialogue, _argument: str) -> None:
    rows = [(command.usage, command.help) for command in commands()]
    rows += [
        ("//TEXT", "ask /TEXT"),
        ("Alt-Enter", "a new line; so does a backslash before Enter"),
        ("Ctrl-C", "stop the answer, or clear the line"),
    ]
    dialogue.screen.rows("commands", rows)


def _reset(dialogue: Dialogue, _argument: str) -> None:
    dialogue.conversation.reset()
    dialogue.screen.note("A new conversation.")


def _retry(dialogue: Dialogue, _argument: str) -> None:
    if not dialogue.conversation.reopen():
        raise UsageError("There is no question to answer again.")
    dialogue.retry()


def _system(dialogue: Dialogue, argument: str) -> None:
    if argument:
        dialogue.conversation.set_system(argument)
    system = dialogue.conversation.system
    dialogue.screen.note("No system prompt is set." if system is None else f"System: {system}")


def _stats(dialogue: Dialogue, _argument: str) -> None:
    dialogue.show_stats()


def _strategy(dialogue: Dialogue, argument: str) -> None:
    if argument and argument not in STRATEGIES:
        raise UsageError(f"There is no strategy {argument!r}. Take {' or '.join(STRATEGIES)}.")
    if argument:
        dialogue.session.strategy = argument
    dialogue.screen.note(f"Strategy: {dialogue.session.strategy}")


def _save(dialogue: Dialogue, argument: str) -> None:
    path = _path(argument, "save")
    save(path, dialogue.conversation.messages, dialogue.generation, dialogue.session.settings)
    dialogue.screen.note(f"Saved {len(dialogue.conversation.messages)} messages in {path}.")


def _load(dialogue: Dialogue, argument: str) -> None:
    path = _path(argument, "load")
    dialogue.conversation.messages, dialogue.generation = load(path)
    dialogue.screen.note(
        f"Loaded {len(dialogue.conversation.messages)} messages from {path}, and how to generate; "
        "the model stays. /stats shows the settings."
    )


def _exit(_dialogue: Dialogue, _argument: str) -> None:
    raise EOFError


def _path(argument: str, name: str) -> Path:
    if not argument:
        raise UsageError(f"Name a file: /{name} FILE")
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{argument}: {error}") from error
