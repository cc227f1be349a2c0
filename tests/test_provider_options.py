"""Options are read by their types; what a provider does not have is refused with the nearest."""

import json
from pathlib import Path

import pytest

from runtime.errors import UsageError
from runtime.providers import PROVIDERS, Option
from runtime.providers.options import read_options

KNOWN = (
    Option("soc_model", "", default="0", least=0, names={"SM8650": "57", "SC8380XP": "60"}),
    Option("htp_performance_mode", "", ("default", "burst")),
    Option("enable_fp16", "", ("0", "1"), "1"),
    Option("profiling_file_path", ""),
    Option("ep.webgpuexecutionprovider.validationMode", "", ("disabled", "full")),
    Option("load_config", "", tables=True),
)


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("soc_model", "60", "60"),
        ("soc_model", " 060 ", "60"),
        ("soc_model", "SM8650", "57"),
        ("soc_model", " sc8380xp ", "60"),
        ("htp_performance_mode", "BURST", "burst"),
        ("enable_fp16", "0", "0"),
        ("enable_fp16", "True", "1"),
        ("enable_fp16", "off", "0"),
        ("profiling_file_path", "a b.csv", "a b.csv"),
        ("load_config", '{"CPU": {"NUM_STREAMS": "1"}}', '{"CPU": {"NUM_STREAMS": "1"}}'),
        ("load_config", "{}", "{}"),
    ],
)
def test_a_value_is_spelled_as_the_provider_has_it(key: str, value: str, read: str) -> None:
    assert read_options("draft", "QNN", KNOWN, {key: value}) == {key: read}


@pytest.mark.parametrize(
    ("key", "value", "takes"),
    [
        ("soc_model", "-1", "a whole number, 0 or more"),
        ("soc_model", "", "a whole number, 0 or more"),
        ("soc_model", "60.5", "a whole number, 0 or more"),
        ("soc_model", "SM9999", "a whole number, 0 or more, or SM8650, SC8380XP"),
        ("soc_model", "٦", "a whole number, 0 or more"),
        ("soc_model", "1" * 5000, "a whole number, 0 or more"),
        ("htp_performance_mode", "turbo", "default or burst"),
        ("enable_fp16", "2", "0 or 1"),
        ("load_config", '{"CPU": 1}', "a JSON object of objects, such as"),
        ("load_config", "[]", "a JSON object of objects, such as"),
        ("load_config", '{"a":' * 100_000, "a JSON object of objects, such as"),
        ("load_config", "absent.json", "or a file of one"),
    ],
)
def test_a_wrong_value_is_refused_with_what_there_is(key: str, value: str, takes: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_options("draft", "QNN", KNOWN, {key: value})
    start = f"The draft's option {key} of QNN is {value!r}; it takes "
    assert str(caught.value).startswith(start)
    assert takes in str(caught.value)


def test_a_file_of_tables_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"GPU": {"CACHE_DIR": "somewhere"}}), encoding="utf-8")
    found = read_options("target", "OpenVINO", KNOWN, {"load_config": str(path)})
    assert json.loads(found["load_config"]) == {"GPU": {"CACHE_DIR": "somewhere"}}


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("soc_modell", "soc_model"),
        ("SOC_MODEL", "soc_model"),
        ("htp_perf_mode", "htp_performance_mode"),
        ("enable_fp32", "enable_fp16"),
        ("validationmode", "ep.webgpuexecutionprovider.validationMode"),
        ("validation_mode", "ep.webgpuexecutionprovider.validationMode"),
        ("xyz", None),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key: str, nearest: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        read_options("target", "QNN", KNOWN, {key: "1"})
    hint = f"; the nearest is {nearest}. All are " if nearest else "; it has "
    assert str(caught.value).startswith(f"The target's provider QNN has no option {key!r}{hint}")
    assert all(option.key in str(caught.value) for option in KNOWN)


def test_a_provider_without_options_says_so() -> None:
    with pytest.raises(UsageError, match="CPU has no option 'a', nor any other: leave it out"):
        read_options("target", "CPU", (), {"a": "1"})


@pytest.mark.parametrize("key", PROVIDERS)
def test_the_tables_own_defaults_are_values_that_they_take(key: str) -> None:
    """What a provider is told unasked is spelled as a user would have to spell it."""
    provider = PROVIDERS[key]
    known = {option.key: option for option in provider.options}
    assert len(known) == len(provider.options)
    assert not set(known) & set(provider.elsewhere)
    for option in provider.options:
        assert option.default == "" or option.read(option.default) == option.default
        assert option.meaning
    for kind in provider.devices:
        told = {**provider.defaults(kind, 3), **provider.emulated}
        for name, value in told.items():
            assert known[name].read(value) == value
    assert provider.number_key is None or provider.number_key in known
