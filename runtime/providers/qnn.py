"""Qualcomm's QNN: the NPU (HTP) and the GPU of a Snapdragon; on x86-64 the NPU emulated."""

from runtime.providers.advice import Advice
from runtime.providers.options import SWITCH, Option
from runtime.providers.provider import Compiled, Kind, Provider, Takes

PERFORMANCE = (
    *("default", "burst", "balanced", "high_performance", "high_power_saver", "low_balanced"),
    *("low_power_saver", "power_saver", "extreme_power_saver", "sustained_high_performance"),
)
# From the provider's own table of names, in version 2.7. A name that it does not know it takes in
# silence, for another chip.
CHIPS = {
    "SM8350": "30",
    "SM8325": "34",
    "SM8450": "36",
    "SM8475": "42",
    "SM8550": "43",
    "SM8650": "57",
    "SC8380XP": "60",
    "SM8635": "68",
    "SM8750": "69",
    "SM7675": "70",
    "SM8850": "87",
    "SC8480XP": "88",
    "SM8975": "103",
}
OPTIONS = (
    Option("backend_type", "which of QNN's libraries computes", ("htp", "gpu", "cpu"), "htp"),
    Option("backend_path", "that library's file, instead of backend_type"),
    Option(
        "soc_model",
        "the chip to compile for; 0: the one that is there",
        default="0",
        least=0,
        names=CHIPS,
    ),
    Option(
        "htp_arch",
        "the Hexagon to compile for; 0: the one that is there",
        ("0", "68", "69", "73", "75", "79", "81"),
        "0",
    ),
    Option("device_id", "which of several NPUs", default="0", least=0),
    Option("htp_performance_mode", "speed against power", PERFORMANCE, "default"),
    Option("rpc_control_latency", "µs that waking the NPU may take", default="0", least=0),
    Option(
        "htp_graph_finalization_optimization_mode",
        "longer compiling for a faster graph",
        ("0", "1", "2", "3"),
        "0",
    ),
    Option("vtcm_mb", "MB of the NPU's fast memory; 0: its default", default="0", least=0),
    Option("enable_htp_fp16_precision", "float32 graphs compute in float16", SWITCH, "1"),
    Option("enable_htp_fp16_clamp_overflow", "float16 saturates where it overflows", SWITCH, "0"),
    Option("htp_bf16_enable", "bfloat16, from soc_model 88", SWITCH, "0"),
    Option(
        "offload_graph_io_quantization",
        "the first Quantize and the last Dequantize run elsewhere",
        SWITCH,
        "1",
    ),
    Option("enable_htp_spill_fill_buffer", "contexts share memory for spills", SWITCH, "0"),
    Option("enable_vtcm_backup_buffer_sharing", "contexts share a backup of VTCM", SWITCH, "0"),
    Option("htp_share_resource_optimization", "contexts share resources", SWITCH, "0"),
    Option("enable_htp_shared_memory_allocator", "arrays in memory that the NPU sees", SWITCH, "0"),
    Option("disable_file_mapped_weights", "read weights instead of mapping them", SWITCH, "0"),
    Option("extended_udma", "64-bit transfers, where the chip has them", SWITCH, "0"),
    Option(
        "qnn_context_priority", "among programs", ("low", "normal", "normal_high", "high"), "normal"
    ),
    Option("num_graph_prepare_threads", "threads that compile; 0: one", default="0", least=0),
    Option("profiling_level", "QNN's own", ("off", "basic", "detailed", "optrace"), "off"),
    Option("profiling_file_path", "where that is written"),
    Option("op_packages", "operators of your own, Type:File:Symbol[:Target]"),
    Option("skip_qnn_version_check", "take libraries of another version", SWITCH, "0"),
)
ADVICE = (
    Advice(
        "QNN runs on Qualcomm's chips; on this processor it only emulates their NPU, slowly: for "
        "that name the provider, as in --draft-execution-provider QNN.",
        kinds=("NPU",),
        processors=("x86_64", "amd64"),
    ),
    Advice(
        "QNN reaches the NPU by Qualcomm's FastRPC, and libcdsprpc.so cannot be loaded: install "
        "the board's packages for it.",
        kinds=("NPU",),
        systems=("linux",),
        processors=("aarch64", "arm64"),
        library="libcdsprpc.so",
    ),
    Advice(
        "QNN's GPU needs OpenCL, and libOpenCL.so.1 cannot be loaded.",
        kinds=("GPU",),
        systems=("linux",),
        processors=("aarch64", "arm64"),
        library="libOpenCL.so.1",
    ),
    Advice(
        "Update the NPU's driver by Windows Update or from the maker of the machine.",
        kinds=("NPU",),
        systems=("win32",),
        processors=("arm64",),
    ),
    Advice(
        "Name the chip that is to be compiled for: --provider-option soc_model=SC8380XP, or with "
        "--draft-provider-option.",
        said="Failed to finalize|soc_model",
    ),
)


def _defaults(kind: Kind, _threads: int) -> dict[str, str]:
    """The backend of the kind, and the graph's own quantising at its ends with the rest."""
    return {
        "backend_type": "gpu" if kind == "GPU" else "htp",
        "offload_graph_io_quantization": "0",
    }


def _merge(defaults: dict[str, str], asked: dict[str, str]) -> dict[str, str]:
    """A file takes the place of a kind of backend; QNN refuses both."""
    if "backend_path" in asked:
        defaults.pop("backend_type")
    return defaults | asked


QNN = Provider(
    "QNNExecutionProvider",
    {
        # It computes float32 graphs in float16, where a real model's squares overflow.
        "NPU": Takes(
            ("npu", "portable"),
            ("fp16", "int8", "int4"),
            apart=("portable-int8",),  # its operators are not there
        ),
        "GPU": Takes(("portable",), ("fp16", "fp32")),
    },
    package="onnxruntime_qnn",
    distribution="onnxruntime-qnn",
    systems=("linux", "win32"),
    extra="qnn",
    windows_ml=True,
    stands_for="NPU",
    options=OPTIONS,
    elsewhere={
        "enable_context_cache": "the session's entry ep.context_enable",
        "context_cache_path": "the session's entry ep.context_file_path",
    },
    defaults=_defaults,
    merge=_merge,
    emulated={"soc_model": "60"},  # a float graph needs one to be named
    compiled=Compiled(
        ("NPU",),
        chip="soc_model",
        unheeded=("htp_performance_mode", "rpc_control_latency"),
    ),
    traps=(
        "A wrong backend_path yields a session that runs on the CPU.",
        "The saver backend answers with garbage.",
        "On x86-64 float graphs need soc_model; dynamic shapes put no node on QNN.",
        "Some mistakes end the process.",
        "Its library calls itself 0.1.0, whatever the package's version is.",
        "What was compiled for one chip the emulator runs as another, without a word.",
        "A chip's name that it does not know it takes for another chip.",
        "The NPU computes float32 graphs in float16, where a real model's squares overflow.",
    ),
    advice=ADVICE,
)
