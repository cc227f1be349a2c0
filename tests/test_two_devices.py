"""A small model on an NPU and a GPU at once, either way round; software plays both."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from export import gguf_file
from export.__main__ import main as export_main
from runtime import Sampling, Session, open_session
from runtime.answer import StreamedAnswer
from runtime.manifest import Manifest
from tests.drafts import write_draft
from tests.two_devices import NAMES, check_whole, loads, needs_both, partings

pytestmark = needs_both
PROMPT = "the other text on the 12"
PAIRS = [("WebGPU", "QNN"), ("QNN", "WebGPU"), ("WebGPU", "WebGPU"), ("QNN", "QNN")]
# The target's graph, and what its logits there may be from those on the CPU, twice.
GRAPHS = {"WebGPU": ("gpu-fp32", 1e-3), "QNN": ("portable-fp16", 0.1)}
Opened = Callable[[str, str], Session]


@pytest.fixture(scope="module")
def bundle(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random model for a GPU and an NPU, with a draft that guesses three tokens in a pass."""
    folder = tmp_path_factory.mktemp("devices")
    draft = write_draft(folder / "draft.safetensors", gguf_file.read(tiny_gguf).model)
    command = ["gguf", str(tiny_gguf), "--draft", str(draft), "--out", str(folder / "bundle")]
    for role in ("target", "draft"):
        for graph in ("gpu-fp32", "portable-fp16"):
            command += ["--graphs", f"{role}/{graph}"]
    assert export_main(command) == 0
    return folder / "bundle"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def opened(bundle: Path, cache: Path) -> Iterator[Opened]:
    """A session of each pair, opened once, with every node where it was asked to be."""
    sessions: dict[tuple[str, str], Session] = {}

    def get(target: str, draft: str) -> Session:
        if (target, draft) not in sessions:
            with loads() as loaded:
                session = sessions[target, draft] = open_session(
                    bundle, cache_dir=cache, **asked(target, draft)
                )
                session.strategy = "speculative"
            check_whole(loaded, {target, draft})
        return sessions[target, draft]

    yield get
    for session in sessions.values():
        assert session.close()


def asked(target: str, draft: str) -> dict[str, Any]:
    return {
        "execution_provider": target,
        "precision": GRAPHS[target][0].partition("-")[2],
        "draft_execution_provider": draft,
        "threads": 1,
        "draft_threads": 1,
        "draft_time_limit_s": 60,
    }


def answered(session: Session, strategy: str, sampling: Sampling, count: int) -> StreamedAnswer:
    session.strategy = strategy
    answer = session.generate(PROMPT, sampling, max_new_tokens=count)
    assert "".join(answer) == answer.text
    return answer


@pytest.mark.parametrize("strategy", ["autoregressive", "speculative", "mirror", "auto"])
@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_the_text_is_the_cpus_whoever_runs_where(
    target: str, draft: str, strategy: str, bundle: Path, opened: Opened
) -> None:
    graph, near_tie = GRAPHS[target]
    sampling = Sampling(temperature=0.8, seed=4)
    answer = answered(opened(target, draft), strategy, sampling, 10)
    names = {"target": NAMES[target], "draft": NAMES[draft]}
    found = answer.metrics.to_dict()
    alone = strategy == "autoregressive"
    assert found["providers"] == ({"target": names["target"]} if alone else names)
    assert found["draft_error"] is None
    if strategy in ("speculative", "mirror"):
        assert answer.metrics.draft_tokens_proposed > 0
    known = Manifest.load(bundle).target.graphs[graph]
    for place, lead in partings(bundle, known, PROMPT, answer.tokens, sampling):
        assert lead <= near_tie, f"token {place} parts from the CPU's, which led by {lead}"
    assert len(answer.tokens) == 10
