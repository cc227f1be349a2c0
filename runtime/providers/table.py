"""The table of execution providers, and in which order a kind of device asks for them."""

from collections.abc import Mapping

from runtime.providers.nvidia import CUDA, TENSORRT_RTX
from runtime.providers.openvino import OPENVINO
from runtime.providers.others import COREML, CPU, DIRECTML, MIGRAPHX, VITISAI, XNNPACK
from runtime.providers.place import Place
from runtime.providers.provider import Kind, Provider, Takes
from runtime.providers.qnn import QNN
from runtime.providers.webgpu import WEBGPU

PROVIDERS: Mapping[str, Provider] = {
    "CPU": CPU,
    "QNN": QNN,
    "OpenVINO": OPENVINO,
    "WebGPU": WEBGPU,
    "CUDA": CUDA,
    "NvTensorRTRTX": TENSORRT_RTX,
    "DirectML": DIRECTML,
    "CoreML": COREML,
    "MIGraphX": MIGRAPHX,
    "VitisAI": VITISAI,
    "XNNPACK": XNNPACK,
}
# Best first. OpenVINO, Core ML and XNNPACK run on the CPU only where they are named.
BEST: Mapping[Kind, tuple[str, ...]] = {
    "CPU": ("CPU",),
    "GPU": ("CUDA", "WebGPU", "DirectML", "NvTensorRTRTX", "OpenVINO", "MIGraphX", "CoreML", "QNN"),
    "NPU": ("QNN", "OpenVINO", "VitisAI", "CoreML", "DirectML"),
}


def as_place(name: str | Place) -> Place:
    """The place, or the provider of this key on the first kind of device that it is for."""
    return name if isinstance(name, Place) else Place(name, next(iter(PROVIDERS[name].devices)))


def takes(name: str | Place) -> Takes:
    """Which graphs run there, best first."""
    place = as_place(name)
    return PROVIDERS[place.provider].devices[place.kind]
