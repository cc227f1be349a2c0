"""Memory of a device, where a graph's cache can stay."""

from collections.abc import Sequence

import onnxruntime as ort
from numpy.typing import DTypeLike
from onnxruntime.capi.onnxruntime_pybind11_state import OrtDeviceMemoryType

from runtime.errors import ProviderError
from runtime.providers.devices import device_of
from runtime.providers.place import Place
from runtime.providers.table import as_place
from runtime.providers.turns import turn_on


def has_own_memory(name: str | Place) -> bool:
    """Whether a place copies what is bound from the host, so that later changes are not seen."""
    return as_place(name).provider != "CPU"


def allocate(name: str | Place, shape: Sequence[int], real: DTypeLike) -> ort.OrtValue:
    """An array on the device of a place, for any of its sessions; what it holds is undefined.

    Raises ProviderError where the provider keeps arrays on the host only.
    """
    place = as_place(name)
    listed = device_of(place).listed
    memory = None if listed is None else listed.memory_info(OrtDeviceMemoryType.DEFAULT)
    if memory is None:
        raise ProviderError(f"{place} has no memory for a cache: take a portable graph.")
    with turn_on(place):
        return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), real, memory_info=memory)
