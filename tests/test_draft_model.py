"""Tests of runtime/draft_model.py: a draft's list of tokens, and how many it gives in a pass."""

import dataclasses
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import Sampling, open_session
from runtime.bundle_files import file_sha256
from runtime.draft_model import draft_role, load_drafter, load_head_tokens, tokens_per_pass
from runtime.drafter import Guess
from runtime.errors import BundleError, UsageError
from runtime.manifest import FileEntry, Manifest
from scripts.broken_bytes import break_bytes

HEAD = "draft/head-tokens.npy"


@pytest.fixture
def listed(tiny_bundle: Path, tmp_path: Path) -> Callable[..., Manifest]:
    """Makes the tiny bundle anew, its draft's tokens in a file and its role changed."""

    def make(tokens: NDArray[Any] | None = None, **role: Any) -> Manifest:
        folder = tmp_path / "bundle"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny_bundle, folder)
        manifest = Manifest.load(folder)
        files = dict(manifest.files)
        if tokens is not None:
            np.save(folder / HEAD, tokens)
            entry = FileEntry(file_sha256(folder / HEAD), (folder / HEAD).stat().st_size)
            files[HEAD], role["head_tokens"] = entry, HEAD
        draft = dataclasses.replace(manifest.role("draft"), **role)
        dataclasses.replace(manifest, files=files, draft=draft).save(folder)
        return Manifest.load(folder)

    return make


def size(manifest: Manifest) -> int:
    return manifest.target.geometry.vocabulary


def guessed(manifest: Manifest, provider: str = "CPU") -> list[Guess]:
    """What its draft guesses after a short text."""
    drafter = load_drafter(manifest, vocabulary=size(manifest), provider=provider, threads=1)
    text = np.array([1, 5, 9])
    sampling = Sampling(temperature=0.8, seed=3)
    return [guess for found in drafter.draft(text, 4, sampling) for guess in found]


@pytest.mark.parametrize("precision", ["int4", "fp32"])
def test_a_list_of_all_tokens_changes_nothing(
    listed: Callable[..., Manifest], precision: str
) -> None:
    def draft(tokens: NDArray[Any] | None) -> list[Guess]:
        manifest = listed(tokens)
        own = manifest.role("draft")
        graphs = {key: graph for key, graph in own.graphs.items() if graph.precision == precision}
        role = dataclasses.replace(own, graphs=graphs)
        provider = "CPU" if precision == "int4" else "OpenVINO"
        return guessed(dataclasses.replace(manifest, draft=role), provider)

    whole = draft(None)
    assert len(whole) == 4
    assert draft(np.arange(size(listed()), dtype=np.int32)) == whole


def test_a_list_of_another_length_than_the_logits_is_refused(
    listed: Callable[..., Manifest],
) -> None:
    manifest = listed(np.arange(7, dtype=np.int32))
    with pytest.raises(BundleError, match=rf"have {size(manifest)} columns where 7 are due"):
        guessed(manifest)


SOUND = np.array([0, 3, 4, 9], np.int32)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (SOUND.astype(np.int64), "is not a list of int32"),
        (SOUND.astype(">i4"), "is not a list of int32"),
        (SOUND.astype(np.float32), "is not a list of int32"),
        (SOUND[:, None], "is not a list of int32"),
        (SOUND[0], "is not a list of int32"),
        (SOUND[:0], "at least one"),
        (SOUND[::-1], "in ascending order"),
        (SOUND[[0, 1, 1]], "in ascending order"),
        (SOUND - 1, "tokens of the vocabulary of 10"),
        (SOUND + 1, "tokens of the vocabulary of 10"),
        (np.array([3, 2**31 - 1], np.int32), "tokens of the vocabulary of 10"),
        (np.array([[3]], object), "no array that numpy reads"),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path: Path, tokens: NDArray[Any], message: str) -> None:
    path = tmp_path / "head.npy"
    np.save(path, SOUND)
    assert load_head_tokens(path, 10).tolist() == [0, 3, 4, 9]
    np.save(path, tokens)
    with pytest.raises(BundleError, match=rf"head\.npy .*{message}.*; build the bundle again"):
        load_head_tokens(path, 10)


@pytest.mark.filterwarnings("ignore")  # of Python's, about what is read as a header
def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "head.npy"
    archive = io.BytesIO()
    np.savez(archive, SOUND)
    np.save(path, SOUND)
    sound = path.read_bytes()
    huge = sound.replace(b"(4,), }", b"(%d,)}" % 2**33).replace(b"}" + b" " * 8, b"}", 1)
    broken = [b"", sound[:40], sound[:-1], huge, archive.getvalue()]
    random = Random(5)
    header = [break_bytes(sound[:128], random) + sound[128:] for _ in range(500)]
    refused = 0
    for content in [*broken, *header]:
        path.unlink()
        path.write_bytes(content)
        try:
            load_head_tokens(path, 10)
        except BundleError:
            refused += 1
    assert refused > len(broken) + 400
    path.unlink()
    with pytest.raises(BundleError, match="no array that numpy reads"):
        load_head_tokens(path, 10)


def test_a_pass_gives_what_was_asked_for_and_no_more_than_it_can(
    listed: Callable[..., Manifest],
) -> None:
    manifest = listed(tokens_per_pass=5)
    assert [tokens_per_pass(manifest, asked) for asked in (None, 1, 3, 5)] == [5, 1, 3, 5]
    with pytest.raises(UsageError, match=r"is 6, and the draft .* gives 1 to 5 tokens in a pass"):
        tokens_per_pass(manifest, 6)
    with pytest.raises(UsageError, match="gives one token in a pass"):
        tokens_per_pass(listed(), 2)


def test_a_bundle_without_a_draft_lends_its_target(listed: Callable[..., Manifest]) -> None:
    manifest = dataclasses.replace(listed(), draft=None)
    assert draft_role(manifest) == "target"
    assert tokens_per_pass(manifest, None) == 1
    assert len(guessed(manifest)) == 4


def test_masks_that_a_graph_does_not_have_never_change_the_text(
    listed: Callable[..., Manifest], tmp_path: Path
) -> None:
    folder = listed(tokens_per_pass=3).folder
    settings: dict[str, Any] = {"cache_dir": tmp_path, "threads": 1}
    texts = []
    for asked in (None, 1):
        with open_session(folder, draft_tokens_per_pass=asked, **settings) as session:
            assert session.settings["draft_tokens_per_pass"] == (asked or 3)
            texts.append("".join(session.generate("the sea", Sampling(), max_new_tokens=12)))
    assert texts[0] == texts[1]
    with pytest.raises(UsageError, match="gives 1 to 3 tokens in a pass"):
        open_session(folder, draft_tokens_per_pass=4, **settings)
