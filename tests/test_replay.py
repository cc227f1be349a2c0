"""Tests of scripts/emulated: records, and what replaying them takes, computed by hand."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import MirrorError
from runtime.metrics import Metrics
from runtime.profiles import load_profile
from runtime.sampling import Sampling
from runtime.strategy import Mirror, Speculative
from runtime.virtual_time import VirtualTiming
from scripts.draft.texts import Written
from scripts.emulated.records import NONE, RANKS, Record, compact, load, record, save, scripted
from scripts.emulated.replay import MakeStrategy, replay
from tests.counter import Counter
from tests.devices import device, profile, seconds

SPECULATIVE = partial(Speculative, num_draft_tokens=2)
MIRROR = partial(Mirror, num_draft_tokens=2, num_hypotheses=4)


def a_record(
    answer: int, *, agreement: float = 1.0, places: int = 3, ended: bool = False
) -> Record:
    """A prompt of 3 tokens and an answer of so many, none twice; after its end token 9 more."""
    tokens = np.arange(100, 103 + answer + (9 if ended else 0))
    silent = np.full((answer, 1, RANKS), NONE, np.int32)
    record = Record("qa", tokens, 3, 3 + answer, silent)
    return scripted(record, agreement, places=places)


def replayed(of: Record, make: MakeStrategy | None = None, **contention: float) -> Metrics:
    return replay(of, VirtualTiming(seconds(**contention)), make).metrics


def test_plain_decoding_takes_its_calls() -> None:
    metrics = replayed(a_record(5))
    # 3 s for the prompt, which gives a token, and a second for each of 4 more.
    assert (metrics.ended, metrics.rounds, metrics.emitted_tokens) == (7.0, 4, 5)
    assert [run.end for run in metrics.target_runs] == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert metrics.to_dict()["emulated"] == "test"


def test_an_overhead_is_part_of_every_round_but_of_no_run() -> None:
    line = device((1, 1000), (2, 2000))
    metrics = replay(a_record(5), VirtualTiming(profile(line, line, overhead_ms=500))).metrics
    assert metrics.ended == 3 + 4 * 1 + 3.5 * 0.5 + 0.25
    assert metrics.overheads_s == [0.5] * 4


def test_drafting_and_verifying_take_turns() -> None:
    metrics = replayed(a_record(7), SPECULATIVE)
    # Both read the prompt until 3. A pass feeds the last token, twice after a whole acceptance
    # the bonus as well, and one mask; then 3 rows are verified. The last token comes alone.
    assert metrics.draft_tokens_accepted == metrics.draft_tokens_proposed
    passes = [(run.start, run.end) for run in metrics.draft.runs if run.name == "propose"]
    assert passes[0] == (3.0, 5.0)
    assert metrics.target_runs[1][:2] == (5.0, 8.0)
    assert passes[1] == (8.0, 8.0 + 4.0)  # two accepted, the bonus, a mask
    assert metrics.target_runs[2][:2] == (12.0, 15.0)
    assert (metrics.ended, metrics.emitted_tokens) == (15.0, 7)


@pytest.mark.parametrize(("contention", "round_s"), [(1.0, 10.0), (1.5, 12.0)])
def test_a_mirror_that_is_always_right_drafts_beside_the_target(
    contention: float, round_s: float
) -> None:
    # A pass of 4 s beside a run of 10 s: with contention it takes 6 s, in which the run does 4 of
    # its seconds, so that 6 remain.
    devices = profile(
        device((1, 10_000), (2, 10_000), contention=contention),
        device((1, 4_000), (2, 4_000), contention=contention),
    )
    metrics = replay(a_record(31), VirtualTiming(devices), MIRROR).metrics
    verified = [run for run in metrics.target_runs if run.name == "verify"]
    assert [run.end - run.start for run in verified] == [pytest.approx(round_s)] * 10
    assert [run.start for run in verified[1:]] == [run.end for run in verified[:-1]]
    assert [each.hit for each in metrics.round_log] == [True] * 9 + [None]
    ahead = [run for run in metrics.draft.runs if run.name == "look ahead"]
    assert [run.start for run in ahead] == [run.start for run in verified]
    assert metrics.draft_error is None


@pytest.mark.parametrize("agreement", [0.3, 0.7])
@pytest.mark.parametrize("make", [None, SPECULATIVE, MIRROR])
def test_a_replay_gives_the_same_numbers_every_time(
    agreement: float, make: MakeStrategy | None
) -> None:
    of = a_record(40, agreement=agreement)
    first, second = (
        replay(of, VirtualTiming(load_profile("gpu-cpu")), make).metrics.to_dict() for _ in range(2)
    )
    first.pop("peak_rss_bytes"), second.pop("peak_rss_bytes")
    assert first == second


@pytest.mark.parametrize("make", [None, SPECULATIVE, MIRROR])
@pytest.mark.parametrize("ended", ["by its end token", "by its budget"])
def test_an_answer_ends_as_it_was_recorded(make: MakeStrategy | None, ended: str) -> None:
    of = a_record(12, agreement=0.6, ended=ended == "by its end token")
    metrics = replayed(of, make)
    expected = ("eos", 11) if of.end_token is not None else ("max_new_tokens", 12)
    assert (metrics.finish_reason, metrics.emitted_tokens) == expected


def test_lookup_copies_what_stands_in_the_text() -> None:
    tokens = np.tile([7, 8, 9, 10], 8)
    of = Record("qa", tokens, 12, 32, np.full((20, 1, RANKS), NONE, np.int32))
    metrics = replay(of, VirtualTiming(seconds()), SPECULATIVE, draft="lookup").metrics
    assert metrics.to_dict()["acceptance_rate"] == 1.0
    assert all(run.start == run.end for run in metrics.draft.runs)  # no device works for it


def test_scripted_drafts_agree_as_often_as_they_should() -> None:
    of = a_record(4000, agreement=0.7, places=4)
    assert of.agreement() == pytest.approx([0.7] * 4, abs=0.03)
    answer = of.answer
    second = (of.guesses[:, 0, 1] == answer).mean()
    assert second == pytest.approx(0.3 * 0.7, abs=0.03)
    assert of.guesses.min() >= 0
    assert a_record(50).agreement().tolist() == [1.0, 1.0, 1.0]
    assert not np.array_equal(of.guesses, scripted(of, 0.7, places=4, seed=1).guesses)


def test_a_record_holds_what_the_draft_guessed_at_every_place() -> None:
    text = Written("qa", 2, np.array([5, 6, 7, 40, 41]), np.array([42]))
    drafter = Counter(per_pass=2)
    found = record(text, drafter, Sampling(), places=3)
    assert drafter.passes == [[[5, 6]], [[5, 6, 7]], [[5, 6, 7, 40]]]
    assert found.guesses.shape == (3, 3, RANKS)
    assert found.guesses[:, :, :2].tolist() == [
        [[7, 17], [8, 18], [NONE, NONE]],
        [[8, 18], [9, 19], [NONE, NONE]],
        [[41, 51], [42, 52], [NONE, NONE]],
    ]
    assert (found.guesses[:, :, 2:] == NONE).all()
    assert found.tokens.tolist() == [5, 6, 7, 40, 41, 42]
    assert (found.prompt.tolist(), found.answer.tolist()) == ([5, 6], [7, 40, 41])
    assert found.end_token == 41
    assert found.agreement().tolist() == [2 / 3, 0.0, 0.0]


def test_records_come_back_from_their_file(tmp_path: Path) -> None:
    records = [a_record(4, ended=True), replace(a_record(2), kind="rag"), a_record(7)]
    save(tmp_path / "some.npz", records)
    for before, after in zip(records, load(tmp_path / "some.npz"), strict=True):
        assert (after.kind, after.start, after.end) == (before.kind, before.start, before.end)
        assert after.tokens.tolist() == before.tokens.tolist()
        assert after.guesses.tolist() == before.guesses.tolist()


def test_a_record_can_be_cut() -> None:
    of = a_record(6, ended=True)
    assert of.cut(6) is of
    cut = of.cut(4)
    assert (len(cut.answer), cut.end_token, len(cut.guesses)) == (4, None, 4)
    assert replayed(cut).emitted_tokens == 4


def test_compact_records_keep_what_is_equal() -> None:
    of = a_record(5, agreement=0.5)
    found, count = compact(of)
    assert count == len(set(of.tokens.tolist()) | set(of.guesses.ravel().tolist()))
    assert found.tokens.max() < count
    equal = of.guesses[:, 0, :] == of.answer[:, None]
    assert (equal == (found.guesses[:, 0, :] == found.answer[:, None])).all()


def test_a_replay_that_writes_something_else_is_refused() -> None:
    of = a_record(5, ended=True)
    of.tokens[4] = of.tokens[of.end - 1]  # so it ends too early
    with pytest.raises(MirrorError, match="another text"):
        replayed(of)
