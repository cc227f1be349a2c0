"""A round as the design has it, letter by letter: proposals of two tokens, three tokens a pass."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runtime.hypotheses import Source
from runtime.metrics import Metrics
from runtime.strategy import Mirror
from tests.table import Abreast, current, speaking, wait_until, working, write
from tests.table_session import Fed, TableSession, model_drafter

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MASKS = "12"


class Lettered(TableSession):
    """A draft that says, after a text of letters and masks, the letters listed there, best first.

    After any other text it says q.
    """

    says: Mapping[str, str]

    def row(self, text: NDArray[np.int64], masks: int) -> NDArray[np.float32]:
        row = np.zeros(len(LETTERS), np.float32)
        said = self.says.get(spelled(text) + MASKS[:masks], "q")
        for rank, letter in enumerate(said):
            row[LETTERS.index(letter)] = 9 - rank
        return row


def spelled(tokens: Sequence[int] | NDArray[np.int64]) -> str:
    return "".join((LETTERS + MASKS)[token] for token in tokens)


def shown(fed: Fed) -> str:
    """What a pass was fed: new text, then of each branch what text it hangs from."""
    text = spelled(fed.text)
    branches = [f"{text[:place]}:{spelled(tokens)}" for place, tokens in fed.chains]
    return " | ".join([spelled(fed.new), *branches])


@dataclass
class Play:
    """What both models did: of each round the draft's passes before and beside the target's."""

    target: list[str] = field(default_factory=list)
    before: list[list[str]] = field(default_factory=list)
    beside: list[list[str]] = field(default_factory=list)
    metrics: Metrics | None = None


def play(
    script: str,
    says: Mapping[str, str],
    *,
    rounds: int,
    sources: Sequence[Source] = ("bonus", "runner-ups"),
    redraft: bool = True,
) -> Play:
    """After the prompt o the target says the letters of `script`; the first is the prompt's own."""
    target = speaking([LETTERS.index(letter) for letter in script], vocabulary=len(LETTERS))
    session, seen = Lettered(target, 64), Play()
    session.says = says
    with ExitStack() as stack:
        drafter = model_drafter(session, vocabulary=len(LETTERS), tokens_per_pass=3, runner_ups=1)
        worker = stack.enter_context(working(drafter, target))
        abreast, loop = Abreast(worker), current(worker).loop

        def meanwhile() -> None:
            seen.before.append([shown(fed) for fed in session.fed])
            session.fed.clear()
            wait_until(lambda: loop.texts_read == 1)
            abreast()
            seen.beside.append([shown(fed) for fed in session.fed])
            session.fed.clear()

        target.meanwhile = meanwhile
        strategy = Mirror(
            worker, num_draft_tokens=2, num_hypotheses=3, sources=sources, redraft=redraft
        )
        written = write(
            target, strategy, [LETTERS.index("o")], max_new_tokens=60,
            cancelled=lambda: len(target.proposals) > rounds,
        )  # fmt: skip
    seen.target = [spelled(tokens) for tokens in target.proposals]
    seen.metrics = written.metrics
    return seen


# p is the prompt's own token. The draft guesses d e after it, then s; x and y are runner-ups.
FIRST = {"op": "dx", "op1": "ey", "op12": "s"}
# Where y stands at the second place it has guessed r t and then u, with v and w as runner-ups.
SECOND = {"opdy": "rv", "opdy1": "tw", "opdy12": "u"}
THIRD = {"opdyw": "b", "opdyrz": "ga", "opdyrz1": "hc", "opdyrz12": "i"}


def test_a_hit_at_no_cost_and_a_miss_that_must_draft_first() -> None:
    seen = play("pdyrzgh", FIRST | SECOND | THIRD, rounds=3)
    # R1: nothing is known, so [p m1 m2] runs alone and gives d, e and what it says after them, s.
    assert seen.before[1] == ["p | op:12"]
    # R2: the target runs [p d e]; beside it one pass with what may follow: after d e stands s; in
    # the place of d there is x; in the place of e there is y.
    assert seen.target[1] == "de"
    assert seen.beside[1] == ["de | opde:s12 | op:x12 | opd:y12"]
    # The outcome is (d, y): a hit. The rollout r t is the next proposal, and no pass was due.
    assert seen.before[2] == []
    assert seen.target[2] == "rt"
    # R3: the draft's cache holds o p d, so y r t is new; hypotheses of that branch's own guesses,
    # the second place before the first, for there the last proposal broke.
    assert seen.beside[2] == ["yrt | opdyrt:u12 | opdyr:w12 | opdy:v12"]
    # The outcome is (r, z): a miss. [z m1 m2] must run first; its guesses are the next proposal.
    assert seen.before[3] == ["z | opdyrz:12"]
    assert seen.target[3] == "gh"
    assert seen.metrics is not None
    assert seen.metrics.hits == {"runner-ups": 1}
    assert seen.metrics.misses == {"bonus": 2, "runner-ups": 1}


def test_a_whole_acceptance_is_a_hit_where_the_draft_guessed_the_word_after_it() -> None:
    seen = play("pdesgh", FIRST | {"opdes": "g", "opdes1": "h"}, rounds=2)
    assert seen.target == ["", "de", "gh"]
    assert seen.before[2] == []
    assert seen.metrics is not None
    assert seen.metrics.hits == {"bonus": 1}


def test_masks_alone_serve_any_final_token() -> None:
    says = FIRST | {"op1": "ey", "opd1": "g", "opd12": "h"}
    seen = play("pdzgh", says, rounds=2, sources=["masks"])
    # The first place, the second and the one after the chain are left open.
    assert seen.beside[1] == ["pde | op:12 | opd:12 | opde:12"]
    assert seen.before[2] == []
    assert seen.target == ["", "de", "gh"]
    assert seen.metrics is not None
    assert seen.metrics.hits == {"masks": 1}


def test_a_miss_may_be_verified_bare_while_the_draft_works() -> None:
    says = FIRST | SECOND | {"opdyrz1": "g", "opdyrz12": "h"}
    seen = play("pdyrzagh", says, rounds=5, redraft=False)
    assert seen.target == ["", "", "es", "rt", "", "gh"]
    # No pass is ever waited for.
    assert seen.before[1:] == [[]] * 5
    # R1: nothing is known; the draft works on what follows p. It is d, as it says itself there.
    assert seen.beside[1] == ["p | op:12"]
    # R2 breaks at once, but by the runner-up y.
    assert seen.beside[2][0].startswith("des | ")
    # R3 ends with z, a miss, so R4 verifies z alone. Meanwhile the draft works on what follows it.
    assert seen.beside[4] == ["z | opdyrz:12"]
    # That is a, which it did not say; but masks stood behind that place, and they say g h.
    assert seen.metrics is not None
    assert seen.metrics.hits == {"bonus": 2, "runner-ups": 1}
    assert seen.metrics.misses == {"bonus": 2, "runner-ups": 1}
