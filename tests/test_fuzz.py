"""Tests of scripts/fuzz.py: what it plants in files is sound, and what goes wrong is found."""

import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from runtime.errors import MirrorError
from runtime.manifest import FILE_NAME, Manifest
from scripts.broken_bytes import break_bytes, little_endian
from scripts.broken_gguf import break_gguf, cut_gguf, join_gguf
from scripts.broken_manifest import break_manifest
from scripts.fuzz import hunt, judged
from scripts.fuzz_cases import Cases, GgufCases, ManifestCases
from tests import planted

CASES = 60


def test_every_planted_mistake_is_found_and_the_hunt_goes_on() -> None:
    numbers = [planted.CRASHED, planted.ACCEPTED, planted.RAISED, planted.ENDLESS]
    numbers += [planted.REFUSED, planted.GREEDY, planted.CRASHED, planted.ACCEPTED]
    cases = [("planted", number) for number in numbers]
    tally = hunt(cases, planted.work, jobs=2, time_limit_s=3)
    found = sorted((finding.number, finding.ending) for finding in tally.findings)
    greedy = [(planted.GREEDY, "raised MemoryError")] if sys.platform == "linux" else []
    assert found == sorted(
        [
            (planted.RAISED, "raised IndexError"),
            *greedy,
            (planted.CRASHED, "crashed"),
            (planted.CRASHED, "crashed"),
            (planted.ENDLESS, "no end"),
        ]
    )
    assert sum(tally.endings.values()) == len(cases)
    raised = next(each for each in tally.findings if each.number == planted.RAISED)
    assert "a planted mistake" in raised.details
    assert "in act" in raised.details


def test_what_ends_well() -> None:
    assert judged(lambda: 1)[0] == "accepted"
    assert judged(partial(planted.act, planted.REFUSED))[0] == "refused"
    assert judged(lambda: sys.exit(1))[0] == "raised SystemExit"


def test_bytes_are_changed_in_one_place() -> None:
    content = bytes(range(100))
    broken = [break_bytes(content, Random(number)) for number in range(200)]
    assert len(set(broken)) > 150
    for each in broken:
        start = next((i for i, (a, b) in enumerate(zip(content, each, strict=False)) if a != b), 0)
        assert each[:start] == content[:start]
    assert len(break_bytes(b"", Random(0))) == 1
    assert little_endian(-1, 4) == b"\xff" * 4
    assert little_endian(2**64 + 7, 8) == b"\7" + bytes(7)


def test_a_gguf_file_is_cut_up_and_joined(tiny_gguf: Path) -> None:
    content = tiny_gguf.read_bytes()
    parts = cut_gguf(content)
    assert join_gguf(parts.pairs, parts.tensors, parts.data) == content
    assert len(parts.pairs) > 20
    assert any(b"token_embd.weight" in tensor for tensor in parts.tensors)


@pytest.fixture
def gguf_cases(tmp_path: Path) -> Cases:
    return GgufCases(tmp_path, tmp_path)


@pytest.fixture
def manifest_cases(tiny_bundle: Path, tmp_path: Path) -> Cases:
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    (tmp_path / "own").mkdir()
    return ManifestCases(tmp_path, tmp_path / "own")


@pytest.mark.parametrize("kind", ["gguf_cases", "manifest_cases"])
def test_cases_come_from_their_numbers_and_end_well(
    kind: str, request: pytest.FixtureRequest
) -> None:
    cases: Cases = request.getfixturevalue(kind)
    endings = []
    for number in range(CASES):
        content = cases.make(number)
        assert content == cases.make(number)
        endings.append(judged(partial(cases.run, number, content)))
    assert {ending for ending, _ in endings} == {"accepted", "refused"}, endings


@pytest.mark.parametrize("way", ["gguf", "manifest"])
def test_most_cases_differ_from_what_is_sound(way: str, tiny_gguf: Path, tiny_bundle: Path) -> None:
    sound: bytes
    broken: Callable[[Random], bytes]
    if way == "gguf":
        sound = tiny_gguf.read_bytes()
        parts = cut_gguf(sound)
        broken = partial(break_gguf, parts)
    else:
        manifest = json.loads((tiny_bundle / FILE_NAME).read_bytes())
        sound = json.dumps(manifest, indent=2).encode()
        broken = partial(break_manifest, manifest)
    found = {broken(Random(number)) for number in range(CASES)}
    assert len(found - {sound}) > CASES * 0.8


def test_a_manifest_that_was_not_broken_is_accepted(
    manifest_cases: Cases, tiny_bundle: Path
) -> None:
    manifest_cases.run(0, (tiny_bundle / FILE_NAME).read_bytes())
    with pytest.raises(MirrorError):
        manifest_cases.run(0, b"{}")
    assert Manifest.load(tiny_bundle).name == "tiny"
