"""The reference model, its draft on an NPU and itself on a GPU at once; software plays both."""

from pathlib import Path

import pytest

from runtime import Sampling, open_session
from runtime.manifest import Manifest
from runtime.timeline import overlap
from tests.two_devices import NAMES, check_whole, loads, needs_both, partings

pytestmark = [pytest.mark.real_model, *needs_both]
PROMPT = "1, 2, 3, 4, 5,"
NEAR_TIE = 1e-3  # logits; a GPU's float32 was up to 1.4e-4 from the CPU's


def test_the_draft_works_on_the_npu_while_the_target_does_on_the_gpu(
    smollm_shallow: Path, tmp_path: Path
) -> None:
    with (
        loads() as loaded,
        open_session(
            smollm_shallow,
            cache_dir=tmp_path,
            precision="fp32",
            execution_provider="WebGPU",
            draft_execution_provider="QNN",
            strategy="mirror",
            num_hypotheses=2,
            context_length=128,
            threads=1,
            draft_threads=1,
        ) as session,
    ):
        answer = session.generate(PROMPT, Sampling(), max_new_tokens=5)
        assert "".join(answer) == answer.text
        assert session.settings["devices"] == {"target": "WebGPU on GPU", "draft": "QNN on NPU"}
        assert session.settings["providers"] == {"target": NAMES["WebGPU"], "draft": NAMES["QNN"]}
    check_whole(loaded, {"WebGPU", "QNN"})
    metrics, timeline = answer.metrics, answer.metrics.timeline()
    assert metrics.providers == {"target": NAMES["WebGPU"], "draft": NAMES["QNN"]}
    assert metrics.draft_error is None
    assert metrics.draft_tokens_accepted > 0, "the draft had no part in it"
    verified = [run for run in timeline.target if run.name == "verify"]
    ahead = [run for run in timeline.draft if run.name == "look ahead"]
    assert overlap(verified, ahead) > 0, "they took turns"
    graph = Manifest.load(smollm_shallow).target.graphs["gpu-fp32"]
    for place, lead in partings(smollm_shallow, graph, PROMPT, answer.tokens, Sampling()):
        assert lead <= NEAR_TIE, f"token {place} parts from the CPU's, which led by {lead}"
    assert len(answer.tokens) == 5
