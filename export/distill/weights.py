"""A bundle's target as a model in memory, read back from its float32 graph."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from export.linear import FUSED_PROJECTIONS
from export.model import Model
from runtime.errors import BuildError
from runtime.manifest import Geometry, Manifest

PLAIN = ("attention_norm", "feed_forward_norm", "o", "down")


def read_target(bundle: Path) -> Model:
    """The target of `bundle`, float32; BundleError or BuildError where no student can be its."""
    manifest = Manifest.load(bundle)
    return read_graph(manifest.graph_path("target", "fp32"), manifest.target.geometry)


def read_graph(path: Path, geometry: Geometry) -> Model:
    """The model of a fused float32 graph; BuildError for one with parts that a student lacks."""
    stored = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer
    }
    weights = {name: stored[name] for name in ("embedding", "norm", "head") if name in stored}
    weights |= _rope_factors(geometry, stored["cosine"], stored["sine"])
    queries, keys = geometry.heads * geometry.head_size, geometry.kv_heads * geometry.head_size
    cuts = {"qkv": [queries, queries + keys], "gate_up": [geometry.intermediate]}
    for layer in range(geometry.layers):
        name = f"layers.{layer}"
        known = [f"{name}.{part}" for part in (*PLAIN, *FUSED_PROJECTIONS)]
        found = [each for each in stored if each.startswith(f"{name}.")]
        if strange := sorted(set(found) ^ set(known)):
            raise BuildError(
                f"{path}: a student has no place for the target's {strange[0]}; drafts are "
                "distilled only from targets without biases and norms of heads."
            )
        for part in PLAIN:
            weights[f"{name}.{part}"] = np.ascontiguousarray(stored[f"{name}.{part}"].T)
        for joined, parts in FUSED_PROJECTIONS.items():
            pieces = np.split(stored[f"{name}.{joined}"].T, cuts[joined])
            weights |= {
                f"{name}.{part}": np.ascontiguousarray(piece)
                for part, piece in zip(parts, pieces, strict=True)
            }
    return Model(geometry, weights)


def _rope_factors(
    geometry: Geometry, cosine: NDArray[Any], sine: NDArray[Any]
) -> dict[str, NDArray[np.float32]]:
    """By how much each rotary frequency is divided, where it is: from the angles of position 1."""
    half = geometry.head_size // 2
    angles = np.arctan2(sine[1].astype(np.float64), cosine[1])
    factors = geometry.rope_base ** (-np.arange(half) / half) / angles
    return {} if np.allclose(factors, 1) else {"rope_factors": factors.astype(np.float32)}
