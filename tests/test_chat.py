import inspect
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime import open_session
from runtime.chat import main
from runtime.errors import BundleError, ContextError
from runtime.sampling import Sampling
from tests.fake_session import FakeSession, Script

ROOT = Path(__file__).resolve().parent.parent
FAKE_CHAT = [sys.executable, "-m", "tests.fake_session"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def chat(
    session: FakeSession | None, *flags: str, stdin: io.StringIO | None = None
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one run; without a fake, the real thing."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main(
        flags,
        open_session=None if session is None else session.open,
        stdin=stdin or Terminal(),
        stdout=stdout,
        stderr=stderr,
        environ={"HOME": "/nonexistent"},
        leave=lambda _: None,
    )
    return code, stdout.getvalue(), stderr.getvalue()


def spawn(*arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*FAKE_CHAT, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_a_prompt_gets_its_answer_and_nothing_else_on_stdout() -> None:
    session = FakeSession()
    code, stdout, stderr = chat(session, "--prompt", "Hi", "--system-prompt", "Be brief.")
    assert (code, stdout, stderr) == (0, "Hello there.\n", "Loading.\n")
    assert session.calls[0].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert session.calls[0].max_new_tokens == 512
    assert session.closed == 1


@pytest.mark.parametrize("flags", [[], ["--prompt", "-"]])
def test_the_whole_of_standard_input_is_one_question(flags: list[str]) -> None:
    session = FakeSession()
    assert chat(session, *flags, stdin=io.StringIO("one\ntwo\n\nthree\n"))[0] == 0
    assert [call.messages for call in session.calls] == [
        [{"role": "user", "content": "one\ntwo\n\nthree"}]
    ]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [([], "standard input is empty"), (["--prompt", ""], "--prompt is empty")],
)
def test_an_empty_question_is_wrong_usage(flags: list[str], sentence: str) -> None:
    session = FakeSession()
    code, _, stderr = chat(session, *flags, stdin=io.StringIO(""))
    assert code == 2
    assert sentence in stderr
    assert session.calls == []


def test_json_is_one_line_and_nothing_else() -> None:
    session = FakeSession(Script(("a\n\u2028", "é"), finish_reason="stop_string"))
    code, stdout, _ = chat(session, "--prompt", "Hi", "--json", "-t", "1")
    assert code == 0
    assert len(stdout.splitlines()) == 1
    line = json.loads(stdout)
    assert set(line) == {"text", "tokens", "finish_reason", "metrics"}
    assert (line["text"], line["tokens"]) == ("a\n\u2028é", [0, 1])
    assert line["finish_reason"] == "stop_string"
    assert line["metrics"]["seed"] == session.calls[0].sampling.seed


def test_sampling_comes_from_the_bundle_and_flags_replace_it_one_by_one() -> None:
    bundle = Sampling(temperature=0.6, top_k=40, top_p=0.9)
    session = FakeSession(default_sampling=bundle)
    assert chat(session, "--prompt", "Hi", "-k", "5", "--seed", "7")[0] == 0
    assert session.calls[0].sampling == Sampling(temperature=0.6, top_k=5, top_p=0.9, seed=7)
    session = FakeSession(default_sampling=bundle)
    assert chat(session, "--prompt", "Hi", "-t", "0", "--seed", "0")[0] == 0
    assert session.calls[0].sampling == Sampling(temperature=0, top_k=40, top_p=0.9, seed=0)


def test_a_drawn_seed_is_reported_where_it_matters() -> None:
    first, second = FakeSession(), FakeSession()
    stderr = chat(first, "--prompt", "Hi", "-t", "0.7")[2]
    seed = first.calls[0].sampling.seed
    assert f"seed {seed} (--seed repeats this answer)\n" in stderr
    chat(second, "--prompt", "Hi", "-t", "0.7")
    assert first.calls[0].sampling.seed != second.calls[0].sampling.seed
    assert "seed" not in chat(FakeSession(), "--prompt", "Hi")[2]


def test_stats_print_settings_and_metrics_on_stderr() -> None:
    code, stdout, stderr = chat(FakeSession(), "--prompt", "Hi", "--stats", "--top-k", "9")
    assert (code, stdout) == (0, "Hello there.\n")
    for name in ("context_length", "strategy", "top_k", "seed", "max_new_tokens", "emitted_tokens"):
        assert name in stderr


def test_every_setting_reaches_open_session() -> None:
    session = FakeSession()
    flags = "-m m -md d --precision fp32 --strategy speculative --num-draft-tokens 8"
    flags += " --draft-tokens-per-pass 5 --num-siblings 3 --num-copied-tokens 5"
    flags += " --num-hypotheses 7"
    flags += " --hypothesis-sources masks,bonus"
    flags += " --after-miss verify"
    flags += " -e openvino --draft-execution-provider QNN --device cpu --draft-device NPU"
    flags += " --ep-library QNN=a=b --ep-library WebGPU=c --provider-option load_config=x"
    flags += " --draft-provider-option soc_model=60 --draft-provider-option vtcm_mb=8"
    flags += " --allow-cpu-fallback --draft-time-limit-s 2.5"
    flags += " --context-length 99 --threads 1 --draft-threads 2 --offline --cache-dir c --verify"
    flags += " --emulate gpu-cpu --time-scale 1.5"
    assert chat(session, "--prompt", "Hi", *flags.split())[0] == 0
    assert session.opened is not None
    model, settings = session.opened
    inspect.signature(open_session).bind(model, **settings)
    assert model == "m"
    assert callable(settings.pop("progress"))
    assert settings == {
        "draft_model": "d",
        "precision": "fp32",
        "draft": None,
        "strategy": "speculative",
        "num_draft_tokens": 8,
        "draft_tokens_per_pass": 5,
        "num_siblings": 3,
        "num_copied_tokens": 5,
        "num_hypotheses": 7,
        "hypothesis_sources": ("masks", "bonus"),
        "after_miss": "verify",
        "context_length": 99,
        "threads": 1,
        "draft_threads": 2,
        "device": "cpu",
        "draft_device": "NPU",
        "execution_provider": "openvino",
        "draft_execution_provider": "QNN",
        "ep_libraries": {"QNN": "a=b", "WebGPU": "c"},
        "provider_options": {"load_config": "x"},
        "draft_provider_options": {"soc_model": "60", "vtcm_mb": "8"},
        "draft_time_limit_s": 2.5,
        "allow_cpu_fallback": True,
        "cache_dir": Path("c"),
        "offline": True,
        "verify": True,
        "emulate": "gpu-cpu",
        "time_scale": 1.5,
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [(BundleError("The bundle is damaged."), 1), (ContextError("Too long."), 2)],
)
def test_errors_are_sentences_with_exit_codes(error: BundleError, code: int) -> None:
    session = FakeSession(Script(("Par",), error=error))
    got, stdout, stderr = chat(session, "--prompt", "Hi")
    assert (got, stdout) == (code, "Par\n")
    assert f"mirror-chat: {error}\n" in stderr
    assert "Traceback" not in stderr
    assert session.closed == 1


def test_wrong_usage_loads_nothing() -> None:
    session = FakeSession()
    code, stdout, stderr = chat(session, "--draft", "none", "--strategy", "mirror")
    assert (code, stdout) == (2, "")
    assert "--strategy autoregressive" in stderr
    assert session.opened is None


def test_help_and_version_go_to_stdout() -> None:
    code, stdout, stderr = chat(FakeSession(), "--help")
    assert (code, stderr) == (0, "")
    assert "--num-draft-tokens" in stdout
    code, stdout, stderr = chat(FakeSession(), "--version")
    assert (code, stderr) == (0, "")
    assert stdout.startswith("mirror-chat ")


@pytest.mark.parametrize(("reason", "code"), [("cancelled", 130), ("failed", 1), ("eos", 0)])
def test_exit_code_by_finish_reason(reason: str, code: int) -> None:
    session = FakeSession(Script(finish_reason=reason))
    assert chat(session, "--prompt", "Hi")[0] == code


def test_a_stuck_thread_makes_the_process_leave_with_the_right_code() -> None:
    left: list[int] = []
    for flags in (["--prompt", "Hi"], ["--prompt", "Hi", "--json"]):
        main(
            flags,
            open_session=FakeSession(Script(finish_reason="failed"), stuck=True).open,
            stdout=io.StringIO(),
            stderr=io.StringIO(),
            leave=left.append,
        )
    assert left == [1, 1]


def test_a_stuck_process_ends() -> None:
    child = spawn("stuck", "--prompt", "Hi")
    # The time limit only keeps a failure from hanging; without the exit it would never end.
    stdout, _ = child.communicate(timeout=60)
    assert (child.returncode, stdout) == (0, b"Hello there.\n")


def test_a_conversation_on_plain_lines() -> None:
    session = FakeSession(Script(("One.",)), Script(("Two.",)))
    code, stdout, stderr = chat(session, stdin=Terminal("first\nsec\\\nond\n"))
    assert (code, stdout) == (0, "One.\nTwo.\n")
    assert session.calls[1].messages == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "sec\nond"},
    ]
    assert "/help" in stderr


