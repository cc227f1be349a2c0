"""What calls and rounds really take: costs that follow devices, which grow hot and are shared."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from runtime.costs import Costs, Curve, Span, draft_s, together

YOUNG = 4  # calls after which a device's scale is known
FOLLOWING = 0.1  # what a new observation weighs in the course of a device, after the first few
LARGEST_STEP = 0.5  # in logarithms; a pause of the machine is no course
LARGEST_RATIO = 1e12  # to what was expected, and 1 / it: a clock may stand still, or leap


def steady(seen: int) -> float:
    """What the next observation weighs in a running mean of `seen` before it."""
    return max(FOLLOWING, 1 / (1 + seen))


def logarithm(ratio: float) -> float:
    """Of a ratio of times, whatever a clock made of it."""
    return math.log(min(LARGEST_RATIO, max(1 / LARGEST_RATIO, ratio)))


class Ratio:
    """How much longer something takes than was expected, as it goes; 1 before the first time."""

    def __init__(self) -> None:
        self._seen, self._logarithm = 0, 0.0

    @property
    def factor(self) -> float:
        """What to multiply the expected time by."""
        return math.exp(self._logarithm)

    def learn(self, factor: float) -> None:
        """It took `factor` times what was expected."""
        step = min(LARGEST_STEP, max(-LARGEST_STEP, logarithm(factor) - self._logarithm))
        self._logarithm += step * steady(1 + self._seen)
        self._seen += 1


class Course:
    """How long calls really take, as a multiple of a curve: by their width, and as the device goes.

    A width's first calls tell how far the curve is off there; later ones how the device as a whole
    has changed since. Calls beside those of another device are told apart: what these take longer
    says nothing of the others.
    """

    def __init__(self) -> None:
        self.calls = self.calls_beside = 0
        self._common = 0.0  # logarithms of ratios
        self._own: tuple[dict[int, float], dict[int, float]] = ({}, {})  # alone, beside
        self._seen: Counter[tuple[int, bool]] = Counter()

    @property
    def scale(self) -> float:
        """What all widths have in common: 1 before the first call."""
        return math.exp(self._common)

    def learn(self, rows: int, ratio: float, *, is_beside: bool) -> None:
        """Calls of `rows` rows took `ratio` times what the curve says."""
        own = self._own_at([rows], is_beside=is_beside)[0]
        seen = self._seen[rows, is_beside]
        step = logarithm(ratio) - self._common - own
        if self.calls == 0:
            self._common, step = step, 0.0
        step = min(LARGEST_STEP, max(-LARGEST_STEP, step))
        self._common += step * steady(self.calls) * seen / (1 + seen)
        self._own[is_beside][rows] = own + step / (1.5 + seen * seen / 2)
        self._seen[rows, is_beside] += 1
        self.calls += 1
        self.calls_beside += is_beside

    def follow(self, curve: Curve, *, is_beside: bool = False) -> Curve:
        """The curve as calls are now."""
        if not self.calls:
            return curve
        rows = sorted({*curve.rows, *self._own[is_beside]})
        pairs = zip(rows, self._own_at(rows, is_beside=is_beside), strict=True)
        seconds = [curve(each) * math.exp(self._common + own) for each, own in pairs]
        return Curve(tuple(rows), tuple(seconds))

    def _own_at(self, rows: Sequence[int], *, is_beside: bool) -> list[float]:
        """What is known of each width; of calls of one sort, where there were none of the other."""
        known = self._own[is_beside] or self._own[not is_beside] or {1: 0.0}
        widths = sorted(known)
        return np.interp(rows, widths, [known[each] for each in widths]).tolist()


class Following:
    """Costs as rounds show them, alone and beside each other, and whole rounds by their kind."""

    def __init__(self, costs: Costs) -> None:
        """Begin with `costs`; only their proportions count, as the first calls give the scale."""
        self.alone = self.beside = self._base = costs
        self._target, self._draft = Course(), Course()
        self._ratios: dict[str, Ratio] = {}

    @property
    def hoped(self) -> Costs:
        """Beside each other at best: neither slows the other down, until that guess is tested."""
        if not self._base.is_guess or self._target.calls_beside >= YOUNG:
            return self.beside
        return replace(self.alone, target_slowdown=1.0, draft_slowdown=1.0)

    def ratio(self, kind: str) -> float:
        """How much longer rounds of a kind take than their calls let expect."""
        return self._ratios[kind].factor if kind in self._ratios else 1.0

    def learn(
        self,
        kind: str,
        *,
        rows: int,
        target_s: float,
        drafted: Sequence[int],
        ahead: Sequence[int],
        draft_seconds: float,
        seconds: float,
        late: Sequence[int] = (),
        has_exit: bool = False,
    ) -> None:
        """A round of `kind` took `seconds`, and in it a target's run of `rows` rows `target_s`.

        drafted, ahead: rows of the draft's passes alone and beside that run; late: of those beside
        it that its exit fed; draft_seconds: of them all. has_exit: its exit was read.
        """
        is_beside = bool(ahead or late)
        now = self.beside if is_beside else self.alone
        span = _span(now, rows, ahead, late, has_exit=has_exit)
        alone_s = target_s * now.target(rows) / span.target_s
        self._target.learn(rows, alone_s / self._base.target(rows), is_beside=is_beside)
        if passes := (*drafted, *ahead, *late):
            due = draft_s(self.alone, drafted) + _span(now, rows, (*ahead, *late), ()).draft_s
            alone_s = draft_seconds * draft_s(now, passes) / due
            ratio = alone_s / draft_s(self._base, passes)
            self._draft.learn(max(passes), ratio, is_beside=is_beside)
        if min(self._target.calls, self._draft.calls) <= YOUNG:
            self.follow()  # the first calls may say that all is of another scale
        now = self.beside if is_beside else self.alone
        span = _span(now, rows, ahead, late, has_exit=has_exit)
        due = draft_s(self.alone, drafted) + span.seconds + now.overhead_s
        due += (bool(drafted) + is_beside) * now.handing_over_s
        self._ratios.setdefault(kind, Ratio()).learn(seconds / due)

    def follow(self) -> None:
        """Take the costs to be what calls have shown."""
        self.alone = self._followed(is_beside=False)
        self.beside = self._followed(is_beside=True)

    def _followed(self, *, is_beside: bool) -> Costs:
        draft = self._draft.follow(self._base.draft, is_beside=is_beside)
        if not self._draft.calls:  # as far as is known, the whole machine is slower or faster
            scale = self._target.scale
            draft = Curve(draft.rows, tuple(scale * seconds for seconds in draft.seconds))
        target = self._target.follow(self._base.target, is_beside=is_beside)
        exit_s = self._target.scale * self._base.exit_s
        return replace(self._base, target=target, draft=draft, exit_s=exit_s)


def _span(
    now: Costs, rows: int, ahead: Sequence[int], late: Sequence[int], *, has_exit: bool = False
) -> Span:
    """A target's run of `rows` rows and passes beside it."""
    late_s = draft_s(now, late)
    return together(now, now.target(rows), draft_s(now, ahead), late_s=late_s, has_exit=has_exit)
