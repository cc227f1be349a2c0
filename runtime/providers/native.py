"""Names of files as native code reads them."""

import os
from pathlib import Path


def native(name: str | Path) -> str:
    """The name in UTF-8, whatever the locale that Python read it by.

    Raises UnicodeError for one that is not in UTF-8 on the disk.
    """
    return str(name) if os.name == "nt" else os.fsencode(name).decode()


def python_name(told: str) -> str:
    """A file's name that native code told, as Python has it; raises as `native`."""
    return os.fsdecode(told.encode())
