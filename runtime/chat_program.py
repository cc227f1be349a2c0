"""What `runtime.chat` runs: one question, or a conversation, on given streams."""

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from runtime.chat_flags import DEFAULT_MAX_NEW_TOKENS, PROGRAM
from runtime.chat_options import OPEN_SETTINGS, Options, parse
from runtime.command_line import (
    FAILED,
    INTERRUPTED,
    OK,
    exit_code,
    flush,
    readied,
    runtime_open_session,
)
from runtime.conversation import Conversation, Generation
from runtime.dialogue import Dialogue, Session
from runtime.errors import UsageError
from runtime.locate import default_cache_dir
from runtime.reader import open_reader
from runtime.repl import converse
from runtime.screen import Screen
from runtime.trace import Trace

OpenSession = Callable[..., Session]


def main(
    argv: Sequence[str] | None = None,
    *,
    open_session: OpenSession | None = None,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
    leave: Callable[[int], object] = os._exit,
) -> int:
    """Run the chat and return its exit code: 0, 1 (failed), 2 (usage) or 130 (interrupted).

    Everything the process offers can be given instead. `leave` ends the process at once when a
    session says that one of its threads is stuck in native code.
    """
    program = _Program(
        readied(stdin or sys.stdin),
        readied(stdout or sys.stdout),
        readied(stderr or sys.stderr),
        os.environ if environ is None else environ,
        open_session,
    )
    code = program.run(sys.argv[1:] if argv is None else argv)
    if not program.close():
        leave(code)
    return code


@dataclass(slots=True)
class _Program:
    """The streams and the sessions of one run."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    open_session: OpenSession | None
    session: Session | None = field(default=None, init=False)
    trace: Trace = field(default_factory=lambda: Trace(PROGRAM), init=False)

    def run(self, argv: Sequence[str]) -> int:
        """Do what `argv` says; every expected error becomes a sentence and an exit code."""

        def work() -> int:
            code = self._chat(argv)
            self.stdout.flush()
            return code

        return exit_code(PROGRAM, work, Screen(self.stdout, self.stderr).note)

    def close(self) -> bool:
        """Close the session; False when the process must not wait for its threads."""
        try:
            done = self.session is None or self.session.close()
        except KeyboardInterrupt:
            done = False
        flush(self.stdout, self.stderr)
        return done

    def _chat(self, argv: Sequence[str]) -> int:
        try:
            with contextlib.redirect_stdout(self.stdout):
                options = parse(argv)
        except SystemExit:  # --help or --version, and all is said
            return OK
        question = self._question(options)
        self.session = self._open(options)
        dialogue = self._dialogue(self.session, options, interactive=question is None)
        try:
            if question is not None:
                return self._answer_once(dialogue, question, options)
            return self._converse(dialogue, options)
        finally:
            if options.trace is not None:
                self.trace.write(options.trace)

    def _converse(self, dialogue: Dialogue, options: Options) -> int:
        self._greet(dialogue, options)
        cache = options.cache_dir or default_cache_dir(self.environ, sys.platform)
        converse(
            dialogue,
            open_reader(
                self.stdin,
                self.stdout,
                self.stderr,
                history=cache / "chat_history",
                plain=options.json,
            ),
        )
        return OK

    def _question(self, options: Options) -> str | None:
        """The one question to answer; None for a conversation."""
        if options.prompt == "":
            raise UsageError('--prompt is empty; give it a question, or "-" to read one.')
        if options.prompt not in (None, "-"):
            return options.prompt
        if options.prompt is None and self.stdin.isatty():
            return None
        text = self.stdin.read().removesuffix("\n")
        if not text:
            raise UsageError("standard input is empty; pipe in a question, or give --prompt TEXT.")
        return text

    def _open(self, options: Options) -> Session:
        return (self.open_session or runtime_open_session())(
            options.model,
            draft=options.draft,
            strategy=options.strategy,
            progress=Screen(self.stdout, self.stderr).note,
            **{name: getattr(options, name) for name in OPEN_SETTINGS},
        )

    def _dialogue(self, session: Session, options: Options, *, interactive: bool) -> Dialogue:
        limit = options.max_new_tokens
        sampling = options.sampling(session.default_sampling, seed=secrets.randbits(32))
        conversation = Conversation()
        if options.system_prompt is not None:
            conversation.set_system(options.system_prompt)
        return Dialogue(
            session,
            Screen(self.stdout, self.stderr),
            Generation(sampling, DEFAULT_MAX_NEW_TOKENS if limit is None else limit, options.stop),
            conversation,
            json=options.json,
            stats=options.stats,
            interactive=interactive,
            limit_is_default=limit is None,
            trace=self.trace if options.trace is not None else None,
        )

    def _answer_once(self, dialogue: Dialogue, question: str, options: Options) -> int:
        sampling = dialogue.generation.sampling
        shown = options.json or options.stats or options.seed is not None
        if sampling.temperature > 0 and not shown:
            dialogue.screen.note(f"seed {sampling.seed} (--seed repeats this answer)")
        reason = dialogue.ask(question)
        return {"cancelled": INTERRUPTED, "failed": FAILED}.get(reason, OK)

    def _greet(self, dialogue: Dialogue, options: Options) -> None:
        sampling = dialogue.generation.sampling
        sampled = f"temperature {sampling.temperature:g}"
        if sampling.temperature > 0:
            sampled += f", seed {sampling.seed}"
        dialogue.screen.rows(
            PROGRAM,
            {
                "model": f"{options.model}, "
                f"{dialogue.session.settings.get('precision', options.precision)}",
                "strategy": f"{dialogue.session.strategy}, draft "
                f"{dialogue.session.settings.get('draft', options.draft)}",
                "sampling": sampled,
                "commands": "/help lists them; Ctrl-D leaves",
            },
        )
