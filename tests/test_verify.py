"""Tests of runtime/verify.py: the walk, and that no proposal changes what is committed."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import sampling
from runtime.errors import DraftError
from runtime.guard import is_sure
from runtime.sampling import Sampling, choose
from runtime.verify import Outcome, Proposal, Verdict, verify
from tests.small_trees import every_tree

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


def trusting(_logits: Floats, _path: tuple[int, ...]) -> bool:
    """A guard that stops nothing."""
    return True


def advance(
    proposal: Proposal,
    context: list[int],
    settings: Sampling,
    *,
    table: Floats = TABLE,
    off: Floats | None = None,
    bound: float = 0.0,
) -> tuple[list[int], bool]:
    """The tokens of one round, the accepted path and the final one, and whether a guard stopped it.

    off [vocabulary] is what the rows off the trunk are wrong by, bound what the guard is told.
    """

    def row(index: int) -> Floats:
        logits = table[context[-1] if index == 0 else proposal.tokens[index - 1]]
        return np.asarray(logits if off is None or index <= proposal.trunk else logits + off)

    verdict = verify(
        proposal,
        row,
        lambda logits, path: choose(logits, [*context, *path], settings),
        lambda logits, path: is_sure(logits, [*context, *path], settings, bound),
    )
    return [*verdict.path, verdict.outcome.final_token], verdict.guarded


def alone(context: list[int], settings: Sampling, count: int, table: Floats = TABLE) -> list[int]:
    """The next `count` tokens, one at a time."""
    text = list(context)
    for _ in range(count):
        text.append(choose(table[text[-1]], text, settings))
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
            found, _ = advance(proposal, [2, 0], settings)
            assert found == expected[: len(found)], (cell, proposal)
            accepted.add(len(found) - 1)
    assert accepted == {0, 1, 2, 3}


def test_the_penalty_counts_tokens_of_the_accepted_path() -> None:
    settings = Sampling(repetition_penalty=4.0)
    # After 0 comes 1, then 0, since the 0 of the context is worth 1.2 / 4 and still the best.
    assert advance(Proposal.chain([1, 0, 1]), [0], settings)[0] == [1, 0, 3]
    # Without a penalty the 1 is chosen again, so it is the accepted path that counts.
    assert advance(Proposal.chain([1, 0, 1]), [0], Sampling())[0] == [1, 0, 1, 0]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_small_tree_changes_the_text(temperature: float) -> None:
    accepted = set()
    for seed in range(1 if temperature == 0 else 3):
        settings = Sampling(temperature, repetition_penalty=1.3, seed=seed)
        expected = alone([2], settings, 5)
        for proposal in every_tree(4, 3):
            found, guarded = advance(proposal, [2], settings)
            assert found == expected[: len(found)], (seed, proposal)
            assert not guarded
            accepted.add(len(found) - 1)
    assert accepted >= {0, 1, 2}


# Off the trunk every row is wrong by OFF, which turns the choices after 1, 2 and 3.
CLOSE = np.array(
    [[0.0, 1.0, 0.6, 0.3], [1.2, 0.0, 0.0, 1.25], [-1.0, 0.7, 0.75, 0.1], [0.5, 0.1, -0.5, 0.45]],
    dtype=np.float32,
)
OFF = np.array([0.1, -0.1, 0.1, -0.1], np.float32)


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.4}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_guard_keeps_the_text_where_rows_off_the_trunk_are_inexact(
    temperature: float, filters: dict[str, float]
) -> None:
    parted, stopped, went_on = 0, 0, 0
    for seed, start in itertools.product(range(40), range(4)):
        settings = Sampling(temperature, seed=seed, **filters)  # type: ignore[arg-type]
        expected = alone([start], settings, 4, CLOSE)
        # The trunk is wrong, and beside it hangs what will be said.
        proposal = Proposal((expected[0] ^ 1, *expected[:3]), (-1, -1, 1, 2))
        for off in (OFF, -OFF):
            found, guarded = advance(proposal, [start], settings, table=CLOSE, off=off, bound=0.2)
            assert found == expected[: len(found)], (seed, start)
            trusted, _ = advance(proposal, [start], settings, table=CLOSE, off=off)
            parted += trusted != expected[: len(trusted)]
            stopped += guarded
            went_on += not guarded and len(found) > 1
    assert parted > 0, "without the guard no text differs: the test shows nothing"
    assert stopped > 0
    assert went_on > 0


def test_a_guard_stops_before_the_first_node_off_the_trunk_that_is_not_sure() -> None:
    # The trunk is 5; beside it hangs 6 with 7 and 8 behind it.
    proposal = Proposal((5, 6, 7, 8), (-1, -1, 1, 2))
    for distrusted, expected in [
        (set(), Verdict(Outcome(3, 9), (6, 7, 8))),
        ({6}, Verdict(Outcome(-1, 6), (), guarded=True)),
        ({7}, Verdict(Outcome(1, 7), (6,), guarded=True)),
        ({8}, Verdict(Outcome(2, 8), (6, 7), guarded=True)),
        ({5}, Verdict(Outcome(3, 9), (6, 7, 8))),
    ]:
        asked: list[tuple[int, tuple[int, ...]]] = []

        def sure(
            logits: Floats,
            path: tuple[int, ...],
            distrusted: set[int] = distrusted,
            asked: list[tuple[int, tuple[int, ...]]] = asked,
        ) -> bool:
            asked.append((int(logits[0]), path))
            return path[-1] not in distrusted

        # Row i chooses the i-th of these.
        rows = np.array([[6], [0], [7], [8], [9]], np.float32)
        found = verify(proposal, rows.__getitem__, lambda logits, _: int(logits[0]), sure)
        assert found == expected
        assert asked == [(7, (6,)), (8, (6, 7)), (9, (6, 7, 8))][: len(asked)]


def test_nodes_of_the_trunk_need_not_be_sure() -> None:
    rows = np.array([[5], [6], [9]], np.float32)
    proposal = Proposal((5, 6, 7), (-1, 0, 0))
    found = verify(
        proposal, rows.__getitem__, lambda logits, _: int(logits[0]), lambda _logits, _path: False
    )
    assert found == Verdict(Outcome(1, 9), (5, 6))


@pytest.mark.parametrize(
    ("parents", "trunk"),
    [((), 0), ((-1,), 1), ((-1, 0, 1), 3), ((-1, -1), 1), ((-1, 0, 0, 2), 2), ((-1, -1, 1, 2), 1)],
)
def test_the_trunk_are_the_nodes_that_follow_each_other_from_the_start(
    parents: tuple[int, ...], trunk: int
) -> None:
    assert Proposal((1,) * len(parents), parents).trunk == trunk


def test_a_cut_leaves_the_first_nodes() -> None:
    for proposal in every_tree(3, 2):
        for count in range(5):
            cut = proposal.cut(count)
            assert cut.tokens == proposal.tokens[:count]
            assert cut.parents == proposal.parents[:count]
            assert cut.trunk == min(proposal.trunk, count)


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

    assert verify(proposal, row, pick, trusting) == Verdict(outcome, path)
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
