"""Training: the student learns the target's next-token distribution, a step at a time.

All learn by AdamW, or matrices by Muon (Jordan et al. 2024); the rate rises, holds, and falls to a
twentieth over the last part of the budget. All that a step needs is in a checkpoint, written now
and then and when the work is interrupted, so that the same command goes on where it stopped.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from export.distill import kept
from export.distill.batches import Batch, batch, shuffled
from export.distill.corpus import Record
from export.distill.decoder import Decoder
from export.distill.loss import distance
from export.distill.settings import Settings
from runtime.errors import BuildError

WARM_UP = 20  # steps
DECAY = 0.4  # the share of the budget over which the rate falls
PROGRESS_S = 20.0
CHECKPOINT_S = 300.0
STEADINESS = 0.95  # of the running means that are told and that weigh the places


@dataclass(slots=True)
class State:
    """How far the training is, and running means: of the loss, and of agreement place by place."""

    step: int = 0
    tokens: int = 0
    epoch: int = 0
    used: int = 0  # batches of this epoch
    loss: float = 0.0
    agreement: list[float] = field(default_factory=list)


class Trainer:
    """A student, its optimizers and how far it is."""

    def __init__(
        self,
        student: Decoder,
        records: Sequence[Record],
        states: Tensor,
        head_tokens: Tensor,
        settings: Settings,
    ) -> None:
        """Train `student` on `records`, whose target states [all tokens, hidden] are `states`.

        head_tokens [n] int64: the short list. Raises BuildError for no text, or other states.
        """
        self.student, self.head_tokens, self.settings = student, head_tokens, settings
        self.state = State(agreement=[0.5] * (1 + len(student.masks)))
        self.whole = True  # between two steps: a checkpoint would go on as if nothing had been
        self._records, self._states = records, states
        self._offsets = np.concatenate([[0], np.cumsum([len(each.tokens) for each in records])])
        if not records:
            raise BuildError("There is no text to train on.")
        due = (int(self._offsets[-1]), student.geometry.hidden)
        if states.shape != due:
            raise BuildError(
                f"The target's states are {list(states.shape)}, and the text needs {list(due)}: "
                "remove the folder states, which is of another corpus."
            )
        self._device = student.embedding.device
        self._head = student.head(head_tokens)
        self._optimizers = _optimizers(student, settings)

    @property
    def done(self) -> bool:
        """Whether the budget is used up."""
        return self.state.tokens >= self.settings.tokens

    def steps(self) -> Iterator[State]:
        """Train on, giving the state after each step, until the budget is used up."""
        while True:
            order = shuffled(
                self._records,
                self.settings.batch_tokens,
                seed=self.settings.seed + self.state.epoch,
            )
            for number, indices in enumerate(order):
                if self.done:
                    return
                if number >= self.state.used:
                    self._step(indices.tolist())
                    yield self.state
            self.state.epoch, self.state.used = self.state.epoch + 1, 0

    def save(self, path: Path) -> None:
        """Write a checkpoint; an interruption leaves the one before."""
        content = {
            "settings": asdict(self.settings),
            "state": asdict(self.state),
            "student": self.student.state_dict(),
            "optimizers": [each.state_dict() for each in self._optimizers],
        }
        kept.save(path, content)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint, whatever its budget was; BuildError for another student's."""
        found = kept.load(path, self._device)
        try:
            self.student.load_state_dict(found["student"])
            for optimizer, state in zip(self._optimizers, found["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.state = State(**found["state"])
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            what = " ".join(str(error).split())
            raise BuildError(
                f"{path} is of another student: {what:.200}. Remove it to begin anew."
            ) from error

    def _step(self, indices: Sequence[int]) -> None:
        state, settings = self.state, self.settings
        random = np.random.default_rng([settings.seed, state.step])
        made = batch(
            [self._records[index] for index in indices],
            [int(self._offsets[index]) for index in indices],
            vocabulary=len(self.student.embedding),
            masks=self._masks(),
            blocks=settings.blocks,
            random=random,
        ).to(self._device)
        hidden = self.student(made.rows).flatten(0, 1)[made.chosen]
        aims = self._states[made.wanted.cpu()].to(self._device)
        weights = made.weights * self._worth(made)
        weights = weights / weights.sum()
        loss = distance(hidden, aims, weights, self._head, aim=settings.aim)
        if not torch.isfinite(loss):
            raise BuildError(
                f"The loss is {loss.item()} after {state.step} steps: train in another folder, "
                f"at a lower --rate than {settings.rate:g}."
            )
        loss.backward()
        self.whole = False
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * self._pace()
            optimizer.step()
            optimizer.zero_grad()
        self._learn(made, hidden.detach(), aims, loss.item())
        state.step, state.used = state.step + 1, state.used + 1
        state.tokens += made.tokens
        self.whole = True

    def _masks(self) -> int:
        """How many masks are tried now; none at first, when text teaches more for the time."""
        started = self.state.tokens >= self.settings.masks_from * self.settings.tokens
        return len(self.student.masks) if started else 0

    def _worth(self, made: Batch) -> Tensor:
        """What each row adds to the accepted length: how often its place is reached [n].

        Rows of real tokens stand for the first place; a mask's for as often as all places before
        it agree, by the running means, times the setting.
        """
        reached = np.cumprod([1.0, *self.state.agreement[:-1]])
        reached[1:] *= self.settings.mask_weight
        return torch.tensor(reached, dtype=torch.float32, device=self._device)[made.place]

    def _pace(self) -> float:
        """The share of the peak rate that is due now."""
        left = 1 - self.state.tokens / self.settings.tokens
        return min(1.0, (self.state.step + 1) / WARM_UP, max(left, 0.02) / DECAY)

    def _learn(self, made: Batch, hidden: Tensor, aims: Tensor, loss: float) -> None:
        """Update the running means from some of the rows."""
        state = self.state
        state.loss = loss if not state.step else _mean(state.loss, loss)
        for place in range(len(state.agreement)):
            rows = torch.nonzero((made.place == place) & (made.weights == 1))[:256, 0]
            if len(rows):
                own, target = (each[rows] @ self._head.T for each in (hidden, aims))
                share = (own.argmax(-1) == target.argmax(-1)).float().mean().item()
                state.agreement[place] = _mean(state.agreement[place], share)


def _optimizers(student: Decoder, settings: Settings) -> list[torch.optim.Optimizer]:
    """What learns the student's parameters: AdamW, and Muon for the layers' matrices if asked."""
    named = dict(student.named_parameters())
    matrices = [
        name
        for name, each in named.items()
        if settings.optimizer == "muon" and name.startswith("layers.") and each.ndim == 2
    ]
    others = [each for name, each in named.items() if name not in matrices]
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    ]
    if matrices:
        made.append(
            torch.optim.Muon(
                [named[name] for name in matrices],
                lr=settings.rate,
                weight_decay=0.0,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return made


def _mean(before: float, now: float) -> float:
    return STEADINESS * before + (1 - STEADINESS) * now


def train(
    trainer: Trainer,
    checkpoint: Path,
    *,
    minutes: float | None,
    progress: Callable[[str], None],
) -> None:
    """Train until the budget, or so many minutes, are used up, keeping checkpoints.

    An interruption keeps one too, or, in the midst of a step, the one before.
    """
    if checkpoint.exists():
        trainer.load(checkpoint)
        progress(f"going on after {trainer.state.tokens} tokens")
    started = told = saved = time.monotonic()
    before = trainer.state.tokens
    try:
        for state in trainer.steps():
            now = time.monotonic()
            if now - told > PROGRESS_S or trainer.done:
                told = now
                progress(
                    _line(state, trainer.settings.tokens, (state.tokens - before) / (now - started))
                )
            if now - saved > CHECKPOINT_S:
                saved = now
                trainer.save(checkpoint)
            if minutes is not None and now - started > minutes * 60:
                break
    finally:
        if trainer.whole:
            trainer.save(checkpoint)


def _line(state: State, budget: int, speed: float) -> str:
    places = " ".join(f"{share:.3f}" for share in state.agreement)
    left = max(0, budget - state.tokens) / max(speed, 1e-9) / 60
    return (
        f"step {state.step}, {state.tokens / 1e6:.3f} M tokens: loss {state.loss:.3f}, agreement "
        f"{places}; {speed:.0f} tokens/s, {left:.0f} min left"
    )


def counted(records: Sequence[Record], vocabulary: int) -> Any:
    """How often each token stands in an answer, and half that for prompts, [vocabulary] float64."""
    counts = np.zeros(vocabulary)
    for record in records:
        counts += np.bincount(record.tokens[record.start :], minlength=vocabulary)
        counts += np.bincount(record.tokens[: record.start], minlength=vocabulary) / 2
    return counts
