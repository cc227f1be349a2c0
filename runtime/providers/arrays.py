"""Arrays that a graph reads and writes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from runtime.errors import BundleError

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}


def bind(
    binding: ort.IOBinding,
    inputs: Mapping[str, NDArray[Any] | ort.OrtValue],
    outputs: Mapping[str, NDArray[Any] | ort.OrtValue],
) -> None:
    """Bind what a graph reads and writes: arrays, which the caller keeps alive, and OrtValues."""
    for name, it in inputs.items():
        if isinstance(it, np.ndarray):
            binding.bind_input(name, "cpu", 0, it.dtype, it.shape, it.ctypes.data)
        else:
            binding.bind_ortvalue_input(name, it)
    for name, it in outputs.items():
        if isinstance(it, np.ndarray):
            binding.bind_output(name, "cpu", 0, it.dtype, it.shape, it.ctypes.data)
        else:
            binding.bind_ortvalue_output(name, it)


def input_type(session: ort.InferenceSession, name: str) -> np.dtype[Any]:
    """The numpy type of the input `name`: float32, float16, int32 or int64.

    BundleError where there is none.
    """
    for item in session.get_inputs():
        if item.name == name and item.type in TYPES:
            return np.dtype(TYPES[item.type])
    raise BundleError(f"A graph has no input {name} of a known type; build the bundle again.")
