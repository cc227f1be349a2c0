"""Tests that need a provider: where it is missing they show as skipped, and never vanish."""

import os
from importlib.util import find_spec

import pytest

from runtime.providers import PROVIDERS

SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"
needs_software_gpu = pytest.mark.skipif(SOFTWARE not in os.environ, reason=f"{SOFTWARE} is not set")


def needs(key: str) -> pytest.MarkDecorator:
    """A skip where the provider of this key is not installed."""
    missing = find_spec(str(PROVIDERS[key].package)) is None
    return pytest.mark.skipif(missing, reason=f"{PROVIDERS[key].distribution} is not installed")


def each(*keys: str) -> pytest.MarkDecorator:
    """A test once for each provider, as `key`; skipped for those that are not installed."""
    return pytest.mark.parametrize("key", [pytest.param(key, marks=needs(key)) for key in keys])
