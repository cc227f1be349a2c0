"""Files with names that the locale cannot spell, for onnxruntime and for what it tells of them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from runtime.providers.native import native, python_name
from tests.installed import needs

ROOT = Path(__file__).resolve().parent.parent
CODE = """
import pathlib, sys
from runtime.providers import Place, load, register, version
from runtime.providers.smoke import FILE
folder = pathlib.Path(sys.argv[1])
library = next(folder.glob("ep/lib*_providers_*"))
for _ in range(2):  # compiled, then kept
    place = Place("OpenVINO", library=library).keeping(folder / "kept", print)
    load(FILE, threads=1, name=place)
register("OpenVINO", library)
print(version("OpenVINO"))
"""


def test_a_name_is_the_same_both_ways() -> None:
    assert native(Path("a/é")) == "a/é".replace("/", os.sep)
    assert python_name(native("é")) == "é"
    with pytest.raises(UnicodeError):
        native("\ud800")


@pytest.mark.skipif(sys.platform == "win32", reason="names there are no bytes")
@needs("OpenVINO")
def test_names_that_the_locale_cannot_spell(tmp_path: Path) -> None:
    """Of a provider's library, and of the folder where what it compiles is kept."""
    found = find_spec("onnxruntime_ep_openvino")
    assert found is not None
    assert found.origin is not None
    folder = tmp_path / "ä ü"
    folder.mkdir()
    (folder / "ep").symlink_to(Path(found.origin).parent)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", CODE, os.fsencode(folder)],
        check=False,
        capture_output=True,
        env={**os.environ, **plain},
        timeout=60,
    )
    lines = ended.stdout.decode().splitlines()
    assert ended.returncode == 0, ended.stderr.decode()
    assert [line.split()[0] for line in lines[:2]] == ["Compiling", "Compiled"]
    assert len(lines) == 3, lines
