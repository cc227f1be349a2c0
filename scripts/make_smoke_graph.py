"""Writes the graphs in runtime/providers/ that mirror-doctor tries every device with."""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from runtime.providers.smoke import FILE, HALVES, ROWS, WIDTH, weights


def smoke_graph(real: type[np.floating]) -> onnx.ModelProto:
    """A product with weights inside, and the softmax of its rows, in `real`; static shapes."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(real))
    nodes = [
        helper.make_node("MatMul", ["rows", "weights"], ["product"], name="product"),
        helper.make_node("Softmax", ["product"], ["chances"], name="softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "smoke",
        [helper.make_tensor_value_info("rows", kind, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("chances", kind, [ROWS, WIDTH])],
        [numpy_helper.from_array(weights().astype(real), "weights")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(folder: Path = FILE.parent) -> int:
    """Write the graphs to `folder`."""
    for name, real in ((FILE.name, np.float32), (HALVES.name, np.float16)):
        model = smoke_graph(real)
        onnx.checker.check_model(model, full_check=True)
        path = folder / name
        path.write_bytes(model.SerializeToString(deterministic=True))
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
