"""Say on the command line which devices are here, and whether a pair of models can run on them."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def main(argv: "Sequence[str] | None" = None, **given: "Any") -> int:
    """Run `runtime.doctor_program.main`; Ctrl-C while that still loads is as quiet as later."""
    try:
        from runtime.doctor_program import main as doctor

        return doctor(argv, **given)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
