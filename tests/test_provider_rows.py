"""How many rows a call may have: few where nobody has seen more computed right."""

import pytest

from runtime.providers import Place, most_rows, widened
from tests.fake_devices import FakeHardware, Machine


@pytest.mark.parametrize("key", ["CPU", "QNN", "OpenVINO"])
def test_most_providers_take_any_number(key: str) -> None:
    assert most_rows(key) is None
    assert widened(Place(key)) is None


@pytest.mark.parametrize(("kind", "real"), [("CPU", False), ("GPU", True)])
def test_only_a_real_device_may_take_more(
    *, kind: str, real: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, libraries={"WebGPU": [FakeHardware(kind)]})
    place = Place("WebGPU", "GPU")
    assert most_rows(place) == 31
    wide = widened(place)
    assert (wide is not None) is real
    if wide is not None:
        assert most_rows(wide) is None
        assert widened(wide) is None
        assert wide.key != place.key
        assert Place.from_data(wide.as_data()) == wide
