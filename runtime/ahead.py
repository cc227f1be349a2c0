"""What a draft guessed in advance: rollouts after guessed outcomes, and the one that came true."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.drafter import Guess, Rollout, Start


@dataclass(slots=True)
class Branch:
    """A rollout that grows pass by pass; what a pass gave is looked at when it is needed.

    It is finished with `least` guesses; its last pass may give more, up to `most`.
    """

    start: Start
    least: int
    most: int
    guesses: list[Guess] = field(default_factory=list)
    _of_first_pass: int = 0
    _fresh: Rollout | None = None

    def grow(self, found: Rollout) -> None:
        """A pass gave `found`."""
        self._fresh = found

    def look(self) -> int:
        """Make the guesses of the last pass; how many they are."""
        found = self._fresh() if self._fresh is not None else ()
        self._fresh = None
        self._of_first_pass = self._of_first_pass or len(found)
        self.guesses += found
        return len(found)

    @property
    def unfinished(self) -> bool:
        """Whether a further pass is due, those that were not looked at aside."""
        return len(self.guesses) < self.least

    @property
    def room(self) -> int:
        """How many guesses a further pass may give."""
        return self.most - len(self.guesses)

    def after(self, further: Sequence[int]) -> list[Guess] | None:
        """What it guesses after `further` tokens behind its start; None where it leads elsewhere.

        Its first pass decides that, so it never matters for how many more there was time; nor where
        their guesses would begin, so they count only after the one place that may have been open.
        """
        first = self.guesses[: self._of_first_pass]
        tokens, wanted = [guess.token for guess in first[: len(further)]], list(further)
        is_open = not self.start.tokens
        if first and tokens == wanted:
            return (self.guesses if len(wanted) <= is_open else first)[len(wanted) :]
        if is_open and len(tokens) == len(wanted) and tokens[1:] == wanted[1:]:
            # There were masks after the open place, so what they say holds for any token there.
            return first[len(wanted) :] or None
        return None

    @property
    def frontier(self) -> Start:
        """Where its next guess belongs."""
        tokens = (guess.token for guess in self.guesses)
        return Start(self.start.place, (*self.start.tokens, *tokens))


class Ahead:
    """The rollouts of one round, in which a chain behind `base` committed tokens is verified."""

    def __init__(self, base: int, chain: Sequence[int], branches: Sequence[Branch]) -> None:
        """The branches start at places in the text with the chain behind it."""
        self.base = base
        self.branches = list(branches)
        self.chain = tuple(chain)

    def take(self, block: Sequence[int]) -> tuple[int, list[Guess]] | None:
        """The number of the branch that foresaw `block`, committed since, and what it guessed next.

        None on a miss. A branch that names the token after the accepted ones goes before one that
        leaves it open.
        """
        for named in (True, False):
            for number, branch in enumerate(self.branches):
                if bool(branch.start.tokens) is named:
                    left = self._left(branch, tuple(block))
                    if left is not None:
                        return number, left
        return None

    def _left(self, branch: Branch, block: tuple[int, ...]) -> list[Guess] | None:
        """The branch's guesses after `block`; None where it does not lead there."""
        accepted = branch.start.place - self.base
        known = (*self.chain[:accepted], *branch.start.tokens)
        if block[: len(known)] != known:
            return None
        branch.look()
        return branch.after(block[len(known) :])
