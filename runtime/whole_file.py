"""Files that are written whole or not at all, and a flag's refused before any work starts."""

import tempfile
from pathlib import Path

from runtime.errors import MirrorError, UsageError


def check_writable(flag: str, path: Path) -> None:
    """Raise UsageError, naming the flag, unless a file can be put at `path`, or in its place."""
    what = f"{flag} {path}"
    try:
        place = path.resolve()
        if place.exists() and not place.is_file():
            raise UsageError(f"{what}: that is no ordinary file; give the name of one to write.")
        if not place.parent.is_dir():
            raise UsageError(f"{what}: there is no folder {place.parent}.")
        with tempfile.TemporaryFile(dir=place.parent):
            pass
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{what} cannot be written: {reason}; choose another place.") from error


def write_whole(path: Path, text: str) -> None:
    """Put `text` at `path`, in UTF-8, at once or not at all; a link's target is replaced, not it.

    Raises MirrorError when it cannot be written; what was there is still there then.
    """
    try:
        place = path.resolve()
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            part = Path(folder) / place.name
            part.write_text(text, encoding="utf-8")
            part.replace(place)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MirrorError(f"{path} cannot be written: {reason}.") from error
