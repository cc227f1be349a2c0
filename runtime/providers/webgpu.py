"""WebGPU: any GPU that has Vulkan, Direct3D 12 or Metal, and software that plays one."""

from runtime.providers.advice import LINUX_GPU, Advice
from runtime.providers.options import SWITCH, Option
from runtime.providers.provider import Provider, Takes

PREFIX = "ep.webgpuexecutionprovider."
CACHES = ("disabled", "lazyRelease", "simple", "bucket")
OPTIONS = (
    Option(f"{PREFIX}dawnBackendType", "what drives the GPU", ("Vulkan", "D3D12"), ""),
    Option(
        f"{PREFIX}powerPreference",
        "which of several GPUs",
        ("high-performance", "low-power"),
        "high-performance",
    ),
    Option(f"{PREFIX}deviceId", "contexts of one number share a device", default="0", least=0),
    Option(f"{PREFIX}preferredLayout", "of images", ("NCHW", "NHWC"), "NHWC"),
    Option(f"{PREFIX}enableGraphCapture", "record a call and play it again", SWITCH, "0"),
    Option(f"{PREFIX}enableInt64", "whole numbers of 64 bits on the GPU", SWITCH, "0"),
    Option(
        f"{PREFIX}validationMode",
        "how much is checked",
        ("disabled", "wgpuOnly", "basic", "full"),
        "basic",
    ),
    Option(f"{PREFIX}enableRobustness", "checks against reads out of bounds", SWITCH, ""),
    Option(f"{PREFIX}preserveDevice", "keep the device when sessions end", SWITCH, "0"),
    Option(f"{PREFIX}forceCpuNodeNames", "nodes for the CPU, by name, with line ends between"),
    Option(f"{PREFIX}maxStorageBufferBindingSize", "bytes of one buffer", default="0", least=0),
    Option(f"{PREFIX}maxNumPendingDispatches", "kernels sent at once", default="", least=1),
    Option(f"{PREFIX}sessionBufferPoolGenerations", "buffers kept", default="1", least=0),
    Option(f"{PREFIX}storageBufferCacheMode", "how buffers are reused", CACHES, "bucket"),
    Option(f"{PREFIX}uniformBufferCacheMode", "how buffers are reused", CACHES, "simple"),
    Option(f"{PREFIX}queryResolveBufferCacheMode", "how buffers are reused", CACHES, "disabled"),
    Option(f"{PREFIX}defaultBufferCacheMode", "how buffers are reused", CACHES, "disabled"),
    Option(f"{PREFIX}kvCacheQuantizationBits", "of cached keys; 0: none", ("0", "4", "8"), "0"),
    Option(f"{PREFIX}multiRotaryCacheConcatOffset", "of long contexts", default="0", least=0),
)
ADVICE = (
    Advice(
        "WebGPU reaches a GPU by Vulkan here, and libvulkan.so.1 cannot be loaded: install the "
        "loader and the GPU's driver for it (Debian: libvulkan1 and mesa-vulkan-drivers).",
        systems=("linux",),
        library="libvulkan.so.1",
    ),
    *LINUX_GPU,
    Advice(
        "Software can play the GPU for WebGPU, slowly: set VK_ICD_FILENAMES to SwiftShader's "
        "vk_swiftshader_icd.json (Debian has it in chromium-common) and "
        "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1, and name the provider, as in -e WebGPU.",
        systems=("linux",),
        unset="ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER",
    ),
    Advice(
        "Vulkan finds no device that suits WebGPU: install the GPU's Vulkan driver, or set "
        "VK_ICD_FILENAMES to SwiftShader's vk_swiftshader_icd.json.",
        systems=("linux",),
        said="No supported adapters",
    ),
    Advice(
        "This GPU, or the software that plays one, has no float16: take --precision fp32.",
        said="requires f16",
    ),
)

WEBGPU = Provider(
    "WebGpuExecutionProvider",
    {"GPU": Takes(("gpu", "portable"), ("fp16", "fp32", "int4"))},
    package="onnxruntime_ep_webgpu",
    distribution="onnxruntime-ep-webgpu",
    extra="webgpu",
    built_in="onnxruntime-webgpu",
    stands_for="GPU",
    chooses_itself=True,
    options=OPTIONS,
    safe_rows=31,
    one_at_a_time=True,
    traps=(
        "It picks a GPU by itself: GPU:1 cannot be asked for, only powerPreference.",
        "Software plays a GPU only with ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1; in float32 only "
        "with SwiftShader, whose float16 graphs load, and fail at their first run.",
        "GroupQueryAttention takes a row's place in the cache for its position, whatever "
        "position_ids says: in fused graphs nodes off a trunk are wrong by whole logits.",
        "Two sessions at work in two threads end the process.",
        "Its attention over 32 rows and more was wrong wherever it was tried: from the fifth row "
        "on with SwiftShader, whose subgroups have 4 lanes; with lavapipe, of 8 or 16, from the "
        "ninth or the seventeenth.",
    ),
    advice=ADVICE,
)
