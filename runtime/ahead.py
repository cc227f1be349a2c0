"""What a draft guessed in advance: rollouts after guessed outcomes, and the one that came true."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime.drafter import Guess, Start


@dataclass(slots=True)
class Branch:
    """A rollout that grows pass by pass; what a pass gave is looked at when it is needed."""

    start: Start
    guesses: list[Guess] = field(default_factory=list)
    _of_first_pass: int = 0
    _fresh: Callable[[], Sequence[Guess]] | None = None

    def grow(self, found: Callable[[], Sequence[Guess]]) -> None:
        """A pass gave `found`."""
        self._fresh = found

    def look(self) -> int:
        """Make the guesses of the last pass; how many they are."""
        found = self._fresh() if self._fresh is not None else ()
        self._fresh = None
        self._of_first_pass = self._of_first_pass or len(found)
        self.guesses += found
        return len(found)

    def missing(self, count: int) -> int:
        """How many guesses it has yet to get; those not looked at do not count."""
        return count - len(self.guesses)

    def after(self, further: Sequence[int]) -> list[Guess]:
        """What it guessed after `further` tokens that followed its start; none if it erred."""
        tokens = [guess.token for guess in self.guesses[: len(further)]]
        known = self.guesses
        if not self.start.tokens:
            if not further:
                return []
            if tokens[:1] != further[:1]:
                # Its first pass had masks after the open place, so what they say holds for any.
                known = known[: self._of_first_pass]
                tokens[:1] = further[:1]
        return known[len(further) :] if tokens == list(further) else []

    @property
    def frontier(self) -> Start:
        """Where its next guess belongs."""
        tokens = (guess.token for guess in self.guesses)
        return Start(self.start.place, (*self.start.tokens, *tokens))


class Ahead:
    """The rollouts of one round, in which a chain behind `base` committed tokens is verified."""

    def __init__(self, base: int, chain: Sequence[int], starts: Sequence[Start]) -> None:
        """Nothing is guessed yet; the starts are places in the text with the chain behind it."""
        self.base = base
        self.branches = [Branch(start) for start in starts]
        self._chain = tuple(chain)

    def take(self, block: Sequence[int]) -> tuple[int, list[Guess]] | None:
        """The number of the branch that foresaw `block`, committed since, and what it guessed next.

        None on a miss. A branch that names the token after the accepted ones goes before one that
        leaves it open.
        """
        for named in (True, False):
            for number, branch in enumerate(self.branches):
                if bool(branch.start.tokens) is named:
                    left = self._left(branch, tuple(block))
                    if left:
                        return number, left
        return None

    def _left(self, branch: Branch, block: tuple[int, ...]) -> list[Guess]:
        """The branch's guesses after `block`; none where it does not lead there."""
        accepted = branch.start.place - self.base
        known = (*self._chain[:accepted], *branch.start.tokens)
        if block[: len(known)] != known:
            return []
        branch.look()
        return branch.after(block[len(known) :])
