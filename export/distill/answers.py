"""The target's own text: it answers prompts, and writes further ones itself, many at once.

Prompts come in groups; a group is one file of the corpus, and one that is there is not made again.
Some of the conversations begin with a user turn that the target writes too, after the opening that
its chat template gives a user (Xu et al. 2024, Magpie).
"""

import itertools
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread

import numpy as np

from export.distill.corpus import Record, save
from export.distill.prompts import Prompt
from runtime import providers
from runtime.answer import Answer
from runtime.batch import Job, LaneSession, decode_many
from runtime.errors import BuildError, BundleError
from runtime.flavours import choose_graph
from runtime.fused import FusedSession
from runtime.manifest import Graph, Manifest
from runtime.metrics import Metrics
from runtime.sampling import Sampling
from runtime.stream import TextStream
from runtime.text import Text

GROUP = 192  # conversations in a file
TEMPERATURES = (0.0, 0.0, 0.6, 1.0)  # dealt out in turn, to train on
WRITTEN_BY_TARGET = "target"  # the template's name of a conversation that the target began
USER_TEMPERATURE, USER_TOP_P = 1.0, 0.95
USER_TOKENS = 96  # the most of a user turn that the target writes
FOLLOW_UPS = 3  # every third conversation that the target began goes on for a second turn


@dataclass(frozen=True, slots=True)
class Wanted:
    """One group: prompts to answer, how many conversations to begin, and the seed of all that.

    temperatures: of the answers, dealt out in turn.
    """

    path: Path
    prompts: Sequence[Prompt]
    begun: int
    seed: int
    temperatures: tuple[float, ...] = TEMPERATURES


@dataclass(slots=True)
class _Conversation:
    template: str
    sampling: Sampling
    waiting: list[str | None]  # user turns to come; None is one for the target to write
    messages: list[dict[str, str]] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)


def groups(prompts: Sequence[Prompt], begun: int, folder: Path, *, seed: int) -> list[Wanted]:
    """Cut `prompts` and `begun` conversations into groups, each with its file in `folder`.

    Prompts of several turns stand together: their groups go on when others have ended.
    """
    ordered = sorted(prompts, key=lambda prompt: len(prompt.turns))
    parts = [ordered[start : start + GROUP] for start in range(0, len(ordered), GROUP)]
    wanted = [(part, 0) for part in parts]
    wanted += [([], min(GROUP, begun - done)) for done in range(0, begun, GROUP)]
    return [
        Wanted(folder / f"answers-{number:04}.npz", part, own, seed + number)
        for number, (part, own) in enumerate(wanted)
    ]


