"""What is worth remembering between runs: small JSON files in the user's cache folder.

A record that is gone or broken costs only the time to find out again, so reading gives None and
writing fails in silence.
"""

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any


def read_record(path: Path) -> Any:
    """The record's value, or None."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def write_record(path: Path, value: Any) -> None:
    """Keep `value`, at once or not at all: another process never reads half of it."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder) / path.name
            part.write_text(json.dumps(value), encoding="utf-8")
            part.replace(path)
