"""How guesses and hypotheses travel as tokens of a message."""

from collections.abc import Sequence

from runtime.drafter import Guess
from runtime.hypotheses import Hypothesis

MISS = -1  # the number of the rollout, where none was taken
NONE = -1  # no token


def pack_guesses(guesses: Sequence[Guess], widest: int) -> tuple[int, tuple[int, ...]]:
    """Columns and tokens: each guess and its runner-ups, as many as fit in `widest` tokens."""
    if not guesses:
        return 1, ()
    most = 1 + max(len(guess.runner_ups) for guess in guesses)
    columns = max(1, min(most, widest // len(guesses)))
    padding = (NONE,) * columns
    rows = ((guess.token, *guess.runner_ups, *padding)[:columns] for guess in guesses)
    return columns, tuple(token for row in rows for token in row)


def unpack_guesses(columns: int, tokens: tuple[int, ...]) -> list[Guess]:
    """What `pack_guesses` packed."""
    rows = (tokens[start : start + columns] for start in range(0, len(tokens), columns))
    return [Guess(row[0], row[1 : row.index(NONE) if NONE in row else None]) for row in rows]


def pack_hypotheses(hypotheses: Sequence[Hypothesis]) -> tuple[int, ...]:
    """Two tokens each: how many are accepted, and the final token."""
    return tuple(
        number
        for each in hypotheses
        for number in (each.accepted, NONE if each.final_token is None else each.final_token)
    )


def unpack_hypotheses(tokens: Sequence[int]) -> list[Hypothesis]:
    """What `pack_hypotheses` packed, but for the sources."""
    pairs = zip(tokens[::2], tokens[1::2], strict=True)
    return [Hypothesis(accepted, None if final == NONE else final) for accepted, final in pairs]
