"""The file of a target's tuned lenses: matrices by which its logits are read off part-way.

A safetensors file of tensors "layer.15" [hidden, hidden] float16: y = x @ lens.T is applied to what
that many layers leave, then the model's own norm and head (Belrose et al. 2023, 2303.08112).
Its metadata may hold target_sha256, of the file that the target was read from.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.trained import check_target, read_tensors
from runtime.errors import BuildError
from runtime.manifest import Geometry


def load(path: Path, geometry: Geometry, *, target_sha256: str) -> dict[int, NDArray[Any]]:
    """The lenses [hidden, hidden] float16 for a target of `geometry`, by the layer they follow.

    Raises BuildError for a file that is not sound, or that is for another target; OSError for one
    that cannot be read.
    """
    tensors, metadata = read_tensors(path)
    check_target(metadata, target_sha256, path)
    if not tensors:
        raise BuildError(f"{path} holds no lenses; train them again.")
    lenses = {}
    for name, lens in tensors.items():
        known = re.fullmatch(r"layer\.([1-9][0-9]{0,5})", name)
        if not known or int(known[1]) >= geometry.layers:
            raise BuildError(
                f"{path} holds {name!r:.80}, which is no layer.1 to layer.{geometry.layers - 1}; "
                "take the lenses of this target."
            )
        shape = (geometry.hidden, geometry.hidden)
        if (lens.dtype.name, lens.shape) != ("float16", shape) or not np.isfinite(lens).all():
            raise BuildError(
                f"{path}: {name} is {lens.dtype.name} {list(lens.shape)}; finite float16 "
                f"{list(shape)} is needed. Take the lenses of this target."
            )
        lenses[int(known[1])] = lens
    return dict(sorted(lenses.items()))
