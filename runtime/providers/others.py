"""The rest: onnxruntime's own CPU provider, and those of Microsoft, Apple and AMD."""

from runtime.providers.advice import LINUX_GPU, LINUX_NPU, Advice
from runtime.providers.options import SWITCH, Option
from runtime.providers.provider import Compiled, Kind, Provider, Takes

CPU = Provider(
    "CPUExecutionProvider",
    {"CPU": Takes(("fused", "portable", "npu"), ("int4", "int8", "fp32", "fp16"))},
    built_in="onnxruntime",
)

XNNPACK = Provider(
    "XnnpackExecutionProvider",
    {"CPU": Takes(("portable",), ("fp32",))},
    built_in="a build of onnxruntime with XNNPACK",
    options=(Option("intra_op_num_threads", "of its own pool; 0: one", default="0", least=0),),
    # Its pool is beside onnxruntime's own, which then has nothing to do.
    defaults=lambda _kind, threads: {"intra_op_num_threads": str(threads)},
    traps=("It takes products and convolutions only, and leaves the rest to the CPU provider.",),
)

DIRECTML = Provider(
    "DmlExecutionProvider",
    {
        "GPU": Takes(("portable",), ("fp16", "fp32")),
        "NPU": Takes(("portable",), ("fp16", "fp32")),
    },
    built_in="onnxruntime-directml",
    systems=("win32",),
    extra="directml",
    options=(
        Option("device_id", "which adapter; GPU:1 sets it", default="0", least=0),
        Option(
            "performance_preference",
            "which of several adapters",
            ("default", "high_performance", "minimum_power"),
            "default",
        ),
        Option("device_filter", "which kinds of adapters", ("any", "gpu", "npu"), "gpu"),
        Option("disable_metacommands", "plain kernels only", SWITCH, "0"),
        Option("enable_graph_capture", "record a call and play it again", SWITCH, "0"),
    ),
    defaults=lambda kind, _threads: {"device_filter": "npu"} if kind == "NPU" else {},
    number_key="device_id",
    one_at_a_time=True,
    memory_pattern=False,
    traps=(
        "Two sessions that run at once on one device deadlock or lose the device.",
        "It plans no memory ahead: onnxruntime must be told so.",
        "onnxruntime-directml replaces onnxruntime: one of both may be installed.",
    ),
)


def _coreml(kind: Kind, _threads: int) -> dict[str, str]:
    """ML programs, as the older form computes in float16 whatever the graph; the units of a kind.

    Core ML always keeps the CPU as a way out, and does not say what it ran there.
    """
    units = {"NPU": "CPUAndNeuralEngine", "GPU": "CPUAndGPU", "CPU": "CPUOnly"}
    return {"ModelFormat": "MLProgram", "MLComputeUnits": units[kind]}


COREML = Provider(
    "CoreMLExecutionProvider",
    {
        "NPU": Takes(("portable",), ("fp16", "fp32")),
        "GPU": Takes(("portable",), ("fp16", "fp32")),
        "CPU": Takes(("portable",), ("fp32",)),
    },
    built_in="onnxruntime, for macOS",
    systems=("darwin",),
    options=(
        Option(
            "ModelFormat", "Core ML's form of a graph", ("MLProgram", "NeuralNetwork"), "MLProgram"
        ),
        Option(
            "MLComputeUnits",
            "what may compute",
            ("ALL", "CPUAndNeuralEngine", "CPUAndGPU", "CPUOnly"),
            "ALL",
        ),
        Option("RequireStaticInputShapes", "take only parts of fixed shapes", SWITCH, "0"),
        Option("EnableOnSubgraphs", "take bodies of loops", SWITCH, "0"),
        Option(
            "SpecializationStrategy", "what is tuned for", ("Default", "FastPrediction"), "Default"
        ),
        Option("ProfileComputePlan", "say where operators run", SWITCH, "0"),
        Option("AllowLowPrecisionAccumulationOnGPU", "sums in float16", SWITCH, "0"),
        Option("ModelCacheDirectory", "folder of compiled graphs; none is kept without"),
    ),
    defaults=_coreml,
    compiled=Compiled(folder=lambda folder: {"ModelCacheDirectory": str(folder)}),
    traps=(
        "NeuralNetwork, the older form, computes in float16 whatever the graph says.",
        "Core ML may run on the CPU what its other units do not take; ProfileComputePlan tells.",
    ),
)

MIGRAPHX = Provider(
    "MIGraphXExecutionProvider",
    {"GPU": Takes(("portable",), ("fp16", "fp32"))},
    package="onnxruntime_ep_migraphx",  # what pip fetches by that name is empty, as of 0.0.0
    built_in="onnxruntime-migraphx, from AMD",
    systems=("linux",),
    windows_ml=True,
    options=(
        Option("device_id", "which card; GPU:1 sets it", default="0", least=0),
        Option("migraphx_fp16_enable", "float32 graphs compute in float16", SWITCH, "0"),
        Option("migraphx_fp8_enable", "quantise to float8", SWITCH, "0"),
        Option("migraphx_int8_enable", "quantise to int8, by a table", SWITCH, "0"),
        Option("migraphx_int8_calibration_table_name", "that table's file"),
        Option("migraphx_int8_use_native_calibration_table", "of MIGraphX's form", SWITCH, "0"),
        Option("migraphx_model_cache_dir", "folder of compiled graphs; none is kept without"),
        Option("migraphx_exhaustive_tune", "longer compiling for a faster graph", SWITCH, "0"),
        Option("migraphx_mem_limit", "bytes of its memory pool", default="", least=0),
        Option(
            "migraphx_arena_extend_strategy",
            "how the pool grows",
            ("kNextPowerOfTwo", "kSameAsRequested"),
            "kNextPowerOfTwo",
        ),
    ),
    number_key="device_id",
    compiled=Compiled(folder=lambda folder: {"migraphx_model_cache_dir": str(folder)}),
    traps=("Compiling takes long.",),
    advice=(
        *LINUX_GPU,
        Advice(
            "MIGraphX comes with AMD's ROCm, and libamdhip64.so cannot be loaded: install ROCm.",
            systems=("linux",),
            library="libamdhip64.so",
        ),
    ),
)

VITISAI = Provider(
    "VitisAIExecutionProvider",
    {"NPU": Takes(("portable",), ("fp16", "fp32"))},
    built_in="the onnxruntime of AMD's Ryzen AI software",
    systems=("linux", "win32"),
    windows_ml=True,
    options=(
        Option("config_file", "its settings, a JSON file"),
        Option("target", "what it compiles for", ("VAIML", "X2", "X1"), ""),
        Option("xclbin", "the NPU's own program, a file"),
        Option("cache_dir", "folder of compiled graphs"),
        Option("cache_key", "name of a compiled graph in it"),
        Option("encryption_key", "of compiled graphs"),
        Option("enable_cache_file_io_in_mem", "keep compiled graphs in memory", SWITCH, "1"),
        Option("log_level", "its own", ("info", "warning", "error", "fatal"), "error"),
    ),
    compiled=Compiled(folder=lambda folder: {"cache_dir": str(folder), "cache_key": "graph"}),
    traps=("Compiling takes minutes.",),
    advice=(
        *LINUX_NPU,
        Advice(
            "VitisAI needs AMD's Ryzen AI software and the NPU's driver from AMD's site.",
            systems=("win32", "linux"),
        ),
    ),
)
