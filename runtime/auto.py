"""The strategy that is never slower: every round is what the planner expects most of.

Alone, by prompt lookup, speculative or mirror, as the costs that were measured and the text so far
say. What it chooses changes speed, never text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from runtime.copying import Copies
from runtime.costs import UNREAD, drafting_rows, look_ahead_rows, rollout_rows
from runtime.drafter import Guess
from runtime.early_exit import EarlyExit
from runtime.hypotheses import USUAL_SOURCES, Hypothesis, Source
from runtime.metrics import Metrics
from runtime.planner import NOTHING as ALONE
from runtime.planner import Choice, Planner, Round
from runtime.sampling import Sampling
from runtime.strategy import NOTHING, Mirror
from runtime.timeline import busy
from runtime.trees import with_siblings
from runtime.verify import Outcome, Proposal
from runtime.worker import NO_DRAFT, Draft, DraftWorker

MOST_MATCHED = 8  # tokens of the text's end that stood before
NO_RANK = 99  # of a token that a guess does not name


@dataclass(slots=True)
class _Begun:
    """A round under way, of which the planner learns when its look-ahead is over.

    passes: how many the draft had made before it. matched: tokens at the text's end that stood
    before; copied: what followed them there. unused: the rollout at hand where it is not verified.
    is_shared: the draft read beside it. dropped: drafts before it. reading_s: what it read before
    took, while the target waited. drafted: rows of the passes before the target's run.
    """

    choice: Choice
    started: float
    passes: int
    matched: int
    copied: list[int]
    unused: Sequence[Guess] = ()
    is_shared: bool = False
    dropped: int = 0
    drafted: Sequence[int] = ()
    reading_s: float = 0.0
    proposal: Proposal = NOTHING
    block: tuple[int, ...] = ()
    ended: float = 0.0


class Auto(Mirror):
    """Asks the planner every round.

    Where draft and target need the same cores, the draft reads nothing until it is first wanted.
    """

    name = "auto"

    def __init__(
        self,
        worker: DraftWorker,
        planner: Planner,
        *,
        tokens_per_pass: int,
        in_turn: bool = False,
        most_copied: int = 8,
        sources: Sequence[Source] = USUAL_SOURCES,
        early_exit: EarlyExit | None = None,
    ) -> None:
        """Have `planner` choose; a pass of the draft of `worker` gives `tokens_per_pass` tokens.

        most_copied: tokens that prompt lookup copies, as many as the planner may choose.
        """
        super().__init__(
            worker, num_draft_tokens=1, num_hypotheses=0, sources=sources, early_exit=early_exit
        )
        self._planner = planner
        self._tokens_per_pass = tokens_per_pass
        self._in_turn = in_turn
        self._most_copied = most_copied
        self._is_warm = False

    def begin(self, prompt: NDArray[np.int64], sampling: Sampling, metrics: Metrics) -> None:
        """As the others; the planner begins a text too."""
        self._reads = self._reads_at_once
        super().begin(prompt, sampling, metrics)
        self._round: _Begun | None = None
        self._copies = Copies(MOST_MATCHED)
        self._copies.add(prompt.tolist())
        unread = 0 if self._reads else len(prompt)
        self._planner.begin(unread=unread, is_waited_for=self._in_turn)
        metrics.explain = self._planner.explain

    @property
    def _reads_at_once(self) -> bool:
        """Also where the draft is gone, for a fresh one starts only where one is told of a text."""
        is_wanted = not self._in_turn and self._planner.wants_draft
        return is_wanted or not self._worker.has_draft

    def propose(self, room: int) -> Proposal:
        """What the round that the planner chooses is to verify."""
        rollout = self._rollout()
        self._learn(rollout.hypothesis)
        matched, copied = self._copies.copied(self._most_copied)
        self._planner.draft_is(there=self._worker.has_draft)
        choice = self._planner.choose(room, matched, rollout=len(rollout.guesses))
        self._round = _Begun(
            choice,
            self._metrics.clock(),
            self._metrics.draft.passes,
            matched,
            copied,
            () if choice.source == "model" else rollout.guesses,
            self._reads and self._worker.is_reading,
            self._worker.dropped,
        )
        self._num_draft_tokens = choice.num_draft_tokens
        self._num_hypotheses = choice.num_hypotheses
        self._of_exit = choice.of_exit if self._early_exit is not None else 0
        self._guesses = ()
        if choice.source == "lookup":
            proposal = Proposal.chain(self._round.copied[: choice.num_draft_tokens])
        else:
            proposal = self._of_the_draft(self._round, rollout)
        self._round.proposal = proposal
        return proposal

    def observe(self, outcome: Outcome | None, block: tuple[int, ...]) -> None:
        """Note how the round ended."""
        if outcome is not None and self._round is not None:
            self._round.block, self._round.ended = block, self._metrics.clock()
        self._learn_breaks(outcome, block)
        self._text = np.append(self._text, block)
        self._copies.add(block)
        if self._reads:
            self._worker.commit(block)

    def _rollout(self) -> Draft:
        """The rollout of the outcome that came, where the draft looked ahead and is still there."""
        if not self._followed or not self._worker.ready():
            return NO_DRAFT
        with self._metrics.waiting():
            count = self._num_draft_tokens
            draft = self._worker.propose(count, count + 1, redraft=False)
        self._foreseen(draft)
        return draft

    def _of_the_draft(self, begun: _Begun, rollout: Draft) -> Proposal:
        """The rollout's guesses or new ones, where the round is to have any."""
        choice = begun.choice
        if choice.source == "model":
            self._guesses = rollout.guesses or self._draft(begun)
            is_there = len(self._guesses) > 0
        else:
            is_there = choice.num_hypotheses == 0 or self._has_read(begun)
        if not is_there:  # the draft reads still, or is gone
            begun.choice = ALONE
            self._num_hypotheses = self._of_exit = 0
        return with_siblings(self._guesses[: choice.num_draft_tokens], choice.siblings)

    def _has_read(self, begun: _Begun) -> bool:
        """Whether the draft can be asked; from now on it reads the text."""
        is_new = not self._reads
        if is_new:
            self._start(self._text)
            self._reads = True
        with self._metrics.waiting():
            if not (self._worker.wait_read() if self._in_turn else self._worker.ready()):
                begun.is_shared = begun.is_shared or self._worker.is_reading
                return False
            if is_new or not self._is_warm:
                # A short text is read only now, and the first pass of a shape binds its buffers.
                self._is_warm = True
                self._worker.propose(1)
        # All that is no part of such a round.
        now = self._metrics.clock()
        begun.reading_s, begun.started = now - begun.started, now
        begun.passes = self._metrics.draft.passes
        return True

    def _draft(self, begun: _Begun) -> Sequence[Guess]:
        """New guesses, waited for; none while the draft reads beside the target."""
        count = begun.choice.num_draft_tokens
        if not self._has_read(begun):
            return ()
        with self._metrics.waiting():
            has_next = self._num_hypotheses > 0
            begun.drafted = drafting_rows(
                count,
                self._tokens_per_pass,
                has_next=has_next,
                unread=1 if self._followed else UNREAD,
            )
            return self._worker.propose(count, count + has_next).guesses

    def _learn(self, hit: Hypothesis | None) -> None:
        """Tell the planner of the round before, and which of its hypotheses came true."""
        begun, self._round = self._round, None
        if begun is None or not begun.block:
            return
        metrics, choice, block = self._metrics, begun.choice, begun.block
        ahead: Sequence[int] = ()
        late: Sequence[int] = ()
        after: Sequence[int] = ()
        passes = metrics.draft.runs[begun.passes :]
        if self._followed:
            begun.ended = metrics.clock()
            ahead, late, after = self._looked_ahead(begun, [run.name for run in passes])
        run = metrics.target_runs[-1]
        draft_s = busy(passes)
        # Neither what a dropped draft did nor what it took says anything of a sound one.
        was_dropped = choice.source != "lookup" and self._worker.dropped > begun.dropped
        if was_dropped:
            choice = ALONE
        if was_dropped or not draft_s:
            begun.drafted = ahead = late = after = ()
        trunk = begun.proposal.tokens[: begun.proposal.trunk]
        accepted = _agreed(trunk, block[:-1])
        self._planner.learn(
            Round(
                choice,
                begun.ended - begun.started,
                run.end - run.start,
                nodes=len(begun.proposal),
                proposed=len(trunk),
                accepted=accepted,
                leaf=len(block) - 1 > accepted,
                rank=_rank(self._guesses, block, accepted),
                hit=hit is not None if self._followed and not was_dropped else None,
                by_exit=hit is not None and hit.source == "exit",
                match_length=begun.matched,
                draft_s=draft_s,
                is_shared=begun.is_shared or was_dropped,
                drafted=tuple(begun.drafted),
                ahead=tuple(ahead),
                late=tuple(late),
                after=tuple(after),
                reading_s=begun.reading_s,
            )
        )
        if choice.source != "lookup" and begun.copied:
            known = begun.copied[: len(block)]
            self._planner.learn_lookup(begun.matched, len(known), _agreed(known, block))
        if begun.unused and not was_dropped:
            known = [guess.token for guess in begun.unused[: len(block)]]
            accepted = _agreed(known, block)
            rank = _rank(begun.unused, block, accepted)
            self._planner.learn_guessed(len(known), accepted, rank)

    def _looked_ahead(
        self, begun: _Begun, passes: Sequence[str]
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Rows of the passes beside the target, of those that its exit fed, and after its run.

        passes: the names of all.
        """
        count, per_pass = begun.choice.num_draft_tokens, self._tokens_per_pass
        named = sum(each.source == "exit" for each in self._followed)
        own = len(self._followed) - named
        if not begun.proposal.tokens:
            rows = rollout_rows(count + 1, count + 2, per_pass)
        else:
            rows = look_ahead_rows(count, own, per_pass) if own else ()
        beside = passes.count("look ahead")
        # One of them was for what the exit named, unless the round was over before it.
        late = look_ahead_rows(count, named, per_pass)[:1] if named and beside > (own > 0) else ()
        later = len(passes) - beside - len(begun.drafted)
        last = drafting_rows(count, per_pass, has_next=True, unread=1)
        return rows[: beside - len(late)], late, last[len(last) - later :] if later > 0 else ()


def _agreed(tokens: Sequence[int], block: Sequence[int]) -> int:
    """How many tokens from the start are the same."""
    pairs = zip(tokens, block, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _rank(guesses: Sequence[Guess], block: Sequence[int], place: int) -> int | None:
    """The rank of what stands at `place` of `block` in the guess for it; None without either."""
    if place >= min(len(guesses), len(block)):
        return None
    named = (guesses[place].token, *guesses[place].runner_ups)
    return named.index(block[place]) if block[place] in named else NO_RANK
