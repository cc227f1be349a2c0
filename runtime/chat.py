"""Chat on the command line: one question, or a conversation."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def main(argv: "Sequence[str] | None" = None, **given: "Any") -> int:
    """Run `runtime.chat_program.main`; Ctrl-C while that still loads is as quiet as later."""
    try:
        from runtime.chat_program import main as chat

        return chat(argv, **given)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
