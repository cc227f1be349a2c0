"""A thin pen over onnx.helper: names nodes, and keeps weights in a file that graphs share."""

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from runtime.errors import BuildError

OPSET = 17
IR_VERSION = 8  # what opset 17 was published with; Android's runtimes read it
ALIGNMENT = 4096  # a page: external data that starts on one can be mapped into memory
# What two models in one file of weights have in common; of everything else each has its own.
COMMON = ("embedding", "head", "head_tokens", "cosine", "sine", "lengths")
INLINE_BYTES = 1024  # smaller tensors stay in the graph, where shape inference can see them


class GraphWriter:
    """Collects one graph's nodes and weights; `real_type` is the ONNX type of its real numbers.

    real_suffix: ends the names of real weights, where graphs of another type share the file.
    model: a name for the weights that are not COMMON, where `weights` holds those of two models.
    """

    def __init__(
        self,
        weights: "WeightFile",
        *,
        real_type: int = TensorProto.FLOAT,
        real_suffix: str = "",
        model: str = "",
    ) -> None:
        """Start a graph whose large weights go to, or are already in, `weights`."""
        self.real_type = real_type
        self._real_suffix = real_suffix
        self._prefix = f"{model}." if model else ""
        self._weights = weights
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

    def split_sizes(self, value: str, sizes: Sequence[int], *, axis: int) -> list[str]:
        """Cut `value` in parts of `sizes` along `axis`."""
        stored = self.constant(np.array(sizes, np.int64))
        return self.nodes("Split", (value, stored), range(len(sizes)), axis=axis)

    def attention(
        self,
        packed: str,
        *,
        past: tuple[str, str],
        lengths: tuple[str, str],
        rotary: tuple[str, str],
        tree: tuple[str, ...] = (),
        present: tuple[str, str],
        heads: int,
        kv_heads: int,
    ) -> str:
        """GroupQueryAttention with rotary embedding over a past/present buffer of fixed size.

        tree: each row's position and what is added to its scores, where the rows are no chain.
        """
        name = f"GroupQueryAttention.{next(self._numbers)}"
        self._nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [packed, "", "", *past, *lengths, *rotary, *tree],
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

    def scalar(self, value: float) -> str:
        """A real number."""
        return self.constant(np.array(value, self._real))

    def real(self, name: str, value: NDArray[Any] | Callable[[], NDArray[Any]]) -> str:
        """A named weight in the graph's own real numbers."""
        name = f"{name}{self._real_suffix}"
        if callable(value):
            return self.weight(name, lambda: value().astype(self._real, copy=False))
        return self.weight(name, value.astype(self._real, copy=False))

    def float32(self, value: str, *, output: str) -> str:
        """`value` in float32 under the name `output`."""
        return self.node("Cast", value, output=output, to=TensorProto.FLOAT)

    def weight(self, name: str, value: NDArray[Any] | Callable[[], NDArray[Any]]) -> str:
        """A named weight, stored once; large ones in the file of weights.

        A function is called for its value only where the file has no weight of that name yet.
        """
        if name.partition(".")[0] not in COMMON:
            name = f"{self._prefix}{name}"
        if name not in self._initializers:
            self._initializers[name] = self._stored(name, value)
        return name

    def _stored(self, name: str, value: NDArray[Any] | Callable[[], NDArray[Any]]) -> TensorProto:
        if callable(value):
            if (found := self._weights.find(name)) is not None:
                return found
            value = value()
        if value.nbytes <= INLINE_BYTES:
            return numpy_helper.from_array(np.ascontiguousarray(value), name)
        return self._weights.tensor(name, value)

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes, "decoder", inputs, outputs, list(self._initializers.values())
        )
        return close_model(graph)

    @property
    def _real(self) -> np.dtype[Any]:
        return helper.tensor_dtype_to_np_dtype(self.real_type)


class WeightFile:
    """The weights of several graphs in one file, each stored once by its name, page-aligned."""

    def __init__(self, path: Path) -> None:
        """Begin a new file; `close` ends it."""
        self._path = path
        self._data = path.open("wb")
        self._tensors: dict[str, TensorProto] = {}

    def find(self, name: str) -> TensorProto | None:
        """The reference to a weight that was written before."""
        return self._tensors.get(name)

    def tensor(self, name: str, value: NDArray[Any]) -> TensorProto:
        """A reference to `value`, which is written unless `name` is there already.

        Raises BuildError when another shape or type is there under that name.
        """
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        if name not in self._tensors:
            tensor = TensorProto(
                name=name, data_type=kind, dims=value.shape, data_location=TensorProto.EXTERNAL
            )
            self._data.seek(-self._data.tell() % ALIGNMENT, os.SEEK_CUR)
            for key, entry in (
                ("location", self._path.name),
                ("offset", str(self._data.tell())),
                ("length", str(value.nbytes)),
            ):
                tensor.external_data.add(key=key, value=entry)
            self._data.write(np.ascontiguousarray(value).data)
            self._tensors[name] = tensor
        found = self._tensors[name]
        if (found.data_type, tuple(found.dims)) != (kind, value.shape):
            raise BuildError(f"Two graphs disagree on the weight {name} of {self._path}.")
        return found

    def close(self) -> None:
        """End the file."""
        self._data.close()


def close_model(graph: onnx.GraphProto) -> onnx.ModelProto:
    """A model of the operator sets that this project writes."""
    return helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)],
        producer_name="mirror-sd",
    )
