"""A thin pen over onnx.helper: names nodes and keeps the weights in one external file."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # what opset 17 was published with; Android's runtimes read it
ALIGNMENT = 4096  # a page: external data that starts on one can be mapped into memory
INLINE_BYTES = 1024  # smaller tensors stay in the graph, where shape inference can see them


class GraphWriter:
    """Collects nodes and weights; weights of over INLINE_BYTES go to `data_path` as they come."""

    def __init__(self, data_path: Path, *, reuse: bool = False) -> None:
        """Start a graph; with `reuse`, an existing data file is referred to, not written again."""
        self._data_path = data_path
        self._data = None if reuse else data_path.open("wb")
        self._offset = 0
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._numbers = itertools.count()

    def node(
        self, operator: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node with one output and return the output's name."""
        name = output or f"{operator}.{next(self._numbers)}"
        self._nodes.append(
            helper.make_node(operator, list(inputs), [name], name=name, **attributes)
        )
        return name

    def nodes(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[int], **attributes: Any
    ) -> list[str]:
        """Add a node of several outputs; return the names of those at the places `outputs`."""
        name = f"{operator}.{next(self._numbers)}"
        places = ["" for _ in range(max(outputs) + 1)]
        for place in outputs:
            places[place] = f"{name}.{place}"
        self._nodes.append(
            helper.make_node(operator, list(inputs), places, name=name, **attributes)
        )
        return [places[place] for place in outputs]

    def split(self, value: str, parts: int, *, axis: int) -> list[str]:
        """Cut `value` in equal parts along `axis`."""
        return self.nodes("Split", (value,), range(parts), axis=axis)

    def attention(
        self,
        packed: str,
        *,
        past: tuple[str, str],
        lengths: tuple[str, str],
        rotary: tuple[str, str],
        present: tuple[str, str],
        heads: int,
        kv_heads: int,
    ) -> str:
        """GroupQueryAttention with rotary embedding over a past/present buffer of fixed size."""
        name = f"GroupQueryAttention.{next(self._numbers)}"
        self._nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [packed, "", "", *past, *lengths, *rotary],
                [name, *present],
                name=name,
                domain="com.microsoft",
                num_heads=heads,
                kv_num_heads=kv_heads,
                do_rotary=1,
            )
        )
        return name

    def constant(self, value: NDArray[Any]) -> str:
        """A small constant, stored once however often it is asked for."""
        name = f"constant.{value.dtype}.{value.shape}.{value.tobytes().hex()}"
        self._initializers.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def weight(self, name: str, value: NDArray[Any]) -> str:
        """A named weight, stored once; large ones in the data file, page-aligned."""
        if name in self._initializers:
            return name
        if value.nbytes <= INLINE_BYTES:
            self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
            return name
        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
            dims=value.shape,
            data_location=TensorProto.EXTERNAL,
        )
        self._offset += -self._offset % ALIGNMENT
        for key, entry in (
            ("location", self._data_path.name),
            ("offset", str(self._offset)),
            ("length", str(value.nbytes)),
        ):
            tensor.external_data.add(key=key, value=entry)
        if self._data is not None:
            self._data.seek(self._offset)
            self._data.write(np.ascontiguousarray(value).data)
        self._offset += value.nbytes
        self._initializers[name] = tensor
        return name

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes, "decoder", inputs, outputs, list(self._initializers.values())
        )
        return close_model(graph)

    def close(self) -> None:
        """Close the data file."""
        if self._data is not None:
            self._data.close()


def close_model(graph: onnx.GraphProto) -> onnx.ModelProto:
    """A model of the operator sets that this project writes."""
    return helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)],
        producer_name="mirror-sd",
    )
