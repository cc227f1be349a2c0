"""A draft on OpenVINO beside a target on the CPU provider: one process, two threads, one text."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from export.__main__ import main as export_main
from runtime import Sampling, Session, open_session
from runtime.answer import StreamedAnswer
from runtime.errors import BundleError, UsageError
from runtime.timeline import Run

pytestmark = pytest.mark.skipif(
    find_spec("onnxruntime_ep_openvino") is None, reason="OpenVINO is not installed"
)
OPENVINO = "OpenVINOExecutionProvider"
CPU = "CPUExecutionProvider"
PROMPT = "the other text on the 12"
Opened = Callable[..., Session]


@pytest.fixture(scope="module")
def opened(
    tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Session]]:
    """A session of each precision on the tiny bundle, its draft on OpenVINO, opened once."""
    sessions: dict[str, Session] = {}

    def get(precision: str) -> Session:
        if precision not in sessions:
            sessions[precision] = open_session(
                tiny_bundle,
                cache_dir=tmp_path_factory.mktemp("cache"),
                threads=1,
                precision=precision,
                draft_execution_provider="OpenVINO",
            )
        return sessions[precision]

    yield get
    for session in sessions.values():
        assert session.close()


def answered(
    session: Session, strategy: str, sampling: Sampling, **settings: Any
) -> StreamedAnswer:
    session.strategy = strategy
    answer = session.generate(PROMPT, sampling, **{"max_new_tokens": 24} | settings)
    assert "".join(answer) == answer.text
    return answer


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["mirror", "speculative"])
def test_the_text_is_the_targets_own(
    strategy: str, temperature: float, precision: str, opened: Opened
) -> None:
    session = opened(precision)
    guessed = 0
    for seed in range(2):
        sampling = Sampling(temperature=temperature, seed=seed)
        alone = answered(session, "autoregressive", sampling)
        assert set(alone.metrics.providers.values()) == {CPU}
        pair = answered(session, strategy, sampling)
        assert pair.tokens == alone.tokens
        assert (pair.text, pair.finish_reason) == (alone.text, alone.finish_reason)
        found = pair.metrics.to_dict()
        assert found["providers"] == {"target": CPU, "draft": OPENVINO}
        assert found["draft_error"] is None
        guessed += pair.metrics.draft_tokens_accepted
    assert guessed > 0, "the draft had no part in it"


def test_a_draft_of_the_same_weights_guesses_what_the_target_says(opened: Opened) -> None:
    """Were one of its runs fed what another was, its guesses would be wrong."""
    answer = answered(opened("fp32"), "speculative", Sampling(), max_new_tokens=60)
    metrics = answer.metrics
    assert metrics.draft_tokens_proposed >= 40
    assert metrics.draft_tokens_accepted == metrics.draft_tokens_proposed


def overlaps(run: Run, runs: list[Run]) -> bool:
    """Whether a run shares time with one of the others."""
    return any(run.start < other.end and other.start < run.end for other in runs)


def check_timeline(answer: StreamedAnswer) -> None:
    """Runs in order, one at a time for each model, between the answer's first and last moment."""
    metrics = answer.metrics
    assert metrics.ended is not None
    for runs in (metrics.target_runs, metrics.draft.runs):
        assert runs
        times = [moment for run in runs for moment in (run.start, run.end)]
        assert times == sorted(times)
        assert all(run.start < run.end for run in runs)
        assert metrics.started <= times[0]
    assert metrics.target_runs[-1].end <= metrics.ended


def test_both_models_leave_their_times(opened: Opened) -> None:
    answer = answered(opened("fp32"), "mirror", Sampling(), max_new_tokens=60)
    check_timeline(answer)


def test_a_draft_that_needs_no_model_needs_no_provider(tiny_bundle: Path, tmp_path: Path) -> None:
    for draft in ("lookup", "none"):
        with pytest.raises(
            UsageError, match=f"but the draft is '{draft}', which needs no provider"
        ):
            open_session(
                tiny_bundle, cache_dir=tmp_path, draft=draft, draft_execution_provider="OpenVINO"
            )


def test_a_bundle_without_portable_graphs_says_what_it_has(tiny_gguf: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    command = ["gguf", str(tiny_gguf), "--out", str(bundle)]
    for graph in ("target/fused-int8", "draft/fused-int4"):
        command += ["--graphs", graph]
    assert export_main(command) == 0
    message = "no draft graph for OpenVINO on CPU, .*; it has fused-int4"
    with pytest.raises(BundleError, match=message):
        open_session(bundle, cache_dir=tmp_path, draft_execution_provider="OpenVINO")
    message = "no target graph for OpenVINO on CPU, which takes portable-fp32.*; it has fused-int8"
    with pytest.raises(BundleError, match=message):
        open_session(bundle, cache_dir=tmp_path, execution_provider="OpenVINO")


def test_a_target_on_openvino_writes_one_text_at_a_time(
    tiny_bundle: Path, tmp_path: Path, opened: Opened
) -> None:
    """In float32 the two providers' logits are so near that the tiny model's text is the same."""
    settings: dict[str, Any] = {"threads": 1, "precision": "fp32", "draft": "lookup"}
    with open_session(
        tiny_bundle, cache_dir=tmp_path, execution_provider="OpenVINO", **settings
    ) as session:
        assert session.settings["exactness"] in ("near-tie", "bitwise")
        sampling = Sampling(temperature=0.8, seed=4)
        wanted = answered(opened("fp32"), "autoregressive", sampling).tokens
        for strategy in ("autoregressive", "mirror"):
            answer = answered(session, strategy, sampling)
            assert answer.metrics.to_dict()["providers"]["target"] == OPENVINO
            assert answer.tokens == wanted
        with pytest.raises(UsageError, match="writes one text at a time"):
            session.generate_many(["one", "two"])


@pytest.mark.real_model
def test_the_reference_models_draft_works_on_openvino_while_the_target_does(
    smollm: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"cache_dir": tmp_path, "context_length": 256, "precision": "int8"}
    sampling = Sampling(temperature=0.7, seed=3)
    prompt = "The capital of France is"
    with open_session(smollm, draft_execution_provider="OpenVINO", **settings) as session:
        session.strategy = "autoregressive"
        alone = session.generate(prompt, sampling, max_new_tokens=24)
        text = "".join(alone)
        session.strategy = "mirror"
        pair = session.generate(prompt, sampling, max_new_tokens=24)
        assert "".join(pair) == text
        assert pair.tokens == alone.tokens
    check_timeline(pair)
    assert pair.metrics.to_dict()["providers"] == {"target": CPU, "draft": OPENVINO}
    assert any(overlaps(run, pair.metrics.target_runs) for run in pair.metrics.draft.runs)
    assert pair.metrics.draft_tokens_accepted > 0, "the draft had no part in it"
