"""Sequences that are decoded together are each what they are alone, token for token."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import batch
from runtime.answer import Answer, StreamedAnswer
from runtime.batch import Job, LaneSession, decode_many
from runtime.cache import Buffers
from runtime.engine import decode
from runtime.errors import BundleError, ContextError
from runtime.fused import FusedSession
from runtime.manifest import Manifest
from runtime.metrics import Metrics
from runtime.sampling import Sampling
from runtime.strategy import Autoregressive
from runtime.stream import TextStream
from runtime.text import Text

Tokens = NDArray[np.int64]
LANES = 8
GREEDY = Sampling()
WARM = Sampling(temperature=0.8, top_k=40, repetition_penalty=1.1, seed=5)
HOT = Sampling(temperature=1.3, top_p=0.95, min_p=0.001, seed=9)
same = np.testing.assert_array_equal


class Bench:
    """The sessions of one graph of the tiny bundle, and ways to answer with them."""

    def __init__(self, bundle: Path, precision: str, *, context: int | None = None) -> None:
        manifest = Manifest.load(bundle)
        graph = manifest.graph("target", precision)
        self.geometry = manifest.target.geometry
        self.text = Text.load(bundle)
        self.single = FusedSession(bundle / graph.file, self.geometry, threads=1, context=context)
        path = bundle / graph.lanes[str(LANES)]
        self.lanes = LaneSession(path, self.geometry, lanes=LANES, threads=2)
        self.end_tokens: frozenset[int] = frozenset()

    def prompt(self, text: str) -> Tokens:
        return np.array(self.text.encode(text), np.int64)

    def job(
        self,
        prompt: str | Tokens,
        sampling: Sampling = GREEDY,
        max_new_tokens: int = 10,
        stop: Sequence[str] = (),
    ) -> Job:
        tokens = self.prompt(prompt) if isinstance(prompt, str) else prompt
        metrics = Metrics("autoregressive", sampling.seed, {}, prompt_tokens=len(tokens))
        answer = Answer(TextStream(self.text, stop), metrics)
        return Job(tokens, sampling, max_new_tokens, answer)

    def together(self, jobs: Sequence[Job]) -> list[Answer]:
        decode_many(jobs, self.single, self.lanes, end_tokens=self.end_tokens)
        return [job.answer for job in jobs]

    def alone(self, job: Job, stop: Sequence[str] = ()) -> Answer:
        theirs = job.answer.metrics
        metrics = Metrics(
            theirs.strategy,
            theirs.seed,
            theirs.providers,
            prompt_tokens=theirs.prompt_tokens,
            near_tie_bound=theirs.near_tie_bound,
        )
        answer = StreamedAnswer(
            lambda cancelled: decode(
                self.single,
                Autoregressive(),
                job.prompt,
                job.sampling,
                max_new_tokens=job.max_new_tokens,
                end_tokens=self.end_tokens,
                metrics=metrics,
                cancelled=cancelled,
            ),
            TextStream(self.text, stop),
            metrics,
        )
        assert "".join(answer) == answer.text
        return answer


@pytest.fixture(scope="module")
def bench(tiny_bundle: Path) -> Callable[[str], Bench]:
    """A bench for each precision, made once; without end tokens until a test sets some."""
    made: dict[str, Bench] = {}

    def get(precision: str) -> Bench:
        if precision not in made:
            made[precision] = Bench(tiny_bundle, precision)
        made[precision].end_tokens = frozenset()
        return made[precision]

    return get


def outcome(answer: Answer) -> tuple[str, list[int], str | None]:
    return answer.text, answer.tokens, answer.finish_reason


COUNTS = (
    "prompt_tokens",
    "emitted_tokens",
    "tokens_discarded",
    "rounds",
    "target_passes",
    "mean_acceptance_length",
    "finish_reason",
    "strategy",
    "seed",
)


def check(bench: Bench, cases: Sequence[tuple[str | Tokens, Sampling, int, Sequence[str]]]) -> None:
    """The cases together give what each gives alone, its counts included."""
    jobs = [bench.job(*case) for case in cases]
    for job, case, answer in zip(jobs, cases, bench.together(jobs), strict=True):
        alone = bench.alone(job, case[3])
        assert outcome(answer) == outcome(alone)
        found, wanted = answer.metrics.to_dict(), alone.metrics.to_dict()
        assert {key: found[key] for key in COUNTS} == {key: wanted[key] for key in COUNTS}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_more_sequences_than_lanes_of_every_kind(
    precision: str, bench: Callable[[str], Bench]
) -> None:
    one = bench(precision)
    openings = ["a", "the other", "in on the 12", "xyz" * 30, "?", "The", "0", "é", "on " * 20]
    cases: list[tuple[str | Tokens, Sampling, int, Sequence[str]]] = [
        (opening + str(place), (GREEDY, WARM, HOT)[place % 3], 3 + 4 * (place % 5), ())
        for place, opening in enumerate(openings * 2)
    ]
    cases[4:4] = [("none at all", HOT, 0, ()), ("a single one", WARM, 1, ())]
    cases[11:11] = [("none again", GREEDY, 0, ()), ("and one", GREEDY, 1, ())]
    assert len(cases) > 2 * LANES
    check(one, cases)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9])
def test_any_number_of_sequences(count: int, bench: Callable[[str], Bench]) -> None:
    one = bench("int8")
    check(one, [(f"number {place}", HOT, 4 + place % 3, ()) for place in range(count)])


def test_end_tokens_and_stop_strings_end_their_own_sequence_only(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("int8")
    openings = [f"{place} of the" for place in range(12)]
    plain = [one.alone(one.job(opening, HOT, 16)) for opening in openings]
    one.end_tokens = frozenset(answer.tokens[place % 7] for place, answer in enumerate(plain[:6]))
    stops: list[list[str]] = [
        [answer.text[place % 5 : place % 5 + 2 + place % 3], "never said"]
        for place, answer in enumerate(plain)
    ]
    cases = [
        (opening, HOT, 16, stop if place % 2 else [])
        for place, (opening, stop) in enumerate(zip(openings, stops, strict=True))
    ]
    check(one, cases)
    reasons = {answer.finish_reason for answer in one.together([one.job(*case) for case in cases])}
    assert reasons >= {"eos", "stop_string"}


def test_an_end_token_may_come_first(bench: Callable[[str], Bench]) -> None:
    one = bench("int8")
    first = one.alone(one.job("the", GREEDY, 1)).tokens[0]
    one.end_tokens = frozenset({first})
    cases = [("the", GREEDY, 5, ())] * 3 + [("other text", HOT, 5, ())]
    check(one, cases)
    answer, *_ = one.together([one.job(*case) for case in cases])
    assert outcome(answer) == ("", [], "eos")


def test_a_context_that_fills_ends_the_sequence(tiny_bundle: Path) -> None:
    one = Bench(tiny_bundle, "int8", context=24)
    prompts = [np.arange(length, dtype=np.int64) + 20 for length in (1, 2, 20, 22, 23, 24)]
    check(one, [(prompt, WARM, 100, ()) for prompt in prompts])
    answers = one.together([one.job(prompt, WARM, 100) for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.finish_reason == "context_full"
        assert len(prompt) + len(answer.tokens) == 25, "the last token needs no slot"


def test_the_order_of_the_sequences_does_not_matter(bench: Callable[[str], Bench]) -> None:
    one = bench("int8")
    cases = [(f"{place} and", HOT, 2 + place % 6, ()) for place in range(20)]
    forth = one.together([one.job(*case) for case in cases])
    back = one.together([one.job(*case) for case in reversed(cases)])
    assert [outcome(answer) for answer in forth] == [outcome(answer) for answer in reversed(back)]


def test_near_ties_are_counted_as_alone(bench: Callable[[str], Bench]) -> None:
    one = bench("int8")
    for bound in (0.0, 0.2, 100.0):
        jobs = [one.job(f"near {place}", HOT, 8) for place in range(9)]
        counted = []
        for job in jobs:
            job.answer.metrics.near_tie_bound = bound
            counted.append(one.alone(job).metrics.near_ties)
        assert [answer.metrics.near_ties for answer in one.together(jobs)] == counted
        assert sum(counted) in ({0} if bound == 0 else {72} if bound == 100 else range(1, 72))


class Forbidden(LaneSession):
    """Lanes that no one may use."""

    def __init__(self) -> None:
        self.lanes = LANES

    def seat(self, lane: int, cache: Buffers | None) -> None:
        raise AssertionError("a lane was given away")

    def step(self, tokens: dict[int, int]) -> NDArray[np.float32]:
        raise AssertionError("a step was made")


@pytest.mark.parametrize("bad", [0, 257])
def test_a_bad_prompt_is_refused_before_anything_ran(
    bad: int, bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench("int8")
    ran: list[int] = []
    monkeypatch.setattr(one.single, "_feed", lambda tokens, _count: ran.append(len(tokens)))
    jobs = [one.job("fine"), one.job(np.zeros(bad, np.int64)), one.job("fine too")]
    own = one.single.cache
    message = "prompt is empty" if bad == 0 else "257 tokens and the context holds 256"
    with pytest.raises(ContextError, match=message):
        decode_many(jobs, one.single, Forbidden(), end_tokens=frozenset())
    assert ran == []
    assert one.single.cache is own
    assert all(job.answer.tokens == [] for job in jobs)


def test_jobs_that_want_nothing_run_nothing(
    bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench("int8")
    ran: list[int] = []
    monkeypatch.setattr(one.single, "_feed", lambda tokens, _count: ran.append(len(tokens)))
    jobs = [one.job(f"{place}", GREEDY, 0) for place in range(10)]
    decode_many(jobs, one.single, Forbidden(), end_tokens=frozenset())
    assert ran == []
    assert {outcome(job.answer) == ("", [], "max_new_tokens") for job in jobs} == {True}


def test_the_conversation_beside_it_keeps_its_cache(bench: Callable[[str], Bench]) -> None:
    one = bench("int8")
    text = one.prompt("a conversation that goes on")
    wanted = one.single.extend(text).copy()
    own, length = one.single.cache, one.single.length
    one.together([one.job("something else", HOT, 5) for _ in range(10)])
    assert one.single.cache is own
    assert one.single.length == length == len(text)
    same(one.single.extend(text), wanted)


def test_a_failure_frees_the_lanes_and_leaves_them_usable(
    bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench("int8")
    own, choices = one.single.cache, iter(range(12))

    def failing(*_arguments: object) -> int:
        if next(choices, None) is None:
            raise KeyboardInterrupt
        return 30

    with monkeypatch.context() as patch:
        patch.setattr(batch, "next_token", failing)
        with pytest.raises(KeyboardInterrupt):
            one.together([one.job("a", GREEDY, 50) for _ in range(9)])
    assert one.single.cache is own
    assert all(cache is one.lanes._idle for cache in one.lanes._caches)
    check(one, [(f"after {place}", WARM, 6, ()) for place in range(9)])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_lane_gives_the_logits_of_the_text_alone(
    precision: str, bench: Callable[[str], Bench]
) -> None:
    """Texts of unequal length in some of the lanes, stepped in turns of every subset of three."""
    one = bench(precision)
    noise = np.random.default_rng(1)
    texts = {lane: noise.integers(0, 200, 60) for lane in (0, 3, 7)}
    lengths = {0: 1, 3: 17, 7: 40}
    own = one.single.cache
    for lane, text in texts.items():
        cache = Buffers(one.geometry, 60)
        one.single.use(cache)
        one.single.extend(text[: lengths[lane]])
        one.lanes.seat(lane, cache)
    for subset in range(2, 8):
        chosen = [lane for place, lane in enumerate(texts) if subset >> place & 1]
        for lane in set(texts) - set(chosen):
            kept = one.lanes._caches[lane]
            one.lanes.seat(lane, None)
            lengths[lane] = kept.length
        logits = one.lanes.step({lane: int(texts[lane][lengths[lane]]) for lane in chosen})
        for lane in chosen:
            lengths[lane] += 1
            one.single.use(Buffers(one.geometry, 60))
            same(logits[lane], one.single.extend(texts[lane][: lengths[lane]])[0])
        for lane in set(texts) - set(chosen):
            cache = Buffers(one.geometry, 60)
            one.single.use(cache)
            one.single.extend(texts[lane][: lengths[lane]])
            one.lanes.seat(lane, cache)
    for lane in texts:
        one.lanes.seat(lane, None)
    one.single.use(own)


def test_a_graph_that_cannot_be_read_is_a_bundle_error(
    bench: Callable[[str], Bench], tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match="build the bundle again"):
        LaneSession(tmp_path / "absent.onnx", bench("int8").geometry, lanes=8, threads=1)


@pytest.mark.parametrize(
    "change", [{"layers": 3}, {"layers": 1}, {"kv_heads": 4}, {"head_size": 8}, {"vocabulary": 9}]
)
def test_a_graph_that_does_not_fit_its_manifest_is_named(
    tiny_bundle: Path, change: dict[str, int]
) -> None:
    manifest = Manifest.load(tiny_bundle)
    geometry = dataclasses.replace(manifest.target.geometry, **change)
    path = tiny_bundle / manifest.graph("target", "fp32").lanes[str(LANES)]
    with pytest.raises(BundleError, match="does not fit its manifest"):
        LaneSession(path, geometry, lanes=LANES, threads=1).step({0: 1})
