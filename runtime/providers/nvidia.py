"""NVIDIA's GPUs: CUDA, and TensorRT for RTX, which compiles for the card."""

from runtime.providers.advice import Advice
from runtime.providers.options import SWITCH, Option
from runtime.providers.provider import Compiled, Provider, Takes

DEVICE_ID = Option("device_id", "which card; GPU:1 sets it", default="0", least=0)
CUDA_OPTIONS = (
    DEVICE_ID,
    Option("gpu_mem_limit", "bytes of its memory pool", default="", least=0),
    Option(
        "arena_extend_strategy",
        "how the pool grows",
        ("kNextPowerOfTwo", "kSameAsRequested"),
        "kNextPowerOfTwo",
    ),
    Option(
        "cudnn_conv_algo_search", "of cuDNN", ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"), "EXHAUSTIVE"
    ),
    Option("cudnn_conv_use_max_workspace", "of cuDNN", SWITCH, "1"),
    Option("do_copy_in_default_stream", "copies wait for kernels", SWITCH, "1"),
    Option("use_tf32", "float32 products in TensorFloat-32", SWITCH, "1"),
    Option("enable_cuda_graph", "record a call and play it again", SWITCH, "0"),
    Option("prefer_nhwc", "layout of images", SWITCH, "0"),
    Option("tunable_op_enable", "use kernels that were tuned", SWITCH, "0"),
    Option("tunable_op_tuning_enable", "tune kernels", SWITCH, "0"),
    Option("use_ep_level_unified_stream", "one stream for all", SWITCH, "0"),
    Option("sdpa_kernel", "bits that choose kernels of attention", default="0", least=0),
)
RTX_OPTIONS = (
    DEVICE_ID,
    Option("nv_max_workspace_size", "bytes while it compiles; 0: its choice", default="0", least=0),
    Option("nv_max_shared_mem_size", "bytes for a kernel; 0: all there is", default="0", least=0),
    Option("nv_profile_min_shapes", "smallest shapes, name:1x8,…"),
    Option("nv_profile_max_shapes", "largest shapes, name:1x8,…"),
    Option("nv_profile_opt_shapes", "usual shapes, name:1x8,…"),
    Option("nv_multi_profile_enable", "several sets of shapes", SWITCH, "0"),
    Option("nv_runtime_cache_path", "folder of compiled kernels; none is kept without"),
    Option("nv_use_external_data_initializer", "weights from outside the engine", SWITCH, "0"),
    Option("enable_cuda_graph", "record a call and play it again", SWITCH, "0"),
    Option("nv_dump_subgraphs", "write the parts to the folder it runs in", SWITCH, "0"),
    Option("nv_detailed_build_log", "say what it compiles", SWITCH, "0"),
)
NVIDIA_DRIVER = Advice(
    "NVIDIA's driver is not here, as libcuda.so.1 cannot be loaded: install it until nvidia-smi "
    "shows the card.",
    systems=("linux",),
    library="libcuda.so.1",
)

CUDA = Provider(
    "CUDAExecutionProvider",
    {"GPU": Takes(("portable",), ("fp16", "fp32"))},
    built_in="onnxruntime-gpu",
    systems=("linux", "win32"),
    extra="cuda",
    options=CUDA_OPTIONS,
    # Float32 as asked for: its default is TensorFloat-32, with ten bits where float32 has 23.
    defaults=lambda _kind, _threads: {"use_tf32": "0"},
    number_key="device_id",
    traps=(
        "Float32 products are in TensorFloat-32 by default.",
        "onnxruntime-gpu replaces onnxruntime: one of both may be installed.",
    ),
    advice=(
        NVIDIA_DRIVER,
        Advice(
            "CUDA's or cuDNN's libraries are missing or of another version: python -m pip install "
            '"onnxruntime-gpu[cuda,cudnn]".',
            said="(?i)libcu|cublas|cudnn|cudart",
        ),
    ),
)
TENSORRT_RTX = Provider(
    "NvTensorRTRTXExecutionProvider",
    {"GPU": Takes(("portable",), ("fp16", "fp32"))},
    package="onnxruntime_ep_nv_tensorrt_rtx",
    distribution="onnxruntime-ep-nv-tensorrt-rtx",
    built_in="onnxruntime-trt-rtx",
    systems=("linux", "win32"),
    windows_ml=True,
    options=RTX_OPTIONS,
    number_key="device_id",
    compiled=Compiled(),
    traps=("Compiling takes long; kernels are kept by nv_runtime_cache_path only.",),
    advice=(NVIDIA_DRIVER,),
)
