"""Measure strategies beside each other on the command line."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def main(argv: "Sequence[str] | None" = None, **given: "Any") -> int:
    """Run `runtime.bench_program.main`; Ctrl-C while that still loads is as quiet as later."""
    try:
        from runtime.bench_program import main as bench

        return bench(argv, **given)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
