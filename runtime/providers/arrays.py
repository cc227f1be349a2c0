"""Arrays that a graph reads and writes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime.errors import BundleError


def bind(
    binding: ort.IOBinding,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, NDArray[Any]],
) -> None:
    """Bind arrays, which the caller keeps alive, as what a graph reads and writes."""
    for bind_one, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            bind_one(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def input_type(session: ort.InferenceSession, name: str) -> np.dtype[Any]:
    """The numpy type of the float32 or float16 input `name`; BundleError where there is none."""
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    for item in session.get_inputs():
        if item.name == name and item.type in types:
            return np.dtype(types[item.type])
    raise BundleError(f"A graph has no input {name} of real numbers; build the bundle again.")
