"""A session on emulated devices: the same text, at the pace of another machine."""

from pathlib import Path
from typing import Any

import pytest

from runtime import Sampling, open_session
from runtime.errors import UsageError
from runtime.profiles import load_profile
from runtime.timeline import Run

NAME = "dual-desktop-gpu"
PROFILE = load_profile(NAME)
MESSAGES = [{"role": "user", "content": "tell me a tale"}]


def shortest(runs: list[Run]) -> float:
    return min(run.end - run.start for run in runs)


@pytest.mark.parametrize("strategy", ["autoregressive", "speculative", "mirror"])
def test_every_call_takes_its_devices_time_and_the_text_stays(
    strategy: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    answers = []
    settings: dict[str, Any] = {"strategy": strategy, "threads": 1, "cache_dir": tmp_path}
    emulations: list[dict[str, Any]] = [{}, {"emulate": NAME, "time_scale": 1.5}]
    for emulation in emulations:
        with open_session(tiny_bundle, **settings, **emulation) as session:
            answers.append(session.generate(MESSAGES, Sampling(), max_new_tokens=12))
            for _ in answers[-1]:
                pass
            given = session.settings["emulated"], session.settings["time_scale"]
    plain, emulated = answers
    assert emulated.tokens == plain.tokens
    assert plain.metrics.to_dict()["emulated"] is None
    found = emulated.metrics.to_dict()
    assert (found["emulated"], found["draft_error"]) == (NAME, None)
    assert given == (NAME, 1.5)
    assert shortest(emulated.metrics.target_runs) >= PROFILE.target.seconds(1) - 1e-6
    if strategy != "autoregressive":
        assert shortest(emulated.metrics.draft.runs) >= PROFILE.draft.seconds(1) - 1e-6


def test_the_time_scale_is_measured_and_said(tiny_bundle: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with open_session(
        tiny_bundle, threads=1, cache_dir=tmp_path, emulate=NAME, progress=said.append
    ) as session:
        scale = session.settings["time_scale"]
        assert scale >= 1
        assert any(f"emulated, of {NAME}" in line and f"{scale:.3g} times" in line for line in said)
        with pytest.raises(UsageError, match="one text at a time"):
            session.generate_many(["the"])


def test_a_call_that_does_not_fit_makes_the_answer_void(tiny_bundle: Path, tmp_path: Path) -> None:
    with open_session(
        tiny_bundle, draft="none", cache_dir=tmp_path, emulate=NAME, time_scale=1e-6
    ) as session:
        for _ in range(2):
            answer = session.generate(MESSAGES, Sampling(), max_new_tokens=3)
            assert "".join(answer)
            found = answer.metrics.to_dict()
            assert found["void_runs"] == found["target_passes"] == 3
