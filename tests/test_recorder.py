"""Tests of scripts/equality/recorder.py: which row chose a token, and that a difference is seen."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from runtime.sampling import Sampling
from runtime.strategy import Autoregressive, Strategy
from runtime.verify import Proposal
from scripts.equality.recorder import Recorder, Written, differences
from tests.small_trees import Given
from tests.table import TableTarget, new_metrics, speaking, write
from tests.test_tree_rounds import Inexact

TEXT = (1, 2, 3, 1, 2, 3)


def recorded(
    target: TableTarget,
    strategy: Strategy,
    *,
    prompt: Sequence[int] = (0,),
    tokens: int = 6,
    sampling: Sampling | None = None,
) -> Written:
    recorder = Recorder(target)
    found = write(recorder, strategy, prompt, sampling, max_new_tokens=tokens)
    return recorder.written(prompt, found.tokens, found.metrics)


def target() -> TableTarget:
    return speaking([1, 2, 3], vocabulary=4)


def given(proposal: Proposal) -> Given:
    """The proposal wherever there is room for it."""
    return Given(lambda room: proposal if room >= 3 else Proposal.chain(()))


def test_every_row_of_a_chain_is_known() -> None:
    alone = recorded(target(), Autoregressive())
    found = recorded(target(), given(Proposal.chain((2, 3, 0))))
    assert alone.tokens == found.tokens == TEXT
    assert found.digests == alone.digests
    assert alone.off_trunk == 0
    assert not list(differences(alone, found))


def test_rows_off_the_trunk_and_those_of_another_text_are_told_apart() -> None:
    """After 1 the trunk is wrong: its rows at the places of 3 and 1 are of a text with 0 and 0."""
    tree = Proposal((0, 0, 2, 3), (-1, 0, -1, 2))
    alone = recorded(target(), Autoregressive())
    found = recorded(target(), given(tree))
    assert found.tokens == TEXT
    chosen_off_it = [digest is None for digest in found.digests]
    assert chosen_off_it == [False, False, True, True, False, False]
    assert found.off_trunk == 2
    assert not list(differences(alone, found))


def test_a_token_that_no_row_chose_is_an_error() -> None:
    recorder = Recorder(target())
    written = write(recorder, given(Proposal.chain((2,))), max_new_tokens=3)
    with pytest.raises(KeyError):
        recorder.written((0,), (1, 2, 2, 2), written.metrics)
    with pytest.raises(KeyError):
        recorder.written((3,), written.tokens, written.metrics)


def test_it_repeats_calls() -> None:
    repeated = target()
    write(Recorder(repeated, repeats=3), Autoregressive(), max_new_tokens=2)
    assert len(repeated.proposals) == 6


def test_other_tokens_and_other_bits_are_differences() -> None:
    alone = recorded(target(), Autoregressive())
    other = target()
    other.table[0] += np.float32(0.5)  # the same tokens, of which one in three has other logits
    changed = recorded(other, Autoregressive())
    assert changed.tokens == alone.tokens
    assert list(differences(alone, changed)) == ["the logits of token 0 have other bits"]
    shorter = recorded(target(), Autoregressive(), tokens=5)
    assert next(differences(alone, shorter)).startswith("tokens (1, 2, 3, 1, 2) where alone")
    failed = replace(alone, metrics=new_metrics())
    failed.metrics.draft_error = "It stalled."
    assert list(differences(alone, failed)) == ["the draft failed: It stalled."]


def test_inexact_rows_off_the_trunk_are_seen_where_nothing_guards_them() -> None:
    """The row after 1 2 is wrong by 10, more than the lead of what the target says."""
    table = np.full((3, 4, 4), -4, np.float32)
    for place, token in enumerate((1, 2, 3)):
        table[place, :, token] = 4
    parted = 0
    for seed in range(20):
        inexact = Inexact(10, table=table.copy())
        inexact._draw = np.random.default_rng(seed)
        alone = recorded(inexact, Autoregressive())
        found = recorded(inexact, given(Proposal((0, 2), (-1, -1))))
        assert alone.tokens == TEXT
        parted += any(text.startswith("tokens") for text in differences(alone, found))
    assert parted > 5
