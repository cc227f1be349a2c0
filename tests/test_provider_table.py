"""The table of providers, and that docs/providers.md says the same."""

from pathlib import Path

import pytest

from runtime.providers import BEST, KINDS, PROVIDERS

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "providers.md").read_text(
    encoding="utf-8"
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


@pytest.mark.parametrize("key", PROVIDERS)
def test_the_page_lists_every_provider_and_option(key: str) -> None:
    provider = PROVIDERS[key]
    (row,) = (
        line for line in PAGE.splitlines() if line.startswith(f"| {key} | ") and "fp32" in line
    )
    for name in (provider.distribution, provider.built_in):
        assert name is None or name.removesuffix(", for macOS") in row
    assert ("Windows ML" in row) == provider.windows_ml
    for takes in provider.devices.values():
        assert ", ".join(takes.precisions) in row
    section = PAGE.partition(f"\n### {key}\n")[2].partition("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{option.key}` | {'JSON, or a file of it' if option.tables else option.takes} | "
        f"{option.default or '–'} | {option.meaning} |"
        for option in provider.options
    ]


def test_every_ep_name_is_its_own() -> None:
    names = [provider.ep_name for provider in PROVIDERS.values()]
    assert len(set(names)) == len(names)
    assert all(name.endswith("ExecutionProvider") for name in names)
