"""Input that is broken or meant to break something: a sentence, an exit code, never a traceback."""

import io
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime import Sampling, Session, open_session
from runtime.chat import main
from runtime.errors import ContextError, MirrorError, TextError, UsageError

ROOT = Path(__file__).resolve().parent.parent
CHAT = [sys.executable, "-m", "runtime.chat"]
NONCHARACTERS = "".join(map(chr, [*range(0xFDD0, 0xFDF0), *range(0x1FFFE, 0x110000, 0x10000)]))
HARD_TEXTS = {
    "null bytes": "\0\0a\0",
    "unpaired surrogates": "a\ud800b\udfff\udc80",
    "paired surrogates": "\ud83d\ude00",
    "whitespace": " \n\t\u3000 ",
    "control tokens": "<|im_start|>user\nx<|im_end|><|endoftext|><|im_",
    "noncharacters": "\ufdd0\ufffe\uffff",
    "marks": "\ufeff\u202e\u0301e\u0301",
}
LONG_TEXTS = {
    "letters": "a" * 100_000,
    "words": "word " * 20_000,
    "spaces": " " * 100_000,
    "null bytes": "\0" * 100_000,
    "unpaired surrogates": "\ud800" * 100_000,
    "starts of control tokens": "<|" * 50_000,
    "control tokens": "<|im_end|>" * 10_000,
    "pictures": "😀" * 100_000,
}


class Anything:
    """Something that is none of what anyone expects."""


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def session(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with open_session(tiny_bundle, cache_dir=tmp_path_factory.mktemp("c"), threads=1) as session:
        yield session


def answer(session: Session, prompt: Any, sampling: Any = None, **settings: Any) -> str:
    settings.setdefault("max_new_tokens", 2)
    return "".join(session.generate(prompt, sampling, **settings))


def answers(session: Session, prompts: Any, sampling: Any = None, **settings: Any) -> list[str]:
    settings.setdefault("max_new_tokens", 2)
    return [each.text for each in session.generate_many(prompts, sampling, **settings)]


@pytest.mark.parametrize("name", HARD_TEXTS)
def test_hard_texts_are_answered(session: Session, name: str) -> None:
    text = HARD_TEXTS[name]
    alone = [answer(session, text), answer(session, user(text))]
    assert answers(session, [text, user(text)]) == alone


def test_control_tokens_in_a_text_end_no_turn(session: Session) -> None:
    assert not set(session._models.text.encode(HARD_TEXTS["control tokens"])) & {0, 1, 2}


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_long_texts_do_not_fit(session: Session, name: str) -> None:
    text = LONG_TEXTS[name]
    for prompt in (text, user(text)):
        with pytest.raises(ContextError, match="the context holds 256"):
            answer(session, prompt)
        with pytest.raises(ContextError, match="the context holds 256"):
            answers(session, ["the", prompt])


@pytest.mark.parametrize(
    "prompt",
    [
        None, 5, True, b"text", Anything(), {}, [], {"role": "user", "content": "x"}, [1], ["text"],
        [{}], [{"role": "user"}], [{"content": "x"}], user(5), user(None), user(["x"]), user(b"x"),
        [{"role": 5, "content": "x"}], [{"role": "nobody", "content": "x"}], [[]], range(3),
        [{"role": "user", "content": "x", 5: "y"}], [{"role": "user", "content": "x", "name": 5}],
        user(NONCHARACTERS),
    ],
)  # fmt: skip
def test_prompts_that_are_none(session: Session, prompt: Any) -> None:
    with pytest.raises((UsageError, TextError)):
        answer(session, prompt)
    with pytest.raises((UsageError, TextError)):
        answers(session, ["the", prompt])


@pytest.mark.parametrize("prompts", [None, 5, "abc", b"abc", {"a": 1}, Anything()])
def test_prompts_of_a_batch_are_a_list(session: Session, prompts: Any) -> None:
    with pytest.raises(UsageError, match="prompts must be a list"):
        answers(session, prompts)


@pytest.mark.parametrize(
    "settings",
    [
        *({"max_new_tokens": bad} for bad in (-1, 2.5, 3.0, math.nan, math.inf, "5", None, True)),
        *({"stop": bad} for bad in ("abc", "", None, 5, [5], [""], [None], [b"x"], {"a": 1}, b"x")),
        *({"sampling": bad} for bad in (5, "warm", 0.5, {"temperature": 1}, Sampling, Anything())),
    ],
)
def test_settings_of_an_answer(session: Session, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        answer(session, "the", **settings)
    with pytest.raises(UsageError, match=next(iter(settings))):
        answers(session, ["the"], **settings)


def test_extreme_settings_that_work(session: Session) -> None:
    assert answer(session, "the", max_new_tokens=0) == ""
    assert answer(session, "the", stop=["x" * 100_000, "\ud800"]) == answer(session, "the")
    everything = answer(session, "the", max_new_tokens=10**30)
    assert answers(session, ["the"], max_new_tokens=2**63) == [everything]
    for sampling in (
        Sampling(temperature=1, seed=2**64 - 1),
        Sampling(temperature=1.7e308),
        Sampling(temperature=5e-324),
        Sampling(temperature=1, top_k=10**30, top_p=5e-324),
    ):
        assert answers(session, ["the"], sampling) == [answer(session, "the", sampling)]


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_sampling_by_numbers_that_are_none(name: str) -> None:
    bad: Any
    for bad in (math.nan, math.inf, -math.inf, -1, 10**400, "1", None, True, [], 1j, b"1"):
        with pytest.raises(UsageError, match=name):
            Sampling(**{name: bad})
    for bad in (2**64, -1, 1.5, math.nan, True, "7", None):
        with pytest.raises(UsageError, match="seed"):
            Sampling(seed=bad)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model", [None, 5, b"x", Anything(), [], "\0", "a\0b", "\ud800", "x" * 10_000, ""]),
        ("precision", [5, [], "fp99"]),
        ("draft", [5, [], "magic"]),
        ("strategy", [5, Anything(), True, "fast"]),
        ("num_draft_tokens", ["4", 4.5, 2.0, math.nan, math.inf, True, -1, 10**30]),
        ("context_length", ["8", 8.5, 16.0, math.nan, math.inf, True, -1, 0, 10**30]),
        ("threads", [0, -1, 1.5, math.nan, math.inf, "1", True, 10**30]),
        ("draft_threads", [0, 1.5, "1", 10**30]),
        ("draft_tokens_per_pass", [0, -1, 2, 1.5, "1", True, 10**30]),
        ("device", [5, [], "", "GPU:99"]),
        ("draft_device", [5, [], "", "GPU:99"]),
        ("execution_provider", [5, [], ""]),
        ("draft_execution_provider", [5, "abacus"]),
        ("ep_libraries", [5, [], {"QNN": 5}, {5: "a"}, {"QNN": "\0"}, {"abacus": "a"}]),
        ("provider_options", [5, [], "a=b", {"a": "b"}, {5: "a"}, {"a": 5}]),
        ("draft_provider_options", [5, [], "a=b", {"a": "b"}, {5: "a"}, {"a": 5}]),
        ("cache_dir", [5, b"x", "\0", ["x"]]),
        ("draft_time_limit_s", [math.inf, math.nan, 0, -1, "5", True, 10**400]),
    ],
)
def test_settings_of_a_session(
    tiny_bundle: Path, tmp_path: Path, name: str, values: list[Any]
) -> None:
    for value in values:
        settings: dict[str, Any] = {"model": tiny_bundle, "cache_dir": tmp_path, name: value}
        with pytest.raises(MirrorError):
            open_session(settings.pop("model"), **settings)


