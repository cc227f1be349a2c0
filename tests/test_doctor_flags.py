from pathlib import Path

import pytest

from runtime.doctor_flags import TIME_LIMIT_S, TOKENS, flag_parser, parse
from runtime.errors import UsageError


def test_nothing_is_asked_for_unless_it_is() -> None:
    options = parse([])
    assert (options.model, options.json, options.report) == (None, False, False)
    assert (options.tokens, options.time_limit_s) == (TOKENS, TIME_LIMIT_S)
    nothing = dict.fromkeys(("device", "execution_provider", "provider_options"))
    assert options.asked == {"target": nothing, "draft": nothing}


def test_the_devices_of_both_models_are_kept_apart() -> None:
    words = "-m B --device GPU:1 -e WebGPU --draft-device NPU --draft-execution-provider QNN"
    more = "--provider-option a=1 --draft-provider-option b=2 --ep-library QNN=q.so --cache-dir C"
    options = parse([*words.split(), *more.split(), "--report", "--tokens", "3"])
    assert options.asked == {
        "target": {
            "device": "GPU:1",
            "execution_provider": "WebGPU",
            "provider_options": {"a": "1"},
        },
        "draft": {
            "device": "NPU",
            "execution_provider": "QNN",
            "provider_options": {"b": "2"},
        },
    }
    assert options.ep_libraries == {"QNN": "q.so"}
    assert (options.tokens, options.cache_dir) == (3, Path("C"))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--report", "--report is about a model: name one with --model"),
        ("--precision fp16", "--precision is about a model"),
        ("--draft-model D", "--draft-model is about a model"),
        ("--context-length 64", "--context-length is about a model"),
        ("--verify", "--verify is about a model"),
        ("-m B --report --json", "--report and --json are two forms of one output"),
        ("-m B --tokens 4", "--tokens is for the rows of --report"),
        ("-m B --report --tokens 0", "0 is not a whole number, 1 or more"),
        ("--time-limit 0", "0 is not a whole number, 1 or more"),
        ("--devise GPU", "did you mean --device"),
        ("--ep-library QNN", "is not NAME=PATH"),
    ],
)
def test_what_would_be_of_no_use_is_refused(flags: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(flags.split())


def test_help_teaches_every_form() -> None:
    text = flag_parser().format_help()
    for word in ("examples:", "--json", "--report", "Exit codes: 0", "docs/doctor.md"):
        assert word in text
    assert "(default: none)" in text, "no model is examined unasked"
