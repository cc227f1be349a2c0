"""Tests of runtime/verify.py: the walk, and that no proposal changes what is committed."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import sampling
from runtime.errors import DraftError
from runtime.sampling import Sampling, choose
from runtime.verify import Outcome, Proposal, verify

Floats = NDArray[np.float32]

# Row t holds the logits after token t.
TABLE = np.array(
    [[0.0, 1.0, -0.5, 0.3], [1.2, 0.0, 0.0, -2.0], [-1.0, 0.7, 0.7, 0.1], [0.5, 0.5, 0.5, 0.5]],
    dtype=np.float32,
)
CHAINS = [
    Proposal.chain(tokens)
    for length in range(4)
    for tokens in itertools.product(range(4), repeat=length)
]
TREES = [
    Proposal((0, 1, 2, 3), (-1, -1, -1, -1)),
    Proposal((1, 0, 2, 1, 3, 0), (-1, -1, 0, 0, 1, 3)),
    Proposal((2, 2, 1), (-1, -1, 0)),
]


def advance(proposal: Proposal, context: list[int], settings: Sampling) -> list[int]:
    """The tokens of one round: the accepted path and the final token."""

    def row(index: int) -> Floats:
        return np.asarray(TABLE[context[-1] if index == 0 else proposal.tokens[index - 1]])

    outcome, path = verify(
        proposal, row, lambda logits, path: choose(logits, [*context, *path], settings)
    )
    return [*path, outcome.final_token]


def alone(context: list[int], settings: Sampling, count: int) -> list[int]:
    """The next `count` tokens, one at a time."""
    text = list(context)
    for _ in range(count):
        text.append(choose(TABLE[text[-1]], text, settings))
    return text[len(context) :]


@pytest.mark.parametrize("penalty", [1.0, 1.8])
def test_no_proposal_changes_the_text_on_any_cell_of_a_noise_table(
    penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Sampling(temperature=0.8, repetition_penalty=penalty)
    accepted = set()
    for cell in itertools.product((-0.6, 1.1), repeat=8):
        # Positions 2 and 4 share a row of noise, so all 256 cells reach three positions.
        noise = np.array([cell[:4], cell[4:]])
        monkeypatch.setattr(sampling, "gumbel", lambda _s, at, ids, noise=noise: noise[at % 2, ids])
        expected = alone([2, 0], settings, 4)
        for proposal in CHAINS + TREES:
            found = advance(proposal, [2, 0], settings)
            assert found == expected[: len(found)], (cell, proposal)
            accepted.add(len(found) - 1)
    assert accepted == {0, 1, 2, 3}


def test_the_penalty_counts_tokens_of_the_accepted_path() -> None:
    settings = Sampling(repetition_penalty=4.0)
    # After 0 comes 1, then 0, since the 0 of the context is worth 1.2 / 4 and still the best.
    assert advance(Proposal.chain([1, 0, 1]), [0], settings) == [1, 0, 3]
    # Without a penalty the 1 is chosen again, so it is the accepted path that counts.
    assert advance(Proposal.chain([1, 0, 1]), [0], Sampling()) == [1, 0, 1, 0]


def rows_of(text: str) -> tuple[list[int], dict[int, int]]:
    """Which rows were asked for, and what the target chooses after each."""
    return [], {index: int(digit) for index, digit in enumerate(text)}


@pytest.mark.parametrize(
    ("proposal", "choices", "outcome", "path", "asked"),
    [
        (Proposal.chain([]), "7", Outcome(-1, 7), (), [0]),
        (Proposal.chain([5, 6]), "789", Outcome(-1, 7), (), [0]),
        (Proposal.chain([5, 6]), "579", Outcome(0, 7), (5,), [0, 1]),
        (Proposal.chain([5, 6]), "569", Outcome(1, 9), (5, 6), [0, 1, 2]),
        (Proposal((5, 6, 7, 8), (-1, -1, 1, 0)), "60071", Outcome(1, 0), (6,), [0, 2]),
        (Proposal((5, 6, 7, 8), (-1, -1, 1, 0)), "60713", Outcome(2, 1), (6, 7), [0, 2, 3]),
        (Proposal((5, 5), (-1, -1)), "512", Outcome(0, 1), (5,), [0, 1]),
    ],
)
def test_walk(
    proposal: Proposal, choices: str, outcome: Outcome, path: tuple[int, ...], asked: list[int]
) -> None:
    seen: list[int] = []
    told: list[tuple[int, ...]] = []

    def row(index: int) -> Floats:
        seen.append(index)
        return np.full(1, float(choices[index]), dtype=np.float32)

    def pick(logits: Floats, so_far: tuple[int, ...]) -> int:
        told.append(so_far)
        return int(logits[0])

    assert verify(proposal, row, pick) == (outcome, path)
    assert seen == asked
    assert told == [path[:length] for length in range(len(path) + 1)]


def test_chain_takes_any_integers() -> None:
    proposal = Proposal.chain(np.array([3, 1, 2]).tolist())
    assert proposal == Proposal((3, 1, 2), (-1, 0, 1))
    assert len(proposal) == 3
    assert len(Proposal.chain([])) == 0


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((1, 2), (-1,)), ((1,), (0,)), ((1, 2), (-1, 1)), ((1, 2), (-1, -2)), ((-1,), (-1,))],
)
def test_nonsense_is_refused(tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    with pytest.raises(DraftError, match="proposal"):
        Proposal(tokens, parents)
