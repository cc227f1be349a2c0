"""A distillation from beginning to end, on the tiny bundle: stages stay, and the end works."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export import draft_file, lens_file
from export.__main__ import main
from export.distill import answers, corpus, kept, project, training
from export.distill.answers import Wanted, Writer
from export.distill.project import Project
from export.distill.settings import Settings
from export.distill.weights import read_target
from export.trained import read_tensors
from runtime import Sampling, open_session, providers
from runtime.errors import BuildError, BundleError, UsageError
from runtime.manifest import Manifest

pytestmark = pytest.mark.usefixtures("one_thread")
FLAGS = {
    "prompts": 6,
    "begun": 2,
    "max-new-tokens": 12,
    "context": 200,
    "depth": 1,
    "head-width": 60,
    "tokens-per-pass": 3,
    "lenses": 1,
    "tokens": 3000,
    "batch-tokens": 400,
    "masks-from": 0.2,
}
STAYS = {
    "answers": ["corpus/answers-0000.npz", "corpus/answers-0001.npz", "held-out.npz"],
    "states": ["states/answers-0000.states.pt", "states/answers-0001.states.pt"],
    "ends": ["draft.safetensors", "lenses.safetensors", "evaluation.json", "lenses.json"],
    "more": ["settings.json", "layers.json", "checkpoint.pt", "log.txt"],
}


def settings(bundle: Path, **changes: Any) -> Settings:
    given = {name.replace("-", "_"): value for name, value in FLAGS.items()}
    return Settings(str(bundle), **(given | {"lenses": (1,)} | changes))


@pytest.fixture(scope="module")
def few_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of prompt sets with three held-out prompts."""
    folder = tmp_path_factory.mktemp("prompts")
    lines = [
        {"question_id": number, "category": kind, "turns": turns}
        for number, (kind, turns) in enumerate(
            [("qa", ["why the an"]), ("qa", ["or in"]), ("multi_turn", ["the", "and on"])]
        )
    ]
    (folder / "qa.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    forty = {"question_id": 9, "category": "forty", "turns": ["only for tests"]}
    (folder / "forty.jsonl").write_text(json.dumps(forty), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def done(tiny_bundle: Path, few_prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a distillation that the command line has done, uninterrupted."""
    out = tmp_path_factory.mktemp("distilled") / "draft"
    flags = [f"--{name}={value}" for name, value in FLAGS.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(project, "prompt_folder", lambda: few_prompts)
        patch.setattr(providers, "usable_cores", lambda: [0])
        command = ["distill", "--target", str(tiny_bundle), "--out", str(out)]
        assert main([*command, "--workers=1", "--device=cpu", *flags]) == 0
    return out


@pytest.fixture
def begin(
    tiny_bundle: Path, few_prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Project]:
    """A project in `out` whose target writes in this process."""

    def write(bundle: Path, wanted: Sequence[Wanted], **how: Any) -> None:
        for group in wanted:
            if not group.path.exists():
                made = Writer(bundle, how["precision"], how["context"], how["max_new_tokens"], 1)
                how["progress"](f"{made.write(group)[0].name}")

    monkeypatch.setattr(project, "prompt_folder", lambda: few_prompts)
    monkeypatch.setattr(answers, "write", write)

    def begin(
        out: Path = tmp_path / "out", *, say: Callable[[str], None] = lambda _: None, **how: Any
    ) -> Project:
        places = {name: how.pop(name, None) for name in ("corpus", "initial")}
        changed = settings(tiny_bundle, **how)
        return Project(tiny_bundle, out, changed, **places, device="cpu", workers=1, say=say)

    return begin


def same(one: Path, other: Path) -> bool:
    """Whether two files of tensors hold the same; such a file's own order is a matter of chance."""
    (tensors, metadata), (others, their_metadata) = map(read_tensors, (one, other))
    return (
        metadata == their_metadata
        and tensors.keys() == others.keys()
        and all(np.array_equal(tensor, others[name]) for name, tensor in tensors.items())
    )


def test_every_stage_stays(done: Path) -> None:
    files = {path.relative_to(done).as_posix() for path in done.rglob("*") if path.is_file()}
    assert files == {name for names in STAYS.values() for name in names}
    held_out = list(corpus.load([done / "held-out.npz"]))
    assert {(each.template, each.temperature) for each in held_out} == {
        ("qa", 0.0),
        ("multi_turn", 0.0),
    }
    assert len(list(corpus.load(sorted((done / "corpus").iterdir())))) in (7, 8)
    found = json.loads((done / "evaluation.json").read_text(encoding="utf-8"))
    assert list(found) == ["multi_turn", "qa", "all"]
    assert [len(shares) for shares in found["all"].values()] == [3, 3, 3]
    read = json.loads((done / "lenses.json").read_text(encoding="utf-8"))
    assert [len(read[name]["1"]) for name in ("tuned", "plain")] == [5, 5]
    log = (done / "log.txt").read_text(encoding="utf-8")
    assert "6 prompts, and 2 conversations for it to begin" in log
    assert "all: agreement " in log


def test_the_draft_and_the_lenses_are_of_this_target(done: Path, tiny_bundle: Path) -> None:
    target, sha256 = read_target(tiny_bundle), Manifest.load(tiny_bundle).source.sha256
    draft = draft_file.load(done / "draft.safetensors", target, target_sha256=sha256)
    assert (draft.geometry.layers, draft.tokens_per_pass, draft.logits) == (1, 3, 60)
    layers = json.loads((done / "layers.json").read_text(encoding="utf-8"))
    assert draft_file.began_as(done / "draft.safetensors") == layers
    began = target.weights[f"layers.{layers[0]}.q"]
    assert 0 < np.abs(draft.weights["layers.0.q"] - began).max() < 0.2
    lenses = lens_file.load(done / "lenses.safetensors", target.geometry, target_sha256=sha256)
    assert list(lenses) == [1]
    assert 0 < np.abs(lenses[1] - np.eye(64)).max() < 0.5


def test_what_is_interrupted_again_and_again_ends_the_same(
    begin: Callable[..., Project], done: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(training, "PROGRESS_S", -1.0)
    for most in count(1):
        told: list[str] = []

        def say(line: str, told: list[str] = told, most: int = most) -> None:
            told.append(line)
            if len(told) == most:
                raise KeyboardInterrupt

        try:
            begin(say=say).run()
        except KeyboardInterrupt:
            continue
        break
    assert most > 8
    for name in ("draft.safetensors", "lenses.safetensors"):
        assert same(tmp_path / "out" / name, done / name)
    for name in ("evaluation.json", "layers.json", "held-out.npz", "corpus/answers-0001.npz"):
        assert (tmp_path / "out" / name).read_bytes() == (done / name).read_bytes(), name


def test_answers_that_are_there_are_trained_on(
    begin: Callable[..., Project], done: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    begin(corpus=done / "corpus", say=said.append).run()
    assert not any("conversations for it to begin" in line for line in said)
    assert not (tmp_path / "out" / "corpus").exists()
    assert same(tmp_path / "out" / "draft.safetensors", done / "draft.safetensors")


def test_the_same_folder_goes_on_with_the_same_settings_only(
    begin: Callable[..., Project], done: Path, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(done, out)
    for change in ({"depth": 2}, {"layers": (0,)}, {"seed": 1}, {"rate": 0.1}, {"target": "x"}):
        name = next(iter(change))
        with pytest.raises(UsageError, match=f"holds a distillation with {name} .* another folder"):
            begin(out, **change) if name != "target" else _elsewhere(begin, out)
    said: list[str] = []
    begin(out, say=said.append, tokens=3400).run()
    assert "going on after 3" in " ".join(said)
    assert not any("states at" in line or line.startswith("without layer") for line in said)
    assert not same(out / "draft.safetensors", done / "draft.safetensors")
    (out / "settings.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"settings\.json cannot be read"):
        begin(out)


def _elsewhere(begin: Callable[..., Project], out: Path) -> None:
    path = out / "settings.json"
    kept = path.read_text(encoding="utf-8")
    data = json.loads(kept)
    path.write_text(json.dumps(data | {"target": "x"}), encoding="utf-8")
    try:
        begin(out)
    finally:
        path.write_text(kept, encoding="utf-8")


@pytest.mark.parametrize(
    "layers", ["", "null", "3", '["x"]', "[5]", "[0.5]", "[]", "[0, 1]", "[1, 0]", "{}"]
)
def test_layers_that_are_not_of_this_distillation_are_told(
    layers: str, begin: Callable[..., Project], done: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    begin(out, corpus=done / "corpus", layers=(0,), depth=None)
    (out / "states").mkdir()
    for name in ("states/answers-0000.states.pt", "states/answers-0001.states.pt", "held-out.npz"):
        shutil.copy(done / name, out / name)
    (out / "layers.json").write_text(layers, encoding="utf-8")
    with pytest.raises(BuildError, match=r"layers\.json is not of this distillation. Remove it"):
        begin(out, corpus=done / "corpus", layers=(0,), depth=None).run()


def test_files_of_another_target_or_version_are_told(
    begin: Callable[..., Project], done: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done, out)
    corpus.save(out / "held-out.npz", [corpus.Record(np.array([1, 900, 2]), 1, 0.0, "qa")])
    with pytest.raises(UsageError, match=r"held-out\.npz are of another target: .* token 900"):
        begin(out).run()
    shutil.copy(done / "held-out.npz", out)
    kept.save(out / "states" / "answers-0000.states.pt", {"states": None})
    with pytest.raises(BuildError, match=r"answers-0000\.states\.pt holds no states. Remove it"):
        begin(out).run()
    for content in ("{}", '{"target": "x"}'):
        (out / "settings.json").write_text(content, encoding="utf-8")
        with pytest.raises(UsageError, match=r"settings\.json is of another version"):
            begin(out)


def test_a_folder_is_made_only_for_what_can_work(
    begin: Callable[..., Project], tmp_path: Path, tiny_bundle: Path
) -> None:
    for changes in ({"depth": 3}, {"layers": (2,)}, {"lenses": (2,)}, {"head_width": 272}):
        with pytest.raises(UsageError, match="is the most: the target has 2 layers and 271 tokens"):
            begin(**changes)
    with pytest.raises(BundleError):
        Project(
            tmp_path,
            tmp_path / "out",
            settings(tiny_bundle),
            corpus=None,
            initial=None,
            device="cpu",
            workers=1,
            say=print,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_answers_is_told(begin: Callable[..., Project], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There are no answers in .*empty"):
        begin(corpus=tmp_path / "empty").run()
    assert not (tmp_path / "empty").exists()


def test_states_of_another_corpus_are_not_trained_on(
    begin: Callable[..., Project], done: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "copy", tmp_path / "other"
    shutil.copytree(done, out)
    shutil.copytree(done / "corpus", other)
    path = other / "answers-0000.npz"
    records = list(corpus.load([path]))
    longer = replace(records[0], tokens=np.append(records[0].tokens, 5))
    corpus.save(path, [longer, *records[1:]])
    with pytest.raises(BuildError, match="remove the folder states"):
        begin(out, corpus=other).run()


def test_a_draft_begins_as_an_earlier_one(begin: Callable[..., Project], done: Path) -> None:
    said: list[str] = []
    how = {"corpus": done / "corpus", "tokens": 0, "depth": None}
    path = begin(**how, initial=done / "draft.safetensors", say=said.append).run()
    with pytest.raises(
        UsageError, match=r"holds a distillation with from '[0-9a-f]{64}', not None"
    ):
        begin(**how | {"layers": (0,)})
    assert not any(line.startswith("without layer") for line in said)
    evaluation = path.with_name("evaluation.json").read_text(encoding="utf-8")
    first = [
        json.loads(text)["all"]["first"][0]
        for text in (evaluation, (done / "evaluation.json").read_text(encoding="utf-8"))
    ]
    assert first[0] == pytest.approx(first[1], abs=0.1)


@pytest.mark.parametrize("asked", [{"depth": 1}, {"layers": (1,)}])
def test_a_shallow_draft_begins_as_layers_of_a_deep_one(
    asked: dict[str, Any], begin: Callable[..., Project], done: Path, tmp_path: Path
) -> None:
    how = {"corpus": done / "corpus", "tokens": 0}
    deep = begin(tmp_path / "deep", **how, layers=(0, 1)).run()
    said: list[str] = []
    for _ in range(2):  # the second time from what stays
        shallow = begin(tmp_path / "shallow", **how, **asked, initial=deep, say=said.append).run()
    found = draft_file.began_as(shallow)
    told = [line for line in said if line.startswith("without layer")]
    assert (found in ([0], [1])) if "depth" in asked else (found == [1])
    assert len(told) == ("depth" in asked)


def test_what_was_trained_is_built_and_answers_as_the_target_does(
    done: Path, tiny_gguf: Path, tmp_path: Path
) -> None:
    bundle, draft = tmp_path / "bundle", done / "draft.safetensors"
    assert main(["gguf", str(tiny_gguf), "--out", str(bundle), "--draft", str(draft)]) == 0
    sampling = Sampling(temperature=0.7, seed=2)
    answers = []
    with open_session(bundle, cache_dir=tmp_path / "cache", threads=1, draft="model") as session:
        for strategy in ("autoregressive", "speculative", "mirror"):
            session.strategy = strategy
            answer = session.generate("the tale", sampling, max_new_tokens=30)
            answers.append(("".join(answer), answer.tokens))
            assert answer.metrics.to_dict()["draft_error"] is None
    assert answers[0] == answers[1] == answers[2]