def write(
    bundle: Path,
    wanted: Sequence[Wanted],
    *,
    precision: str,
    context: int,
    max_new_tokens: int,
    workers: int,
    progress: Callable[[str], None],
) -> None:
    """Make the files of `wanted` that are not there, each by one of `workers` processes.

    context: tokens of a conversation at most; one that grows beyond ends there. Raises BundleError
    for a bundle that cannot write, BuildError where a process ends before its work.
    """
    _graph(Manifest.load(bundle), precision)  # here, as processes that cannot begin tell no reason
    missing = [group for group in wanted if not group.path.exists()]
    threads = max(1, len(providers.usable_cores()) // workers)
    setup = (bundle, precision, context, max_new_tokens, threads)
    with ProcessPoolExecutor(workers, get_context("spawn"), Writer.start, setup) as pool:
        running = [pool.submit(Writer.run, group) for group in missing]
        try:
            for done, future in enumerate(as_completed(running), len(wanted) - len(missing) + 1):
                path, tokens = future.result()
                progress(f"{path.name}: {tokens} tokens of answers ({done} of {len(wanted)} files)")
        except BrokenProcessPool as error:
            raise BuildError(
                "A process that writes answers was ended, perhaps for want of memory: give the "
                "same command with fewer --workers."
            ) from error
        except BaseException:
            for writer in active_children():  # or all that is queued would be written first
                writer.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def end_with_parent() -> None:
    """Wait for the parent process to end, however it does, and end this one."""
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _graph(manifest: Manifest, precision: str) -> Graph:
    """The target's graph that writes, with others of several lanes."""
    graph = choose_graph(manifest, "target", "CPU", precision)
    if not graph.lanes:
        raise BundleError(
            f"The bundle {manifest.folder} has no {precision} graph that answers many prompts at "
            "once: build it again with the usual graphs."
        )
    return graph


class Writer:
    """One process's target, loaded once; it writes group after group."""

    own: "Writer"

    def __init__(
        self, bundle: Path, precision: str, context: int, max_new_tokens: int, threads: int
    ) -> None:
        manifest = Manifest.load(bundle)
        role = manifest.target
        graph = _graph(manifest, precision)
        lanes = max(map(int, graph.lanes))
        self._text = Text.load(bundle)
        self._ends = frozenset(role.end_tokens)
        self._end = self._closing()
        # One less than there is: the last token of an answer may stand a place past the context.
        self._context = min(context, role.geometry.context - 1)
        self._max_new_tokens = max_new_tokens
        self._single = FusedSession(
            bundle / graph.file, role.geometry, threads=threads, context=self._context
        )
        self._lanes = LaneSession(
            bundle / graph.lanes[str(lanes)], role.geometry, lanes=lanes, threads=threads
        )

    @staticmethod
    def start(*setup: object) -> None:
        """What a new process does first; an interruption, or its parent's end, ends it silently."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        Thread(target=end_with_parent, daemon=True).start()
        Writer.own = Writer(*setup)  # type: ignore[arg-type]

    @staticmethod
    def run(wanted: Wanted) -> tuple[Path, int]:
        """Write one group's file; return its path and how many tokens of answers it holds."""
        return Writer.own.write(wanted)

    def write(self, wanted: Wanted) -> tuple[Path, int]:
        """All turns of all conversations, turn by turn; then the file."""
        talks = [
            _Conversation(prompt.template, _sampling(wanted, place), list(prompt.turns))
            for place, prompt in enumerate(wanted.prompts)
        ]
        for place in range(wanted.begun):
            turns = 1 if place % FOLLOW_UPS else 2
            talks.append(_Conversation(WRITTEN_BY_TARGET, _sampling(wanted, place), [None] * turns))
        active = talks
        while active := [talk for talk in active if talk.waiting]:
            active = self._answer(self._ask(active))
        records = [
            Record(
                np.array(talk.prompt + talk.answer, np.int64),
                len(talk.prompt),
                talk.sampling.temperature,
                talk.template,
            )
            for talk in talks
            if talk.answer
        ]
        save(wanted.path, records)
        return wanted.path, sum(len(record.tokens) - record.start for record in records)

    def _ask(self, talks: Sequence[_Conversation]) -> list[_Conversation]:
        """Add the next user turn, those that the target writes all at once; whoever has room."""
        asked, own, openings = [], [], []
        for talk in talks:
            if talk.waiting[0] is None:
                opening = self._opening(talk.messages)
                if not 0 < len(opening) < self._context:
                    continue
                own.append(talk)
                openings.append(opening)
            asked.append(talk)
        samplings = [
            replace(talk.sampling, temperature=USER_TEMPERATURE, top_p=USER_TOP_P) for talk in own
        ]
        written = self._decode(openings, samplings, USER_TOKENS)
        texts = iter([answer.text.strip() for answer in written])
        for talk in asked:
            turn = talk.waiting.pop(0)
            content = next(texts) if turn is None else turn
            talk.messages.append({"role": "user", "content": content})
        return asked

    def _answer(self, talks: Sequence[_Conversation]) -> list[_Conversation]:
        """Have the target answer each that fits the context; those that do."""
        ready = []
        for talk in talks:
            prompt = self._text.encode_chat(talk.messages)
            if talk.messages[-1]["content"] and len(prompt) < self._context:
                talk.prompt, talk.answer = prompt, []
                ready.append(talk)
        prompts = [talk.prompt for talk in ready]
        samplings = [talk.sampling for talk in ready]
        for talk, answer in zip(
            ready, self._decode(prompts, samplings, self._max_new_tokens), strict=True
        ):
            talk.answer = answer.tokens + self._end * (answer.finish_reason == "eos")
            talk.messages.append({"role": "assistant", "content": answer.text})
        return ready

    def _closing(self) -> list[int]:
        """The end token, in a list: the one of several by which the chat template ends a turn."""
        turn = self._text.encode_chat([{"role": "user", "content": "a"}])
        ends = [token for token in turn if token in self._ends]
        return ends[-1:] or sorted(self._ends)[:1]

    def _opening(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens up to where the next user turn's text begins."""
        one, other = (
            self._text.encode_chat([*messages, {"role": "user", "content": content}])
            for content in ("a", "1")
        )
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        return [token for token, _ in pairs]

    def _decode(
        self, prompts: Sequence[list[int]], samplings: Sequence[Sampling], most: int
    ) -> list[Answer]:
        jobs = [
            Job(
                np.array(prompt, np.int64),
                sampling,
                most,
                Answer(TextStream(self._text), Metrics("autoregressive", sampling.seed, {})),
            )
            for prompt, sampling in zip(prompts, samplings, strict=True)
        ]
        decode_many(jobs, self._single, self._lanes, end_tokens=self._ends)
        return [job.answer for job in jobs]


def _sampling(wanted: Wanted, place: int) -> Sampling:
    temperature = wanted.temperatures[place % len(wanted.temperatures)]
    return Sampling(temperature=temperature, seed=wanted.seed * GROUP + place)
