"""Writes runtime/providers/smoke.onnx, the graph that mirror-doctor tries every device with."""

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from runtime.providers.smoke import FILE, ROWS, WIDTH, weights


def smoke_graph() -> onnx.ModelProto:
    """A product with weights inside, and the softmax of its rows; float32, static shapes."""
    nodes = [
        helper.make_node("MatMul", ["rows", "weights"], ["product"], name="product"),
        helper.make_node("Softmax", ["product"], ["chances"], name="softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "smoke",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("chances", TensorProto.FLOAT, [ROWS, WIDTH])],
        [numpy_helper.from_array(weights(), "weights")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(path: Path = FILE) -> int:
    """Write the graph to `path`."""
    model = smoke_graph()
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
