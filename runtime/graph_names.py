"""The names of graphs: which an export can write, and which it writes where nobody names any."""

from collections.abc import Mapping
from typing import cast

from runtime.manifest import Flavour, Precision

# WebGPU multiplies no bytes; a portable graph has no operator for four bits.
PRECISIONS: Mapping[Flavour, tuple[Precision, ...]] = {
    "fused": ("fp32", "fp16", "int8", "int4"),
    "gpu": ("fp32", "fp16", "int4"),
    "portable": ("fp32", "fp16", "int8"),
    "npu": ("int8", "int4"),
}
DEFAULT_GRAPHS = (
    "target/fused-fp32",
    "target/fused-int8",
    "target/portable-fp32",
    "target/portable-int8",
    "draft/fused-int4",
    "draft/portable-fp32",
)
USUAL = "usual"  # as in draft/usual: those that the role would have if none were named


def split_key(key: str) -> tuple[Flavour, Precision]:
    """Flavour and precision of a graph: "fused-int8" is fused and int8."""
    flavour, _, precision = key.partition("-")
    return cast(Flavour, flavour), cast(Precision, precision)
