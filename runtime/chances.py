"""What estimates say of the model's proposals at one moment, worked out once for all ways."""

from itertools import accumulate
from operator import mul

from runtime.estimates import Estimates


class Chances:
    """Of proposals of every length: tokens, what leaves add, how likely hypotheses come true."""

    def __init__(self, estimates: Estimates, most: int, deviations: float = 0.0) -> None:
        """Proposals of up to `most` tokens; acceptance: `deviations` above what is expected."""
        self.acceptance = estimates.model(most, deviations)
        self._by_rank = estimates.by_rank()
        self.wholes = list(accumulate(self.acceptance, mul, initial=1.0))  # by length: all stand
        self._tokens = list(accumulate(self.wholes))
        self._leaves: list[list[float]] = [[]]  # by length: of each leaf, likeliest first
        for reached, chance in zip(self.wholes, self.acceptance, strict=False):
            more = [reached * (1 - chance) * of for of in self._by_rank]
            self._leaves.append(sorted(self._leaves[-1] + more, reverse=True))

    def gain(self, length: int, siblings: int) -> float:
        """Tokens that so many leaves add."""
        return sum(self._leaves[length][:siblings])

    def tokens(self, length: int, siblings: int = 0) -> float:
        """Tokens that a round settles: those accepted, a leaf, and the final one."""
        return self._tokens[length] + self.gain(length, siblings)

    def hit_rate(self, length: int, siblings: int, hypotheses: int, *, any_next: bool) -> float:
        """The chance that the outcome is among the likeliest hypotheses, leaves aside.

        any_next: one holds for whatever stands after the whole proposal.
        """
        whole, after = self.wholes[length], 1.0 if any_next else self.acceptance[length]
        found = self._leaves[length][siblings:]
        found.append(whole * after)
        found += [whole * (1 - after) * of for of in self._by_rank]
        found.sort(reverse=True)
        return sum(found[:hypotheses])
