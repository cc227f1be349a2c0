"""Reads a GGUF file: its key-value pairs and its weights, as float32."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from export.families import Family, family_of, geometry_of, position_stretch, tensors_of
from export.gguf_header import StoredTensor, read_header
from export.metadata import Metadata
from export.model import Model
from runtime.errors import BuildError

Array = NDArray[np.float32]

BLOCK_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What one GGUF file holds."""

    metadata: Metadata
    model: Model

    @property
    def licence(self) -> str:
        """The licence that the file names, or "unknown"."""
        return self.metadata.text("general.license", "unknown")


def read(path: Path) -> GgufFile:
    """Read a GGUF file of one of the families of export.families.

    The rows of q and k and their biases come back in half-split order, whatever the file's is.
    Raises BuildError for a file that is not sound GGUF, another architecture, a setting that the
    graphs do not compute (it is never ignored), tensors that are missing, unexpected, of another
    shape or of a block type that is not one of BLOCK_TYPES.
    """
    header = read_header(path)
    metadata, stored = Metadata(path, header.pairs), header.tensors
    family = family_of(metadata)
    geometry = geometry_of(metadata)
    wanted = tensors_of(family, geometry, stored)
    _compare(path, stored, wanted)
    weights = {name: _unpack(path, stored[key]) for key, (name, _) in wanted.items()}
    if family.interleaved:
        for name in weights:
            if name.rpartition(".")[2] in ("q", "k", "q_bias", "k_bias"):
                weights[name] = half_split_rows(weights[name], geometry.head_size)
    weights |= _rope_factors(metadata, family, weights, geometry.head_size // 2)
    return GgufFile(metadata, Model(geometry, weights))


def half_split_rows(rows: Array, head_size: int) -> Array:
    """Reorder rows [heads * head_size, …] from interleaved rotary pairs to half-split ones.

    Within each head, row 2 * i + j of the file becomes row j * head_size / 2 + i.
    """
    pairs = rows.reshape(-1, head_size // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _rope_factors(
    metadata: Metadata, family: Family, weights: Mapping[str, Array], count: int
) -> dict[str, Array]:
    """rope_factors [count], those of the file times a linear factor; nothing where all are 1."""
    stretch = position_stretch(metadata, family)
    factors = weights.get("rope_factors")
    if factors is None:
        if stretch == 1:
            return {}
        factors = np.ones(count, np.float32)
    factors = factors * np.float32(stretch)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise BuildError(f"{metadata.path}: rope_freqs.weight holds factors that are not positive.")
    return {"rope_factors": factors}


def _compare(
    path: Path,
    stored: Mapping[str, StoredTensor],
    wanted: Mapping[str, tuple[str, tuple[int, ...]]],
) -> None:
    """Hold the file's tensors against the wanted names, shapes and the known block types."""
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise BuildError(
            f"{path} lacks the tensor {missing[0]} ({len(missing)} in all are missing)."
        )
    unknown = sorted(set(stored) - set(wanted))
    if unknown:
        raise BuildError(
            f"{path} holds the tensor {unknown[0]}, which is not known: "
            "the graphs would compute another model without it."
        )
    for name, (_, shape) in wanted.items():
        if stored[name].shape != shape:
            raise BuildError(f"{path}: {name} has the shape {stored[name].shape}, not {shape}.")
        kind = GGMLQuantizationType(stored[name].kind).name
        if kind not in BLOCK_TYPES:
            raise BuildError(
                f"{path}: {name} has the block type {kind}, which cannot be unpacked; "
                f"those that can are {', '.join(BLOCK_TYPES)}."
            )


def _unpack(path: Path, tensor: StoredTensor) -> Array:
    """One tensor as float32."""
    kind = GGMLQuantizationType(tensor.kind)
    rows = tensor.data.reshape(*tensor.shape[:-1], -1)
    with np.errstate(all="ignore"):  # What is not finite is refused below.
        values: Any = gguf.quants.dequantize(rows, kind)
    array = np.array(values, dtype=np.float32, order="C").reshape(tensor.shape)
    if not np.isfinite(array).all():
        raise BuildError(f"{path}: {tensor.name} holds numbers that are not finite.")
    return array
