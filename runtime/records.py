"""What is worth remembering between runs: small JSON files in the user's cache folder.

A record that is gone or broken costs only the time to find out again, so reading gives None and
writing fails in silence.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from runtime.errors import MirrorError
from runtime.whole_file import write_whole


def read_record(path: Path) -> Any:
    """The record's value, or None."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def write_record(path: Path, value: Any) -> None:
    """Keep `value`, at once or not at all: another process never reads half of it."""
    with contextlib.suppress(OSError, MirrorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(value))
