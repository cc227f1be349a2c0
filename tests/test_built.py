"""A bundle that is there already is told from every other."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from export.built import is_built
from export.plan import Plan
from export.trained import Trained
from runtime.bundle_files import file_sha256
from runtime.errors import UsageError
from runtime.graph_names import DEFAULT_GRAPHS
from runtime.manifest import Manifest, Source


@pytest.fixture
def plan(tiny_gguf: Path) -> Plan:
    return Plan("tiny", Source("gguf", "tiny.gguf", file_sha256(tiny_gguf), "unknown"))


def test_a_complete_bundle_is_recognised(tiny_bundle: Path, plan: Plan, tmp_path: Path) -> None:
    assert is_built(plan, tiny_bundle)
    assert not is_built(plan, tmp_path / "absent")
    assert not is_built(plan, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "another bundle, tiny"),
        ({"graphs": ("target/fused-fp32",)}, "another bundle"),
        ({"graphs": (*DEFAULT_GRAPHS, "target/fused-fp16")}, "another bundle"),
        ({"source": Source("gguf", "tiny.gguf", "0" * 64, "unknown")}, "another bundle"),
        ({"early_exit_layer": 1}, "another bundle"),
    ],
)
def test_another_bundle_is_in_the_way(
    tiny_bundle: Path, plan: Plan, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        is_built(dataclasses.replace(plan, **changes), tiny_bundle)


def test_a_damaged_bundle_is_in_the_way(tiny_bundle: Path, plan: Plan, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_bundle, copy)
    data = copy / "target" / "int8" / "weights.data"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(UsageError, match=r"in the way.*damaged"):
        is_built(plan, copy)


@pytest.mark.parametrize("what", ["draft", "lenses"])
def test_what_was_trained_is_compared_by_its_hash(
    what: str, tiny_bundle: Path, plan: Plan, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))
    source = Source("safetensors", f"some {what}", "1" * 64, "MIT")
    manifest = Manifest.load(copy)
    changes: dict[str, Any] = {f"{what}_source": source}
    dataclasses.replace(manifest, **changes).save(copy)

    def planned(sha256: str) -> Plan:
        file = Trained(tmp_path / "a name", dataclasses.replace(source, sha256=sha256))
        made: dict[str, Any] = {what: file}
        return dataclasses.replace(plan, **made)

    assert is_built(planned("1" * 64), copy)
    for other in (planned("2" * 64), plan):
        with pytest.raises(UsageError, match=rf"another bundle.* and some {what} \(11111111\)"):
            is_built(other, copy)
    with pytest.raises(UsageError, match="another bundle"):
        is_built(planned("1" * 64), tiny_bundle)
