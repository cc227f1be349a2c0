"""What torch keeps on the disk between one stage and the next, whole or not at all."""

import pickle
from pathlib import Path
from typing import Any

import torch

from runtime.errors import BuildError


def save(path: Path, content: object) -> None:
    """Write tensors, and plain containers and numbers; an interruption leaves the file before."""
    half = path.with_name(f"half-{path.name}")
    torch.save(content, half)
    half.replace(path)


def load(path: Path, device: torch.device | None = None) -> Any:
    """What `save` wrote, its tensors on `device`; BuildError for a file that is not sound."""
    try:
        return torch.load(path, map_location=device or "cpu")
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise BuildError(
            f"{path} is damaged: {what:.200}. Remove it, and give the same command again."
        ) from error
