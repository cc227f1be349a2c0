"""The command line that builds bundles: `python -m export`, installed as `mirror-export`."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run `export.command.main`; Ctrl-C while that still loads is as quiet as later."""
    try:
        from export.command import main as export

        return export(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
