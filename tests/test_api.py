import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread, active_count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.__main__ import main as export_main
from runtime import Sampling, Session, errors, open_session
from runtime.errors import ContextError, ProviderError, UsageError
from runtime.fused import FusedSession
from runtime.providers import usable_cores
from tests import tiny

STRATEGIES = ("auto", "autoregressive", "speculative", "mirror")
MESSAGES = [{"role": "user", "content": "tell me a tale"}]
Opened = Callable[..., Session]


@pytest.fixture
def opened(tiny_bundle: Path, tmp_path: Path) -> Opened:
    def opened(**settings: Any) -> Session:
        return open_session(tiny_bundle, cache_dir=tmp_path, threads=1, **settings)

    return opened


def build(folder: Path, weights: dict[str, NDArray[np.float32]], pairs: dict[str, Any]) -> Path:
    file = tiny.write_gguf(folder.with_suffix(".gguf"), weights=weights, pairs=pairs)
    assert export_main(["gguf", str(file), "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("precision", ["int8", "fp32"])
@pytest.mark.parametrize("draft", ["model", "lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_every_strategy_gives_the_same_answer(
    opened: Opened, precision: str, draft: str, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, repetition_penalty=1.1, seed=7)
    with opened(precision=precision, draft=draft, strategy="autoregressive") as session:
        answers = []
        for strategy in STRATEGIES:
            session.strategy = strategy
            answer = session.generate(MESSAGES, sampling, max_new_tokens=24)
            pieces = list(answer)
            assert "".join(pieces) == answer.text
            assert answer.metrics.to_dict()["draft_error"] is None
            answers.append((answer.text, answer.tokens, answer.finish_reason))
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0][1]) > 4


def test_many_prompts_together_are_answered_as_each_alone(opened: Opened) -> None:
    sampling = Sampling(temperature=0.9, seed=3)
    prompts: list[Any] = ["the", MESSAGES, "a longer text on the heron", "x" * 150]
    with opened(draft="none") as session:
        many = session.generate_many(prompts, sampling, max_new_tokens=20)
        for prompt, together in zip(prompts, many, strict=True):
            alone = session.generate(prompt, sampling, max_new_tokens=20)
            text = "".join(alone)
            assert (text, alone.tokens, alone.finish_reason) == (
                together.text,
                together.tokens,
                together.finish_reason,
            )
            assert together.metrics.to_dict()["rounds"] == alone.metrics.to_dict()["rounds"]


def test_no_prompts_have_no_answers(opened: Opened) -> None:
    with opened(draft="none") as session:
        assert session.generate_many([]) == []


def test_a_second_turn_reads_only_what_is_new(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    run = FusedSession._feed

    def counting(self: FusedSession, tokens: NDArray[np.int64], *rest: Any) -> Any:
        fed.append(len(tokens))
        return run(self, tokens, *rest)

    with opened(draft="none") as session:
        monkeypatch.setattr(FusedSession, "_feed", counting)
        answer = session.generate("one two three four five", max_new_tokens=6)
        first = "".join(answer)
        read = sum(fed)
        fed.clear()
        longer = session.generate("one two three four five" + first + " six", max_new_tokens=1)
        list(longer)
        assert longer.metrics.prompt_tokens > read
        assert sum(fed) < longer.metrics.prompt_tokens - 10


def test_cancelling_from_another_thread_keeps_what_came(opened: Opened) -> None:
    with opened() as session:
        answer = session.generate("the", Sampling(temperature=1, seed=2), max_new_tokens=200)
        first = next(answer)
        canceller = Thread(target=answer.cancel)
        canceller.start()
        canceller.join()
        rest = list(answer)
        assert answer.finish_reason == "cancelled"
        assert answer.text == "".join([first, *rest])
        again = session.generate("the", Sampling(temperature=1, seed=2), max_new_tokens=3)
        assert list(again)


def test_a_new_answer_ends_the_one_before(opened: Opened) -> None:
    with opened() as session:
        before = session.generate("the", max_new_tokens=50)
        next(before)
        after = session.generate("the", max_new_tokens=2)
        assert list(before) == []
        assert before.finish_reason == "cancelled"
        list(after)
        assert len(after.tokens) == 2


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"device": "GPU"}, ProviderError, "GPU"),
        ({"draft_device": "NPU"}, ProviderError, "NPU"),
        ({"precision": "fp8"}, UsageError, "fp8"),
        ({"draft": "magic"}, UsageError, "magic"),
        ({"strategy": "magic"}, UsageError, "magic"),
        ({"draft": "none", "strategy": "mirror"}, UsageError, "needs a draft"),
        ({"draft": "lookup", "draft_model": "x"}, UsageError, "leave one out"),
        ({"num_draft_tokens": 0}, UsageError, "num_draft_tokens"),
        ({"num_draft_tokens": 33}, UsageError, "num_draft_tokens"),
        ({"num_copied_tokens": 4}, UsageError, "num_copied_tokens is for"),
        ({"after_miss": "redraft"}, UsageError, "after_miss is for the strategy 'mirror'"),
        ({"draft_time_limit_s": 0}, UsageError, "draft_time_limit_s"),
        ({"draft_time_limit_s": -1.0}, UsageError, "draft_time_limit_s"),
        ({"draft_time_limit_s": math.inf}, UsageError, "draft_time_limit_s"),
        ({"draft_time_limit_s": math.nan}, UsageError, "draft_time_limit_s"),
        ({"draft_time_limit_s": 1e10}, UsageError, "draft_time_limit_s"),
        ({"context_length": 257}, UsageError, "257"),
        ({"context_length": 1}, UsageError, "context"),
        ({"draft_threads": 0}, UsageError, "draft_threads"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    opened: Opened, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        opened(**settings)


def test_without_a_draft_the_strategy_is_autoregressive(opened: Opened) -> None:
    with opened(draft="none") as session:
        assert session.strategy == "autoregressive"
        assert session.settings["draft_tokens_per_pass"] is None
        with pytest.raises(UsageError, match="needs a draft"):
            session.strategy = "mirror"
        assert session.strategy == "autoregressive"


def test_the_settings_tell_every_default(opened: Opened, tiny_bundle: Path) -> None:
    with opened(context_length=64) as session:
        assert session.settings["context_length"] == 64
        assert session.settings["bundle"] == str(tiny_bundle)
        assert session.settings["strategy"] == "auto"
        assert session.settings["draft_threads"] >= 1
        assert session.settings["draft_tokens_per_pass"] == 1
        assert session.settings["exactness"] in ("bitwise", "near-tie")
        assert set(session.settings["providers"]) == {"target", "draft"}
        assert session.default_sampling == Sampling()


def test_each_strategy_has_its_threads_and_leaves_none_behind(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    cores = len(usable_cores())
    half = max(1, cores // 2)
    due = {
        "autoregressive": (cores, 0),
        "speculative": (cores, cores),
        "auto": (cores, cores),
        "mirror": (max(1, cores - half), half),
    }
    texts, running = set(), set()
    with open_session(tiny_bundle, cache_dir=tmp_path) as session:
        for strategy in (*STRATEGIES, "speculative", "autoregressive", "speculative", "mirror"):
            session.strategy = strategy
            settings = session.settings
            assert (settings["threads"], settings["draft_threads"]) == due[strategy]
            assert settings["lookup_first"] == (strategy == "speculative")
            texts.add("".join(session.generate(MESSAGES, Sampling(seed=1), max_new_tokens=12)))
            running.add((strategy, active_count()))
    assert len(texts) == 1
    counts = [count for strategy, count in running if strategy != "autoregressive"]
    assert len(set(counts)) == 1  # one draft's thread, whichever was loaded before


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_draft_tokens", [1, 4, 8])
def test_a_context_that_fills_keeps_its_text(
    opened: Opened, strategy: str, num_draft_tokens: int
) -> None:
    settings = {"strategy": strategy, "num_draft_tokens": num_draft_tokens, "context_length": 24}
    with opened(draft="lookup", **settings) as session:
        answer = session.generate("the the the the the", Sampling(temperature=1.2, seed=1))
        text = "".join(answer)
        assert answer.finish_reason == "context_full"
        assert answer.metrics.prompt_tokens + len(answer.tokens) == 25
        assert text == answer.text != ""


def test_a_prompt_past_the_context_is_refused_with_both_numbers(opened: Opened) -> None:
    with opened(draft="none", context_length=8) as session:
        with pytest.raises(ContextError, match=r"\b9\b.*\b8\b"):
            list(session.generate("x" * 9))
        with pytest.raises(ContextError, match=r"\b9\b.*\b8\b"):
            session.generate_many(["x", "x" * 9])
        full = session.generate("x" * 8)
        list(full)
        assert (len(full.tokens), full.finish_reason) == (1, "context_full")


def test_an_empty_prompt_is_refused(opened: Opened) -> None:
    with opened(draft="none") as session, pytest.raises(ContextError, match="empty"):
        list(session.generate(""))


def test_another_draft_of_the_same_vocabulary_changes_nothing(
    opened: Opened, tmp_path: Path
) -> None:
    other = build(tmp_path / "other", tiny.tensors(seed=9), tiny.metadata())
    sampling = Sampling(temperature=0.8, seed=4)
    with opened(draft="none") as session:
        expected = "".join(session.generate(MESSAGES, sampling, max_new_tokens=16))
    with opened(draft_model=other) as session:
        answer = session.generate(MESSAGES, sampling, max_new_tokens=16)
        assert "".join(answer) == expected
        assert answer.metrics.draft_tokens_proposed > 0
        assert session.settings["draft_model"] == "other"


def padded(weights: dict[str, NDArray[np.float32]], rows: int) -> dict[str, NDArray[np.float32]]:
    tables = ("token_embd.weight", "output.weight")
    return weights | {
        name: np.pad(weights[name], ((0, rows), (0, 0))) for name in tables if name in weights
    }


def with_tokens(*names: str) -> dict[str, Any]:
    tokens = [*tiny.vocabulary(), *names]
    kinds = [*tiny.metadata()["tokenizer.ggml.token_type"], *(1 for _ in names)]
    return tiny.metadata(
        {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "llama.vocab_size": len(tokens),
        }
    )


def test_a_draft_of_another_vocabulary_is_refused_with_sizes_and_token(
    opened: Opened, tmp_path: Path
) -> None:
    size = len(tiny.vocabulary())
    other = build(tmp_path / "other", padded(tiny.tensors(), 1), with_tokens("heron"))
    with pytest.raises(UsageError, match=f"{size + 1} tokens.*{size};.*token {size}"):
        opened(draft_model=other)
    swapped = tiny.metadata()
    swapped["tokenizer.ggml.tokens"] = [*tiny.vocabulary()[:-1], "heron"]
    swapped["tokenizer.ggml.merges"] = swapped["tokenizer.ggml.merges"][:-1]
    other = build(tmp_path / "swapped", tiny.tensors(), swapped)
    with pytest.raises(UsageError, match=f"{size} tokens.*token {size - 1} is 'heron'"):
        opened(draft_model=other)


def test_a_draft_that_differs_in_padding_only_is_accepted(opened: Opened, tmp_path: Path) -> None:
    size = len(tiny.vocabulary())
    names = (f"[PAD{size}]", f"[PAD{size + 1}]")
    other = build(tmp_path / "padded", padded(tiny.tensors(), 2), with_tokens(*names))
    with opened(draft_model=other, strategy="mirror") as session:
        answer = session.generate(MESSAGES, Sampling(), max_new_tokens=12)
        list(answer)
        assert answer.metrics.to_dict()["draft_error"] is None
        assert answer.metrics.draft_tokens_accepted > 0


def test_a_closed_session_says_so(opened: Opened) -> None:
    session = opened()
    assert session.close()
    assert session.close()
    with pytest.raises(UsageError, match="closed"):
        session.generate("the")


def test_an_interrupt_costs_the_draft_thread_and_nothing_else(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(temperature=1, seed=2)
    with opened(strategy="mirror") as session:
        expected = "".join(session.generate("the", sampling, max_new_tokens=20))
        run = FusedSession._feed

        def interrupted(self: FusedSession, tokens: NDArray[np.int64], *rest: Any) -> Any:
            if self.length > 8 and self is session._models.target:
                raise KeyboardInterrupt
            return run(self, tokens, *rest)

        monkeypatch.setattr(FusedSession, "_feed", interrupted)
        answer = session.generate("the", sampling, max_new_tokens=20)
        with pytest.raises(KeyboardInterrupt):
            list(answer)
        assert answer.finish_reason == "cancelled"
        assert expected.startswith(answer.text)
        monkeypatch.setattr(FusedSession, "_feed", run)
        again = session.generate("the", sampling, max_new_tokens=20)
        assert "".join(again) == expected
        assert again.metrics.draft_tokens_proposed > 0
        assert again.metrics.to_dict()["draft_error"] is None


def test_another_thread_in_the_answer_is_named(opened: Opened) -> None:
    with opened(draft="none") as session:
        answer = session.generate("the", Sampling(temperature=1, seed=2), max_new_tokens=200)
        errors: list[BaseException] = []

        def meddle() -> None:
            try:
                session.generate("the")
            except UsageError as error:
                errors.append(error)

        run = session._models.target._feed

        def meddling(tokens: NDArray[np.int64], *rest: Any) -> Any:
            if not errors:
                thread = Thread(target=meddle)
                thread.start()
                thread.join()
            return run(tokens, *rest)

        session._models.target._feed = meddling  # type: ignore[assignment, method-assign]
        next(answer)
        assert "Another thread" in str(errors[0])


def test_a_session_nobody_closed_does_not_take_the_process_down(tiny_bundle: Path) -> None:
    program = (
        "from runtime import Sampling, open_session\n"
        f"session = open_session({str(tiny_bundle)!r}, threads=1)\n"
        "answer = session.generate('the', Sampling(temperature=1, seed=2))\n"
        "for _ in range(4): next(answer)\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
        assert done.returncode == 0


@pytest.mark.parametrize("budget", [-1, 2.5, float("nan"), float("inf")])
def test_a_budget_is_a_whole_number(opened: Opened, budget: Any) -> None:
    with opened(draft="none") as session, pytest.raises(UsageError, match="whole number"):
        session.generate("the", max_new_tokens=budget)


def test_the_page_for_programs_has_every_parameter_with_its_default() -> None:
    page = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
    for named in (open_session, Sampling):
        for name, parameter in inspect.signature(named).parameters.items():
            assert f"\n| `{name}` | `{parameter.default!r}` | " in page
    classes = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert [name for name in classes if f"`{name}`" not in page] == []
