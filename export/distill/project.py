"""One distillation from beginning to end: a folder in which every finished stage stays.

settings.json   what was asked for; the same folder goes on with these only, but for --tokens
corpus/         the target's answers to the training prompts, a file a group
held-out.npz    its greedy answers to the held-out prompts
states/         its last states at every place of the corpus
layers.json     the target's layers that the student began as
checkpoint.pt   the student, the optimizers and how far they are
draft.safetensors, lenses.safetensors
evaluation.json what the student agreed on with the target, by kind of held-out prompt
lenses.json     how often the lenses read off the target's token, beside the plain layers
log.txt         all that was said
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from export import draft_file
from export.distill import answers, corpus, kept, prompts, teacher
from export.distill.checks import check_records, check_settings
from export.distill.corpus import Record
from export.distill.decoder import Decoder, most_used
from export.distill.evaluate import EXIT_TOPS, agreement, lens_agreement
from export.distill.lens import train_lenses
from export.distill.pruning import best_layers
from export.distill.settings import Settings
from export.distill.student import as_array, as_model, begin_as
from export.distill.training import Trainer, counted, train
from export.distill.weights import read_target
from export.model import Model
from runtime.bundle_files import file_sha256
from runtime.errors import BuildError, UsageError
from runtime.heartbeat import heartbeat
from runtime.manifest import Manifest
from runtime.prompts import load_prompts, prompt_folder, select_prompts

FORTY = "forty"  # the set of prompts that only tests use
ALL = "all"
HELD_OUT_TOKENS = 128
ALIVE_S = 20.0  # between signs of life while answers are written
PRUNING_TOKENS = 2048  # on which layers are compared


class Project:
    """The stages of one distillation, each left out where its result is there."""

    def __init__(
        self,
        bundle: Path,
        out: Path,
        settings: Settings,
        *,
        corpus: Path | None,
        initial: Path | None,
        device: str,
        workers: int,
        say: Callable[[str], None],
    ) -> None:
        """Work on the target of `bundle` in the folder `out`.

        corpus: a folder of answers to train on; None to have the target write them. initial: the
        file of a draft to begin as. device: torch's name of where to train; workers: processes that
        write answers. Raises UsageError where `out` holds another distillation, and for settings
        that the target cannot have; BundleError and BuildError as `read_target`.
        """
        self._bundle, self._out, self._settings = bundle, out, settings
        self._source = Manifest.load(bundle).source
        self._initial = initial
        self._corpus = corpus or out / "corpus"
        self._given = corpus is not None
        self._device, self._workers = torch.device(device), workers
        self._say = say
        self._target: Model = read_target(bundle)
        if initial is None:
            self._beginning, self._origins = self._target, [*range(self._target.geometry.layers)]
            usual = max(1, len(self._origins) // 2)
        else:
            self._beginning = draft_file.load(
                initial, self._target, target_sha256=self._source.sha256
            )
            self._origins = draft_file.began_as(initial)
            usual = len(self._origins)
        self._depth = settings.depth or usual
        check_settings(settings, self._target.geometry, self._origins)
        out.mkdir(parents=True, exist_ok=True)
        self._check_folder()

    def run(self, *, minutes: float | None = None) -> Path:
        """All stages; the path of the draft file. minutes: of training, at most, this time."""
        self.write_answers()
        records = list(corpus.load(self.corpus_files()))
        check_records(records, self._target.geometry, self._corpus)
        self.hold_out()
        states = self.keep_states()
        trainer = self.trainer(records, states)
        train(trainer, self._place("checkpoint.pt"), minutes=minutes, progress=self.tell)
        path = self._place("draft.safetensors")
        self.save_draft(trainer, path)
        self.evaluate(trainer)
        self.train_lenses(records, trainer.head_tokens)
        return path

    def write_answers(self) -> None:
        """Training prompts, where no answers were given, answered by the target."""
        if self._given:
            return
        settings = self._settings
        known = load_prompts(*sorted(prompt_folder().glob("*.jsonl")))
        drawn = prompts.draw(
            prompts.templates(),
            settings.prompts,
            seed=settings.seed,
            held_out=[turn for each in known for turn in each.turns],
        )
        self.tell(f"{len(drawn)} prompts, and {settings.begun} conversations for it to begin")
        self._corpus.mkdir(exist_ok=True)
        groups = answers.groups(drawn, settings.begun, self._corpus, seed=settings.seed)
        self._write("answer the training prompts", groups, settings.max_new_tokens)

    def hold_out(self) -> None:
        """Held-out prompts, from each kind in turn, answered by the target."""
        sets = [path for path in sorted(prompt_folder().glob("*.jsonl")) if path.stem != FORTY]
        chosen = select_prompts(load_prompts(*sets), limit=self._settings.held_out)
        asked = [prompts.Prompt(each.category, each.turns) for each in chosen]
        seed = self._settings.seed
        group = answers.Wanted(self._place("held-out.npz"), asked, 0, seed, (0.0,))
        self._write(f"answer {len(asked)} held-out prompts", [group], HELD_OUT_TOKENS)
        check_records(list(corpus.load([group.path])), self._target.geometry, group.path)

    def _write(self, what: str, groups: Sequence[answers.Wanted], most: int) -> None:
        """Answers of at most `most` tokens, with a sign of life now and then."""
        with heartbeat(what, self.tell, every_s=ALIVE_S):
            answers.write(
                self._bundle,
                groups,
                precision=self._settings.precision,
                context=self._settings.context,
                max_new_tokens=most,
                workers=max(1, min(self._workers, len(groups))),
                progress=self.tell,
            )

    def keep_states(self) -> Tensor:
        """The target's states at every place of the corpus, [tokens, hidden] bfloat16."""
        folder = self._place("states", folder=True)
        files = self.corpus_files()
        paths = [teacher.states_file(file, folder) for file in files]
        if not all(path.exists() for path in paths):
            teacher.keep_states(self._decoder(self._target), files, folder, self.tell)
        return torch.cat([self._states(path) for path in paths])

    def _states(self, path: Path) -> Tensor:
        states = kept.load(path)
        sound = isinstance(states, Tensor) and states.ndim == 2
        if not sound or states.dtype != torch.bfloat16:
            raise BuildError(f"{path} holds no states. Remove it, and give the same command again.")
        found: Tensor = states
        return found

    def trainer(self, records: Sequence[Record], states: Tensor) -> Trainer:
        """A student that begins as some layers of its beginning, ready to train."""
        settings = self._settings
        counts = counted(records, self._target.geometry.vocabulary)
        head_tokens = torch.from_numpy(most_used(counts, settings.head_width))
        masks = settings.tokens_per_pass - 1
        return Trainer(
            begin_as(self._beginning, self._layers(records, head_tokens), masks=masks).to(
                self._device
            ),
            records,
            states,
            head_tokens,
            settings,
        )

    def _layers(self, records: Sequence[Record], head_tokens: Tensor) -> list[int]:
        """The layers of its beginning that the student takes: those asked for, or the best found.

        layers.json names them by the layers of the target that they began as.
        """
        path = self._place("layers.json")
        if not path.exists():
            layers = list(self._settings.layers or self._origins)
            if not self._settings.layers and self._depth < len(self._origins):
                places = best_layers(
                    self._decoder(self._beginning),
                    _sample(records, PRUNING_TOKENS),
                    head_tokens,
                    self._depth,
                    self.tell,
                )
                layers = [self._origins[place] for place in places]
            self._keep(path.name, layers)
        found = self._kept_layers()
        return [self._origins.index(layer) for layer in found]

    def _kept_layers(self) -> list[int]:
        """What layers.json names; BuildError where that cannot be of this distillation."""
        path = self._place("layers.json")
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        asked = self._settings.layers
        due = [layer for layer in self._origins if isinstance(found, list) and layer in found]
        if found != due or (list(asked) != due if asked else len(due) != self._depth):
            raise BuildError(
                f"{path} is not of this distillation. Remove it, and give the same command again."
            )
        return due

    def save_draft(self, trainer: Trainer, path: Path) -> None:
        """The student as a draft file, which the export builds into bundles."""
        settings = self._settings
        draft_file.save(
            path,
            as_model(trainer.student, self._target, trainer.head_tokens),
            self._target,
            self._kept_layers(),
            target_sha256=self._source.sha256,
            notes={
                "licence": self._source.licence,
                "trained_tokens": str(trainer.state.tokens),
                "settings": json.dumps(asdict(settings)),
            },
        )
        self.tell(f"{path}: {path.stat().st_size / 1e6:.1f} MB")

    def evaluate(self, trainer: Trainer) -> None:
        """Agreement with the target's greedy answers to held-out prompts, by kind."""
        found: dict[str, object] = {}
        records = list(corpus.load([self._place("held-out.npz")]))
        for kind in (*sorted({record.template for record in records}), ALL):
            own = [record for record in records if kind in (record.template, ALL)]
            shares = agreement(trainer.student, own, trainer.head_tokens)
            found[kind] = asdict(shares)
            places = " ".join(f"{share:.3f}" for share in shares.first)
            self.tell(
                f"{kind}: agreement {places}, among the first five {shares.among_five[0]:.3f}"
            )
        self._keep("evaluation.json", found)

    def train_lenses(self, records: Sequence[Record], head_tokens: Tensor) -> None:
        """Tuned lenses of the target's early exit, if any are asked for."""
        path = self._place("lenses.safetensors")
        if not self._settings.lenses or path.exists():
            return
        teacher = self._decoder(self._target)
        lenses = train_lenses(
            teacher,
            _sample(records, self._settings.lens_tokens),
            self._settings.lenses,
            head_tokens,
            batch_tokens=self._settings.batch_tokens,
            progress=self.tell,
        )
        self._evaluate_lenses(teacher, lenses, head_tokens)
        half = self._place(f"half-{path.name}")
        save_file(
            {f"layer.{layer}": as_array(lens).astype(np.float16) for layer, lens in lenses.items()},
            half,
            {"target_sha256": self._source.sha256, "licence": self._source.licence},
        )
        half.replace(path)

    def _evaluate_lenses(
        self, teacher: Decoder, lenses: Mapping[int, Tensor], head_tokens: Tensor
    ) -> None:
        """How often a lens reads off the token that the whole target wrote, beside no lens."""
        records = list(corpus.load([self._place("held-out.npz")]))
        plain = {layer: torch.eye(len(lens), device=lens.device) for layer, lens in lenses.items()}
        found = {
            name: lens_agreement(teacher, of, records, head_tokens)
            for name, of in (("tuned", lenses), ("plain", plain))
        }
        for layer in lenses:
            told = [
                f"{name} {' '.join(f'{share:.3f}' for share in shares[layer])}"
                for name, shares in found.items()
            ]
            tops = ", ".join(map(str, EXIT_TOPS))
            self.tell(f"after {layer} layers, among the first {tops}: {'; '.join(told)}")
        self._keep("lenses.json", found)

    def corpus_files(self) -> list[Path]:
        """The files of answers there are, in their order."""
        return sorted(self._corpus.glob("answers-*.npz"))

    def tell(self, line: str) -> None:
        """Say a line, and keep it."""
        self._say(line)
        with self._place("log.txt").open("a", encoding="utf-8") as stream:
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def _decoder(self, model: Model) -> Decoder:
        return Decoder(model, range(model.geometry.layers)).eval().to(self._device)

    def _keep(self, name: str, value: object) -> None:
        """Write JSON; an interruption leaves the file before."""
        half = self._place(f"half-{name}")
        half.write_text(json.dumps(value, indent=2), encoding="utf-8")
        half.replace(self._place(name))

    def _place(self, name: str, *, folder: bool = False) -> Path:
        path = self._out / name
        if folder:
            path.mkdir(exist_ok=True)
        return path

    def _check_folder(self) -> None:
        path = self._place("settings.json")
        asked = json.loads(json.dumps(asdict(self._settings)))
        asked["target_sha256"] = self._source.sha256
        asked["from"] = None if self._initial is None else file_sha256(self._initial)
        if not path.exists():
            self._keep(path.name, asked)
            return
        try:
            known = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise UsageError(f"{path} cannot be read: {error}. Name another folder.") from error
        free = ("tokens",)  # a longer training goes on from the shorter one
        if known.keys() != asked.keys():
            raise UsageError(
                f"{path} is of another version of this program, or of none: name another folder."
            )
        for name in sorted(asked.keys() - {*free}):
            if known[name] != asked[name]:
                raise UsageError(
                    f"{self._out} holds a distillation with {name} {known[name]!r}, not "
                    f"{asked[name]!r}: give the same settings, or name another folder."
                )


def _sample(records: Sequence[Record], tokens: int) -> list[Record]:
    """Records from all over the corpus, about so many tokens together."""
    order = np.random.default_rng(0).permutation(len(records)).tolist()
    found: list[Record] = []
    while order and sum(len(record.tokens) for record in found) < tokens:
        found.append(records[order.pop()])
    return found
