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

from export import draft_file, gguf_file, reference
from export.__main__ import main as export_main
from export.model import Model
from runtime import Sampling, open_session
from runtime.bundle_files import file_sha256
from runtime.draft_model import draft_role, load_drafter, load_head_tokens, tokens_per_pass
from runtime.drafter import Guess, ModelDrafter, Start
from runtime.errors import BundleError, UsageError
from runtime.manifest import FileEntry, Manifest
from runtime.sampling import rank
from scripts.broken_bytes import break_bytes
from tests import tiny
from tests.drafts import write_draft

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


def guessed(manifest: Manifest) -> list[Guess]:
    """What its draft guesses after a short text."""
    drafter = load_drafter(manifest, vocabulary=size(manifest), threads=1)
    sampling = Sampling(temperature=0.8, seed=3)
    return drafted(drafter, [1, 5, 9], [Start(3), Start(2, (7,))], sampling)


def drafted(
    drafter: ModelDrafter, text: list[int], starts: list[Start], sampling: Sampling, count: int = 4
) -> list[Guess]:
    """What a pass guesses after each of the starts, one after another."""
    found = drafter.draft(np.array(text), starts, count, sampling)
    return [guess for rollout in found for guess in rollout()]


def with_graph(manifest: Manifest, key: str) -> Manifest:
    """The manifest with one graph of the draft alone."""
    own = manifest.role("draft")
    return dataclasses.replace(
        manifest, draft=dataclasses.replace(own, graphs={key: own.graphs[key]})
    )


@pytest.mark.parametrize("key", ["fused-int4", "portable-fp32"])
def test_a_list_of_all_tokens_changes_nothing(listed: Callable[..., Manifest], key: str) -> None:
    whole = guessed(with_graph(listed(), key))
    assert len(whole) == 2
    every = np.arange(size(listed()), dtype=np.int32)
    assert guessed(with_graph(listed(every), key)) == whole


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
    assert len(guessed(manifest)) == 2


def test_masks_that_a_graph_does_not_have_never_change_the_text(
    listed: Callable[..., Manifest], tmp_path: Path
) -> None:
    folder = listed(tokens_per_pass=3).folder
    settings: dict[str, Any] = {"cache_dir": tmp_path, "threads": 1, "strategy": "mirror"}
    texts = []
    for asked in (None, 1):
        with open_session(folder, draft_tokens_per_pass=asked, **settings) as session:
            assert session.settings["draft_tokens_per_pass"] == (asked or 3)
            assert session.settings["num_draft_tokens"] == (4 if asked else 2)
            texts.append("".join(session.generate("the sea", Sampling(), max_new_tokens=12)))
    assert texts[0] == texts[1]
    with pytest.raises(UsageError, match="gives 1 to 3 tokens in a pass"):
        open_session(folder, draft_tokens_per_pass=4, **settings)


# A trained draft: a layer of the tiny model, 40 tokens in its head, three tokens in a pass.


@pytest.fixture(scope="module")
def trained(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draft") / "draft.safetensors"
    return write_draft(path, gguf_file.read(tiny_gguf).model)


@pytest.fixture(scope="module")
def draft(tiny_gguf: Path, trained: Path) -> Model:
    target = gguf_file.read(tiny_gguf).model
    return draft_file.load(trained, target, target_sha256=file_sha256(tiny_gguf))


@pytest.fixture(scope="module")
def pair(tiny_gguf: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("pair")
    graphs = "target/fused-fp32,draft/fused-fp32,draft/portable-fp32"
    command = ["gguf", str(tiny_gguf), "--out", str(folder / "pair"), "--graphs", graphs]
    assert export_main([*command, "--draft", str(trained)]) == 0
    return Manifest.load(folder / "pair")


def by_numpy(
    model: Model, text: list[int], count: int, sampling: Sampling, per_pass: int
) -> list[Guess]:
    """What a draft guesses in a pass, by its definition and the forward pass in numpy."""
    assert model.head_tokens is not None
    context, guesses = list(text), []  # type: list[int], list[Guess]
    masks = model.mask_tokens[: max(0, min(per_pass, count) - 1)]
    for row in reference.logits(model, [*context, *masks])[len(context) - 1 :][:count]:
        full = np.full(model.geometry.vocabulary, -np.inf, np.float32)
        full[model.head_tokens] = row
        token, *others = rank(full, context, sampling, 9)
        guesses.append(Guess(token, tuple(others)))
        context.append(token)
    return guesses


@pytest.mark.parametrize("key", ["fused-fp32", "portable-fp32"])
@pytest.mark.parametrize("length", [1, 4, 17, 70, 130, tiny.CONTEXT - 2, tiny.CONTEXT])
def test_the_graphs_give_the_guesses_of_the_forward_pass_in_numpy(
    pair: Manifest, draft: Model, key: str, length: int
) -> None:
    text = np.random.default_rng(length).integers(0, size(pair), length).tolist()
    sampling = Sampling(temperature=0.8, repetition_penalty=1.2, seed=length)
    for per_pass in (1, 2, 3):
        drafter = load_drafter(
            with_graph(pair, key), vocabulary=size(pair), per_pass=per_pass, threads=1
        )
        for count in (1, 3, 7):
            found = drafted(drafter, text, [Start(length)], sampling, count)
            room = min(count, tiny.CONTEXT - length + 1)
            assert found == by_numpy(draft, text, room, sampling, per_pass)


@pytest.mark.parametrize("key", ["fused-fp32", "portable-fp32"])
def test_the_graphs_give_the_guesses_after_every_start_of_a_pass(
    pair: Manifest, draft: Model, key: str
) -> None:
    text = np.random.default_rng(3).integers(0, size(pair), 40).tolist()
    sampling = Sampling(temperature=0.8, repetition_penalty=1.2, seed=3)
    starts = [Start(40, (5,)), Start(38, (7, 2)), Start(39), Start(1, (3,)), Start(40)]
    for per_pass in (1, 3):
        drafter = load_drafter(
            with_graph(pair, key), vocabulary=size(pair), per_pass=per_pass, threads=1
        )
        assert drafted(drafter, text, starts, sampling) == [
            guess
            for start in starts
            for guess in by_numpy(
                draft, [*text[: start.place], *start.tokens], 4, sampling, per_pass
            )
        ]


@pytest.mark.parametrize("strategy", ["speculative", "mirror"])
def test_one_token_a_pass_or_several_write_one_text(
    pair: Manifest, tmp_path: Path, strategy: str
) -> None:
    settings: dict[str, Any] = {"cache_dir": tmp_path, "precision": "fp32", "threads": 1}
    found, passes = [], []
    for asked in (None, 1):
        with open_session(
            pair.folder, strategy=strategy, num_draft_tokens=3, draft_tokens_per_pass=asked,
            **settings,
        ) as session:  # fmt: skip
            answer = session.generate("the sea", Sampling(), max_new_tokens=30)
            found.append("".join(answer))
            metrics = answer.metrics.to_dict()
        assert metrics["draft_error"] is None
        assert session.settings["draft_tokens_per_pass"] == (asked or 3)
        passes.append(metrics["draft_passes"] / metrics["rounds"])
    assert found[0] == found[1]
    if strategy == "speculative":
        assert passes[0] < 2 < passes[1]