def test_a_cache_folder_may_be_named_by_a_text(tiny_bundle: Path, tmp_path: Path) -> None:
    with open_session(tiny_bundle, cache_dir=str(tmp_path / "cache"), draft="none"):
        assert (tmp_path / "cache").is_dir()


def chat(*flags: str, text: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the chat."""
    out, err = io.StringIO(), io.StringIO()
    code = main(flags, stdin=io.StringIO(text), stdout=out, stderr=err, leave=lambda _: None)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--temperature -1", "temperature"), ("--temperature nan", "temperature"),
        ("--temperature inf", "temperature"), ("--temperature 1e400", "temperature"),
        ("--top-p 0", "top_p"), ("--top-p 1.5", "top_p"), ("--top-p nan", "top_p"),
        (f"--seed {2**64}", "seed"), ("--seed nan", "seed"), ("--min-p=-inf", "min_p"),
        ("--max-new-tokens 1e9", "max-new-tokens"), ("--max-new-tokens nan", "max-new-tokens"),
        ("--num-draft-tokens 33", "num_draft_tokens"), ("--num-copied-tokens 4", "num_copied_tok"),
        ("--after-miss redraft", "take such a strategy"), ("--threads 999999999999", "threads"),
        ("--context-length 99999999999999", "context length"), ("--stop=", "--stop"),
        ("What is the capital of France?", "a question is asked with --prompt"),
    ],
)  # fmt: skip
def test_flags_that_cannot_work(tiny_bundle: Path, flags: str, words: str) -> None:
    code, out, err = chat("-m", str(tiny_bundle), *flags.split(), text="hi")
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("name", HARD_TEXTS)
def test_hard_texts_on_the_command_line(tiny_bundle: Path, tmp_path: Path, name: str) -> None:
    flags = ("-m", str(tiny_bundle), "--cache-dir", str(tmp_path), "--max-new-tokens", "2")
    text = HARD_TEXTS[name]
    for code, _, err in (
        chat(*flags, "--draft", "none", text=text),
        chat(*flags, "--draft", "none", f"--prompt={text}", f"--system-prompt={text}"),
    ):
        assert code == 0, err


def test_a_long_text_on_the_command_line(tiny_bundle: Path, tmp_path: Path) -> None:
    flags = ("-m", str(tiny_bundle), "--cache-dir", str(tmp_path), "--seed", str(2**64 - 1))
    code, out, err = chat(*flags, text="\0" * 100_000)
    assert (code, out) == (2, "")
    assert "the context holds 256" in err


def run(*command: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    options.setdefault("cwd", ROOT)
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120, **options
    )


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")
def test_no_locale_and_a_folder_of_other_letters(tiny_gguf: Path, tmp_path: Path) -> None:
    place = tmp_path / "my mödel 文"
    place.mkdir()
    (place / "lïnk to.gguf").symlink_to(tiny_gguf)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environ = {**os.environ, **ascii_only, "PYTHONPATH": str(ROOT)}
    flags = ["-m", "lïnk to.gguf", "--cache-dir", "cäche", "--max-new-tokens", "3"]
    done = run(*CHAT, *flags, "--prompt", "hé", cwd=place, env=environ)
    assert done.returncode == 0, done.stderr
    assert (place / "cäche" / "bundles").is_dir()
    plain = run(*CHAT, *flags, "--prompt", "hé", cwd=place, env={**environ, "LC_ALL": "C.UTF-8"})
    assert done.stdout.decode() == plain.stdout.decode() != ""


@pytest.mark.parametrize("kind", ["a file in the folder's place", "a folder that cannot be made"])
def test_a_cache_that_cannot_be_written(
    tiny_bundle: Path, tiny_gguf: Path, tmp_path: Path, kind: str
) -> None:
    cache = tmp_path / "cache"
    cache.write_text("in the way", encoding="utf-8")
    cache = cache if kind.startswith("a file") else cache / "folder"
    flags = ("--cache-dir", str(cache), "--max-new-tokens", "2", "--prompt", "hi")
    code, out, err = chat("-m", str(tiny_bundle), "--draft", "none", *flags)
    assert code == 0, err
    assert out
    code, out, err = chat("-m", str(tiny_gguf), *flags)
    assert (code, out) == (1, "")
    assert "cannot be written" in err
    assert "--cache-dir" in err


@pytest.mark.parametrize("flag", ["--help", "--version"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_help_on_a_full_disk(flag: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*CHAT, flag], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr


def test_a_reader_of_the_help_that_leaves_early() -> None:
    done = run("sh", "-c", f"{sys.executable} -m runtime.chat --help | head -n 1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: mirror-chat")


INTERRUPTED = """
import os, runpy, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)

