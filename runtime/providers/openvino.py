"""Intel's OpenVINO: the CPU, the GPU and the NPU of an Intel machine."""

import json

from runtime.providers.advice import LINUX_GPU, LINUX_NPU, Advice
from runtime.providers.options import Option
from runtime.providers.provider import Compiled, Kind, Provider, Takes

OPTIONS = (
    Option("load_config", "OpenVINO's own settings by device, as JSON or a JSON file", tables=True),
    Option("reshape_input", "fixed shapes for the NPU, name[1,3,60]"),
    Option("layout", "of inputs and outputs, name[NCHW]"),
)
_CONFIG = "load_config, as"
# Of the portable int8 graph it makes no number at all in float16.
IN_FLOAT16 = Takes(("portable", "npu"), ("fp16", "int8", "fp32"), apart=("portable-int8",))
ADVICE = (
    *LINUX_GPU,
    Advice(
        "OpenVINO reaches Intel's GPUs by OpenCL, and libOpenCL.so.1 cannot be loaded: install "
        "Intel's compute runtime (Debian: intel-opencl-icd).",
        kinds=("GPU",),
        systems=("linux",),
        library="libOpenCL.so.1",
    ),
    *LINUX_NPU,
    Advice(
        "OpenVINO reaches Intel's NPUs by Level Zero, and libze_loader.so.1 cannot be loaded: "
        "install it and Intel's packages intel-level-zero-npu, intel-fw-npu and "
        "intel-driver-compiler-npu (the plug-in for Linux brings no compiler for the NPU).",
        kinds=("NPU",),
        systems=("linux",),
        library="libze_loader.so.1",
    ),
    Advice(
        "The plug-in for Linux brings no compiler for the NPU: install Intel's package "
        "intel-driver-compiler-npu.",
        kinds=("NPU",),
        systems=("linux",),
        said="(?i)compiler",
    ),
    Advice("Update the driver of the NPU from Intel's site.", kinds=("NPU",), systems=("win32",)),
    Advice("Update the driver of the GPU from Intel's site.", kinds=("GPU",), systems=("win32",)),
)


def _defaults(kind: Kind, threads: int) -> dict[str, str]:
    """Float32 where the CPU computes: its default is bfloat16, and the text changes.

    Pinning would move the threads of the session beside it. GPU and NPU compute in float16.
    """
    if kind != "CPU":
        return {"load_config": json.dumps({kind: {"INFERENCE_PRECISION_HINT": "f16"}})}
    device = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": str(threads),
        "NUM_STREAMS": "1",
        "ENABLE_CPU_PINNING": "NO",
    }
    return {"load_config": json.dumps({"CPU": device})}


def _merge(defaults: dict[str, str], asked: dict[str, str]) -> dict[str, str]:
    """Settings by device one by one, or naming a cache's folder would bring bfloat16 back."""
    config = json.loads(defaults["load_config"])
    for device, settings in json.loads(asked.get("load_config", "{}")).items():
        config[device] = config.get(device, {}) | settings
    return asked | {"load_config": json.dumps(config)}


OPENVINO = Provider(
    "OpenVINOExecutionProvider",
    {
        "CPU": Takes(("portable",), ("fp32", "fp16", "int8")),
        "GPU": IN_FLOAT16,
        "NPU": IN_FLOAT16,
    },
    package="onnxruntime_ep_openvino",
    distribution="onnxruntime-ep-openvino",
    systems=("linux", "win32"),
    extra="openvino",
    windows_ml=True,
    options=OPTIONS,
    # The plug-in ignores these keys of the older provider, with a line in a log that is off.
    elsewhere={
        "device_type": "the flags --device or --draft-device",
        "device_id": "the flags --device or --draft-device",
        "device_luid": "the flags --device or --draft-device",
        "precision": f'{_CONFIG} {{"GPU": {{"INFERENCE_PRECISION_HINT": "f16"}}}}',
        "cache_dir": f'{_CONFIG} {{"GPU": {{"CACHE_DIR": "FOLDER"}}}}',
        "num_of_threads": f'{_CONFIG} {{"CPU": {{"INFERENCE_NUM_THREADS": "4"}}}}',
        "num_streams": f'{_CONFIG} {{"CPU": {{"NUM_STREAMS": "1"}}}}',
        "model_priority": f'{_CONFIG} {{"GPU": {{"MODEL_PRIORITY": "HIGH"}}}}',
        "enable_opencl_throttling": f'{_CONFIG} {{"GPU": {{"GPU_QUEUE_THROTTLE": "LOW"}}}}',
        "enable_qdq_optimizer": f'{_CONFIG} {{"NPU": {{"NPU_QDQ_OPTIMIZATION": "YES"}}}}',
    },
    defaults=_defaults,
    merge=_merge,
    compiled=Compiled(),
    traps=(
        "The CPU device computes in bfloat16 by default, which changes the text.",
        "In float16 the portable int8 graph gives NaN for every logit; the npu one is right.",
        "A bound input is copied when it is bound: what is written into it later is not seen.",
        "Its AUTO device is another provider's name, and no device.",
        "The Linux package has no compiler for the NPU.",
    ),
    advice=ADVICE,
)
