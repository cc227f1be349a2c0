"""A bundle's target as a model in memory, read back from its float32 graph."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from export.linear import FUSED_PROJECTIONS
from export.model import Model
from runtime.errors import BuildError
from runtime.manifest import Manifest

PLAIN = ("attention_norm", "feed_forward_norm", "o", "down")


def read_target(bundle: Path) -> Model:
    """The target of `bundle`, float32; BundleError or BuildError where it has no such graph."""
    manifest = Manifest.load(bundle)
    path = manifest.graph_path("target", "fp32")
    stored = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer
    }
    geometry = manifest.target.geometry
    weights = {name: stored[name] for name in ("embedding", "norm", "head") if name in stored}
    queries, keys = geometry.heads * geometry.head_size, geometry.kv_heads * geometry.head_size
    cuts = {"qkv": [queries, queries + keys], "gate_up": [geometry.intermediate]}
    for layer in range(geometry.layers):
        name = f"layers.{layer}"
        known = [f"{name}.{part}" for part in (*PLAIN, *FUSED_PROJECTIONS)]
        found = [each for each in stored if each.startswith(f"{name}.")]
        if set(found) != set(known):
            raise BuildError(
                f"{path}: layer {layer} holds {sorted(found)}; no draft is made of it."
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
