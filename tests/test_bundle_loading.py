"""A session opens on a bundle whose files are whole and make sense, or says which does not."""

import json
import re
import shutil
from pathlib import Path

import pytest

from runtime import Sampling, open_session
from runtime.bundle_files import file_sha256
from runtime.errors import BundleError, MirrorError


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            '{"temperature": 0.5, "top_k": 9, "top_p": null}',
            Sampling(temperature=0.5, top_k=9),
        ),
        ('{"temperature": "warm"}', None),
        ('{"temperature": -1}', None),
        ('{"temperature": NaN}', None),
        ('{"temperature": 1e999}', None),
        ('{"temperature": 1%s}' % ("0" * 400), None),
        ('{"top_k": [1]}', None),
        ('{"temperature": 1, "temperature": 2}', None),
        ("[]", None),
        ("3", None),
        ("", None),
        ("[" * 10_000, None),
    ],
)
def test_generation_settings_come_from_the_bundle(
    tiny_bundle: Path, tmp_path: Path, settings: str, expected: Sampling | None
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_bundle, folder)
    put(folder, "generation_config.json", settings)
    if expected is None:
        with pytest.raises(BundleError, match="generation_config"):
            open_session(folder, cache_dir=tmp_path, draft="none")
    else:
        with open_session(folder, cache_dir=tmp_path, draft="none") as session:
            assert session.default_sampling == expected


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "[" * 10_000])
def test_a_broken_tokenizer_is_named(
    tiny_bundle: Path, tmp_path: Path, name: str, content: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_bundle, folder)
    put(folder, name, content)
    with pytest.raises(MirrorError, match=re.escape(str(folder))):
        open_session(folder, cache_dir=tmp_path, draft="none")


def test_a_swapped_file_of_equal_size_is_noticed(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_bundle, folder)
    open_session(folder, cache_dir=tmp_path, draft="none").close()
    (file,) = folder.glob("target/int8/weights.data")
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(BundleError, match=r"weights\.data is damaged"):
        open_session(folder, cache_dir=tmp_path, draft="none")


def put(folder: Path, name: str, content: str) -> None:
    """Give a bundle another file, and the manifest its hash."""
    file = folder / name
    file.write_text(content, encoding="utf-8")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"][name] = {"sha256": file_sha256(file), "bytes": file.stat().st_size}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