def test_a_conversation_as_json_lines() -> None:
    code, stdout, _ = chat(FakeSession(), "--json", stdin=Terminal("a\nb\n"))
    assert code == 0
    assert [json.loads(line)["text"] for line in stdout.splitlines()] == ["Hello there."] * 2


def test_ctrl_c_in_one_shot_keeps_the_partial_answer() -> None:
    child = spawn("endless", "--prompt", "Hi")
    assert child.stdout is not None
    assert child.stdout.read(5) == b"Hello"
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130
    assert stdout.endswith(b"\n")
    assert b"Traceback" not in stderr


def answers_traced(path: Path) -> list[str]:
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "answer"]


def test_a_trace_holds_every_answer_also_one_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    session = FakeSession(Script(("One.",)), Script(("Tw",), error=BundleError("Damaged.")))
    code, _, _ = chat(session, "--trace", str(path), stdin=Terminal("first\nsecond\n"))
    assert code == 0
    assert answers_traced(path) == ["answer 1", "answer 2"]


def test_a_trace_survives_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    child = spawn("endless", "--prompt", "Hi", "--trace", str(path))
    assert child.stdout is not None
    assert child.stdout.read(5) == b"Hello"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert answers_traced(path) == ["answer 1"]


def test_a_trace_that_cannot_be_written_is_refused_before_anything_loads(tmp_path: Path) -> None:
    session = FakeSession()
    path = tmp_path / "absent" / "trace.json"
    code, stdout, stderr = chat(session, "--prompt", "Hi", "--trace", str(path))
    assert (code, stdout, session.opened) == (2, "", None)
    assert f"--trace {path}: there is no folder {path.parent}." in stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    child = spawn("endless", "--prompt", "Hi")
    assert child.stdout is not None
    assert child.stdout.read(5) == b"Hello"
    child.stdout.close()
    assert child.stderr is not None
    stderr = child.stderr.read()
    assert child.wait(timeout=60) == 0
    assert stderr == b"Loading.\nBegun.\n"
    child.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_a_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        child = subprocess.run(
            [*FAKE_CHAT, "short", "--prompt", "Hi"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert child.returncode == 1
    assert b"No space left" in child.stderr
    assert b"Exception" not in child.stderr


def test_an_ascii_locale_changes_nothing() -> None:
    environ = {
        **os.environ,
        "LANG": "C",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    child = spawn("thai", "--prompt", "ü", env=environ)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    assert stdout.decode() == "สวัสดี 😀\n"


@pytest.mark.skipif(os.name == "nt", reason="closing a stream at start is POSIX")
def test_closed_standard_streams_are_no_error() -> None:
    command = " ".join(FAKE_CHAT) + ' short --prompt Hi >&- 2>&- <&-; test "$?" = 0'
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, check=False).returncode == 0


def test_a_real_pair_says_the_same_by_every_strategy(tiny_bundle: Path) -> None:
    flags = ["-m", str(tiny_bundle), "--json", "-t", "0.9", "--seed", "3", "--max-new-tokens", "9"]
    lines = []
    for how in ("--draft none", "--draft lookup", "--strategy speculative", "--strategy mirror"):
        stdin = Terminal("one\ntwo\n/retry\n")
        code, stdout, stderr = chat(None, *flags, *how.split(), stdin=stdin)
        assert code == 0, stderr
        lines.append([json.loads(line) for line in stdout.splitlines()])
    texts = [[line["text"] for line in answers] for answers in lines]
    assert texts == [texts[0]] * 4
    assert [line["metrics"]["seed"] for line in lines[0]] == [3, 3, 4]
    assert len(texts[0]) == 3
    assert all(texts[0])


def test_a_gguf_file_is_built_on_first_use_and_kept(tiny_gguf: Path, tmp_path: Path) -> None:
    flags = ["-m", str(tiny_gguf), "--cache-dir", str(tmp_path), "--prompt", "Hi", "-t", "0"]
    flags += ["--max-new-tokens", "4", "--offline", "--draft", "none"]
    code, first, stderr = chat(None, *flags)
    assert code == 0, stderr
    assert "There is no bundle" in stderr
    code, second, stderr = chat(None, *flags)
    assert (code, second) == (0, first)
    assert "bundle" not in stderr


def test_a_prompt_that_does_not_fit_is_wrong_usage_or_a_hint(tiny_bundle: Path) -> None:
    flags = ["-m", str(tiny_bundle), "--context-length", "8", "--draft", "none"]
    code, stdout, stderr = chat(None, *flags, "--prompt", "many words " * 20)
    assert (code, stdout) == (2, "")
    assert "holds 8" in stderr
    code, _, stderr = chat(None, *flags, stdin=Terminal("many words " * 20 + "\n"))
    assert code == 0
    assert "/reset" in stderr
