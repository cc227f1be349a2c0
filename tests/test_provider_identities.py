"""What a kept answer about a place hangs on."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnxruntime as ort
import pytest

from runtime.errors import ProviderError
from runtime.providers import Place, identities, identity
from tests.fake_devices import Machine, hardware

NPU = Place("QNN", "NPU")
Change = Callable[[pytest.MonkeyPatch, Machine, Path], None]


@pytest.fixture(autouse=True)
def one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, "driver 1")


def driven(patch: pytest.MonkeyPatch, *lines: str) -> None:
    patch.setattr(identities, "drivers", lambda: list(lines))


def other_device(_patch: pytest.MonkeyPatch, here: Machine, _file: Path) -> None:
    here.listed[0] = replace(here.listed[0], device=hardware("NPU", 1, driver="7"))


def other_words(_patch: pytest.MonkeyPatch, here: Machine, _file: Path) -> None:
    here.listed[0] = replace(here.listed[0], device=hardware("NPU", driver="8"))


def other_version(_patch: pytest.MonkeyPatch, here: Machine, _file: Path) -> None:
    here.listed[0].ep_metadata["version"] = "1.3"


def other_driver(patch: pytest.MonkeyPatch, _here: Machine, _file: Path) -> None:
    driven(patch, "driver 2")


def newer_file(_patch: pytest.MonkeyPatch, _here: Machine, file: Path) -> None:
    os.utime(file, ns=(1, 1))


def longer_file(_patch: pytest.MonkeyPatch, _here: Machine, file: Path) -> None:
    status = file.stat()
    file.write_bytes(b"longer")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("named", ["library", "option"])
@pytest.mark.parametrize(
    "change", [other_device, other_words, other_version, other_driver, newer_file, longer_file]
)
def test_it_is_another_where_anything_is(
    change: Change, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(b"long")
    options = (("backend_path", str(file)),) if named == "option" else ()
    place = Place("QNN", "NPU", options=options, library=None if options else file)
    here = Machine(monkeypatch, libraries={"QNN": [hardware("NPU", driver="7")]})
    before = identity(place)
    assert identity(place) == before
    change(monkeypatch, here, file)
    assert identity(place) != before


def test_what_windows_names_anew_at_every_boot_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Machine(monkeypatch, libraries={"QNN": [hardware("NPU", LUID="1")]})
    before = identity(NPU)
    here.listed[0] = replace(here.listed[0], device=hardware("NPU", LUID="2"))
    assert identity(NPU) == before


def test_a_place_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, libraries={"QNN": [hardware("NPU")]})
    with pytest.raises(ProviderError, match="finds no such device"):
        identity(Place("QNN", "NPU", 1))


def test_the_processor_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(Place("CPU"))
    driven(monkeypatch, "driver 2")
    assert identity(Place("CPU")) == before


def test_a_provider_that_lists_no_devices_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, libraries={}, built_in={"DirectML": []})
    before = identity(Place("DirectML", "GPU"))
    monkeypatch.setattr(ort, "__version__", "1.99")
    assert identity(Place("DirectML", "GPU")) != before
