"""The table of providers, and that docs/providers.md says the same."""

import re
from pathlib import Path
from typing import get_args

import pytest

from runtime.doctor_flags import parse
from runtime.manifest import Flavour
from runtime.providers import BEST, KINDS, PROVIDERS

ROOT = Path(__file__).resolve().parent.parent
PAGE, TRAPS = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("providers.md", "traps.md")
)


def test_the_order_by_kind_names_providers_that_have_the_kind() -> None:
    assert set(BEST) == set(KINDS)
    for kind, keys in BEST.items():
        assert len(set(keys)) == len(keys)
        assert all(kind in PROVIDERS[key].devices for key in keys)
        assert f"| {kind} | {', '.join(keys)} |" in PAGE
    for key, provider in PROVIDERS.items():
        for kind in set(provider.devices) - {"CPU"}:
            assert key in BEST[kind], "a word could never mean it"


def section_of(title: str) -> list[str]:
    """The lines of a section of the page."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0].splitlines()


@pytest.mark.parametrize("key", PROVIDERS)
def test_every_provider_has_been_run_or_has_a_command_that_runs_it(key: str) -> None:
    rows = [line for line in section_of("What was run") if line.startswith(f"| {key} | ")]
    assert rows, f"{key} has no row"
    for row in rows:
        assert row.count("|") == 9, "as mirror-doctor --report prints them"
        named = re.search("`(mirror-doctor [^`]*)`", row)
        if named is None:
            assert row.split(" | ")[2] in get_args(Flavour)
            continue
        options = parse(named[1].split()[1:])
        assert options.report
        asked = options.asked["target"]
        assert asked["execution_provider"] == key
        assert asked["device"] in PROVIDERS[key].devices


@pytest.mark.parametrize("key", PROVIDERS)
def test_the_page_lists_every_provider_and_option(key: str) -> None:
    provider = PROVIDERS[key]
    table = section_of("The table")
    (row,) = (line for line in table if line.startswith(f"| {key} | ") and "fp32" in line)
    for name in (provider.distribution, provider.built_in):
        assert name is None or name.removesuffix(", for macOS") in row
    assert ("Windows ML" in row) == provider.windows_ml
    assert row.endswith(f" | {provider.systems_named.replace(' and ', ', ')} |")
    for takes in provider.devices.values():
        assert ", ".join(takes.precisions) in row.replace(" (of the [npu](npu.md) graph)", "")
    section = PAGE.partition(f"\n### {key}\n")[2].partition("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{option.key}` | {'JSON, or a file of it' if option.tables else option.takes} | "
        f"{option.default or '–'} | {option.meaning} |"
        for option in provider.options
    ]


def test_the_page_has_the_tables_traps() -> None:
    section = PAGE.partition("\n## Traps\n")[2].partition("\n## ")[0]
    for key, provider in PROVIDERS.items():
        assert (f"| {key} | {' '.join(provider.traps)} |" in section) == bool(provider.traps)


def test_every_ep_name_is_its_own() -> None:
    names = [provider.ep_name for provider in PROVIDERS.values()]
    assert len(set(names)) == len(names)
    assert all(name.endswith("ExecutionProvider") for name in names)


def test_every_trap_on_its_page_names_tests_that_there_are() -> None:
    rows = [line for line in TRAPS.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        tests = re.findall(r"`(\w+\.py)::(\w+)`", row)
        assert tests, row
        for file, name in tests:
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert f"\ndef {name}(" in text, name
