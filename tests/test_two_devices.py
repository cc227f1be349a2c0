"""A small model on an NPU and a GPU at once, either way round; software plays both."""

import signal
import subprocess
import sys
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
ROOT = Path(__file__).resolve().parent.parent
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


def test_a_draft_that_is_too_slow_is_dropped_and_the_text_stays(bundle: Path, cache: Path) -> None:
    settings = asked("WebGPU", "QNN") | {"draft_time_limit_s": 0.001, "strategy": "speculative"}
    with open_session(bundle, cache_dir=cache, **settings) as session:
        answer = session.generate(PROMPT, Sampling(), max_new_tokens=6)
        assert "".join(answer) == answer.text
        assert "gave no answer within 0.001 s" in str(answer.metrics.draft_error)
        assert not partings(
            bundle,
            Manifest.load(bundle).target.graphs["gpu-fp32"],
            PROMPT,
            answer.tokens,
            Sampling(),
        )


@pytest.mark.parametrize(("target", "draft"), [("WebGPU", "QNN"), ("QNN", "WebGPU")])
def test_ctrl_c_ends_the_chat_at_once(
    target: str, draft: str, bundle: Path, cache: Path, opened: Opened
) -> None:
    """Neither provider ends a call that is under way; the chat waits for no more than that."""
    opened(target, draft)  # tries both, so that the chat needs not
    flags = ["-m", bundle, "--cache-dir", cache, "-e", target, "--strategy", "mirror"]
    flags += ["--draft-execution-provider", draft, "--precision", asked(target, draft)["precision"]]
    flags += ["--prompt", PROMPT, "--max-new-tokens", "200"]
    command = [sys.executable, "-m", "runtime.chat", *map(str, flags)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as chat:
        assert chat.stdout is not None
        chat.stdout.read(1)  # an answer is under way
        chat.send_signal(signal.SIGINT)
        _, stderr = chat.communicate(timeout=120)  # only keeps a failure from hanging
    assert chat.returncode == 130, stderr
    assert b"Traceback" not in stderr