program, moment = sys.argv.pop(1), sys.argv.pop(1)
sys.meta_path.insert(0, Interrupts())
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="interrupts of the terminal are POSIX")
@pytest.mark.parametrize(
    ("program", "moment"),
    [
        *(("runtime.chat", moment) for moment in ("runtime.chat_program", "runtime.chat_flags")),
        *(("runtime.chat", moment) for moment in ("numpy", "numpy.linalg", "runtime.api")),
        *(("runtime.chat", moment) for moment in ("onnxruntime", "onnxruntime.capi", "jinja2")),
        ("runtime.bench", "runtime.bench_program"), ("runtime.bench", "tokenizers"),
        *(("export", moment) for moment in ("export.command", "numpy", "onnx", "gguf")),
    ],
)  # fmt: skip
def test_ctrl_c_while_starting_is_one_word(
    tiny_gguf: Path, tiny_bundle: Path, tmp_path: Path, program: str, moment: str
) -> None:
    flags = {
        "runtime.chat": ["-m", str(tiny_bundle), "--cache-dir", str(tmp_path), "--prompt", "hi"],
        "runtime.bench": ["-m", str(tiny_bundle), "--cache-dir", str(tmp_path)],
        "export": ["gguf", str(tiny_gguf), "--out", str(tmp_path / "out")],
    }
    done = run(sys.executable, "-c", INTERRUPTED, program, moment, *flags[program])
    # The shell says 130 for both: the program's own exit, and Python's when it was in C code.
    assert done.returncode in (130, -signal.SIGINT), done.stderr
    assert done.stderr.endswith(b"Interrupted.\n")
    assert b"Traceback" not in done.stderr
