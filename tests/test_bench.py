import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from runtime.bench import main
from runtime.errors import BundleError, ContextError, UsageError
from tests.fake_bench import FakeRuntime, FakeSession
from tests.fake_devices import Machine, hardware
from tests.timelines import THREE_ROUNDS

TWO = "--strategies autoregressive,speculative:lookup"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two prompts, the second of two turns."""
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": 1, "category": "qa", "turns": ["Why?"]},
        {"question_id": 2, "category": "talk", "turns": ["First.", "Then?"]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def bench(
    runtime: FakeRuntime | None, file: Path, flags: str = "", **streams: io.StringIO
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one run; without a fake, the real thing."""
    stdout, stderr = io.StringIO(), streams.get("stderr", io.StringIO())
    stands = {} if runtime is None else {"open_session": runtime.open, "locate": runtime.locate}
    code = main(
        ["--prompts", str(file), "--repeats", "1", *flags.split()],
        stdout=stdout,
        stderr=stderr,
        leave=lambda _: None,
        **stands,
    )
    return code, stdout.getvalue(), stderr.getvalue()


def last_line(stdout: str) -> dict[str, Any]:
    return dict(json.loads(stdout.splitlines()[-1]))


def test_a_table_and_a_last_line_of_json(file: Path) -> None:
    runtime = FakeRuntime()
    code, stdout, stderr = bench(runtime, file, f"{TWO} --repeats 2 --warm-up 0")
    assert code == 0, stderr
    found = last_line(stdout)
    assert (found["complete"], found["conversations"]) == (True, 4)
    assert found["strategies"]["autoregressive"]["answers"] == 6
    assert found["strategies"]["speculative:lookup"]["ratio"]["median"] == 1.0
    assert set(found["load_s"]) == {"none", "lookup"}
    assert stdout.startswith("strategy ")
    assert "4 of 4: talk 2, repeat 2" in stderr
    assert [draft for what, draft in runtime.journal if what == "closed"] == ["none", "lookup"]


def test_a_session_for_each_draft_and_for_each_way_of_the_model(file: Path) -> None:
    runtime = FakeRuntime()
    assert bench(runtime, file, "-m big -md small --threads 1")[0] == 0
    assert runtime.located == ["big", "small"]
    drafts = [(model, settings["draft"]) for model, settings in runtime.opened]
    assert drafts == [
        (Path("bundles/big"), draft) for draft in ("none", "lookup", "model", "model", "model")
    ]
    named = [settings["draft_model"] for _, settings in runtime.opened]
    assert named == [None, None, *[Path("bundles/small")] * 3]
    assert all(settings["threads"] == 1 for _, settings in runtime.opened)


def test_a_session_is_told_of_hypotheses_where_it_follows_some(file: Path) -> None:
    runtime = FakeRuntime()
    assert bench(runtime, file, "--num-hypotheses 3")[0] == 0
    told = {
        f"{settings['strategy']}:{settings['draft']}": settings["num_hypotheses"]
        for _, settings in runtime.opened
    }
    assert told == {
        "autoregressive:none": None,
        "mirror:lookup": 3,  # opens what speculative and auto share
        "speculative:model": None,
        "mirror:model": 3,
        "auto:model": 3,
    }


def test_what_is_the_drafts_alone_is_kept_from_sessions_without_one(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "QNN.so"
    library.touch()
    snapdragon = {"QNN": [hardware("NPU")], "WebGPU": [hardware("GPU")]}
    Machine(monkeypatch, libraries=snapdragon)
    flags = f"--allow-cpu-fallback --ep-library QNN={library} --draft-device NPU"
    runtime = FakeRuntime()
    code, _, stderr = bench(runtime, file, f"{flags} --strategies autoregressive,mirror:model")
    assert code == 0, stderr
    names = ("draft_device", "ep_libraries", "allow_cpu_fallback")
    told = [tuple(settings[name] for name in names) for _, settings in runtime.opened]
    assert told == [(None, None, False), ("NPU", {"QNN": str(library)}, True)]


def test_a_differing_token_fails_and_is_named(file: Path) -> None:
    # Answer 0 warms up; 1 is the first prompt's; 2 and 3 are the second's.
    runtime = FakeRuntime({"script": {("speculative:lookup", 3): [5, 1, 7]}})
    code, stdout, _ = bench(runtime, file, TWO)
    assert code == 1
    assert "talk 2, repeat 1, turn 2, token 2: token id 7 instead of token id 2." in stdout
    found = last_line(stdout)
    assert found["equal"] is False
    verdicts = {name: of["equal"] for name, of in found["strategies"].items()}
    assert verdicts == {"autoregressive": "yes", "speculative:lookup": "no"}


def test_near_ties_pass(file: Path) -> None:
    script = {("speculative:lookup", 3): [5, 1, 7]}
    given = {"script": script, "exactness": "near-tie", "values": {"near_ties": 1}}
    code, stdout, _ = bench(FakeRuntime(given), file, TWO)
    assert code == 0
    assert "so this is no failure" in stdout


def test_ctrl_c_shows_what_is_complete(file: Path) -> None:
    # The second prompt's second turn: its conversation is dropped whole, in both strategies.
    runtime = FakeRuntime({"script": {("autoregressive", 3): KeyboardInterrupt()}})
    code, stdout, stderr = bench(runtime, file, TWO)
    assert code == 130
    assert "Interrupted." in stderr
    assert "INCOMPLETE: 1 of 2 conversations" in stdout
    found = last_line(stdout)
    assert (found["complete"], found["conversations"]) == (False, 1)
    assert found["strategies"]["speculative:lookup"]["answers"] == 1
    assert [draft for what, draft in runtime.journal if what == "closed"] == ["none", "lookup"]


@pytest.mark.parametrize("number", [0, 1])
def test_ctrl_c_before_there_is_anything_says_so(file: Path, number: int) -> None:
    runtime = FakeRuntime({"script": {("autoregressive", number): KeyboardInterrupt()}})
    code, stdout, stderr = bench(runtime, file, TWO)
    assert (code, stdout) == (130, "")
    assert stderr.splitlines()[-1] == "Interrupted."


@pytest.mark.parametrize(
    ("error", "code"),
    [(BundleError("The bundle is damaged."), 1), (ContextError("Too long."), 2)],
)
def test_an_error_on_the_way_keeps_what_was_measured(
    file: Path, error: BundleError, code: int
) -> None:
    runtime = FakeRuntime({"script": {("speculative:lookup", 2): error}})
    got, stdout, stderr = bench(runtime, file, TWO)
    assert got == code
    assert f"mirror-bench: {error}\n" in stderr
    assert last_line(stdout)["complete"] is False


def test_errors_before_are_sentences(file: Path, tmp_path: Path) -> None:
    runtime = FakeRuntime(error=BundleError("The bundle is damaged."))
    code, stdout, stderr = bench(runtime, file)
    assert (code, stdout, stderr) == (1, "", "mirror-bench: The bundle is damaged.\n")
    runtime = FakeRuntime()
    code, stdout, stderr = bench(runtime, tmp_path / "none.jsonl")
    assert (code, stdout, runtime.located) == (2, "", [])
    assert "none.jsonl cannot be read" in stderr


def test_the_file_holds_every_answer_too(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "result é.json"
    stdout = io.StringIO()
    runtime = FakeRuntime()
    code = main(
        ["--prompts", str(file), "--json", str(path), "--repeats", "1"],
        open_session=runtime.open,
        locate=runtime.locate,
        stdout=stdout,
        stderr=io.StringIO(),
    )
    assert code == 0
    saved = json.loads(path.read_text(encoding="utf-8"))
    answers = saved.pop("answers")
    assert saved == last_line(stdout.getvalue())
    assert len(answers) == 3 * 7


def test_a_trace_has_the_answers_that_count_by_strategy(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    # The second prompt's second turn of the baseline is interrupted.
    runtime = FakeRuntime({"script": {("autoregressive", 3): KeyboardInterrupt()}})
    code, _, _ = bench(runtime, file, f"{TWO} --trace {path}")
    assert code == 130
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"autoregressive", "speculative:lookup"}
    assert sorted(event["name"] for event in events if event.get("cat") == "answer") == [
        "qa 1, repeat 1, turn 1",
        "qa 1, repeat 1, turn 1",
        "talk 2, repeat 1, turn 1",
        "talk 2, repeat 1, turn 1",
        "talk 2, repeat 1, turn 2",
        "talk 2, repeat 1, turn 2",
    ]


def test_a_drawing_has_a_panel_for_each_strategy_with_a_draft(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "rounds.svg"
    code, _, stderr = bench(FakeRuntime(), file, f"{TWO},mirror --plot {path}")
    assert code == 0, stderr
    words = [element.text or "" for element in ElementTree.parse(path).iter()]
    titles = [text for text in words if "a model, int8" in text]
    assert [text.partition(" · ")[0] for text in titles] == ["speculative:lookup", "mirror:model"]


def test_nothing_is_drawn_of_no_round(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fake_bench.THREE_ROUNDS", replace(THREE_ROUNDS, rounds=()))
    path = tmp_path / "rounds.svg"
    code, _, stderr = bench(FakeRuntime(), file, f"{TWO} --plot {path}")
    assert code == 0
    assert not path.exists()
    assert f"Nothing is drawn in {path}: no draft had a round." in stderr


@pytest.mark.parametrize("flags", ["", "--strategies autoregressive,mirror:model"])
def test_a_model_without_a_draft_is_measured_without_it(file: Path, flags: str) -> None:
    class NoDraft(FakeRuntime):
        def open(self, model: Any, **settings: Any) -> FakeSession:
            if settings["draft"] == "model":
                raise UsageError("There is no draft model.")
            return super().open(model, **settings)

    code, stdout, stderr = bench(NoDraft(), file, flags)
    assert "There is no draft model." in stderr
    if flags:  # it was asked for
        assert (code, stdout) == (2, "")
    else:
        assert code == 0
        assert len(last_line(stdout)["strategies"]) == 4


def test_a_file_that_cannot_be_written_costs_no_results(file: Path, tmp_path: Path) -> None:
    code, stdout, stderr = bench(FakeRuntime(), file, f"--json {tmp_path}")
    assert code == 1
    assert last_line(stdout)["complete"] is True
    assert "cannot be written" in stderr


def test_a_terminal_gets_one_line_of_progress(file: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    _, _, stderr = bench(FakeRuntime(), file, TWO, stderr=Terminal())
    assert stderr.count("\r") == 2
    assert stderr.count("of 2: ") == 2
    assert stderr.endswith("\n")


def test_a_stuck_thread_makes_the_process_leave_with_the_right_code(file: Path) -> None:
    left: list[int] = []
    runtime = FakeRuntime({"stuck": True})
    code = main(
        ["--prompts", str(file), *TWO.split()],
        open_session=runtime.open,
        locate=runtime.locate,
        stdout=io.StringIO(),
        stderr=io.StringIO(),
        leave=left.append,
    )
    assert (code, left) == (0, [0])
    assert [draft for what, draft in runtime.journal if what == "closed"] == ["none", "lookup"]


def test_help_goes_to_stdout_and_loads_nothing(file: Path) -> None:
    runtime = FakeRuntime()
    code, stdout, stderr = bench(runtime, file, "--help")
    assert (code, stderr, runtime.located) == (0, "", [])
    assert "--strategies" in stdout


def test_the_real_pair_is_equal_by_every_strategy(tiny_bundle: Path, file: Path) -> None:
    flags = f"-m {tiny_bundle} --max-new-tokens 6 -t 0.8 --seed 2 --threads 1 --draft-threads 1"
    code, stdout, stderr = bench(None, file, f"{flags} --repeats 2")
    assert code == 0, stderr
    found = last_line(stdout)
    assert found["equal"] is True
    assert len(found["strategies"]) == 7
    for of in found["strategies"].values():
        assert of["equal"] == "yes"
        assert of["answers"] == 6
        assert of["tokens_per_s"]["median"] > 0
        assert of["between_tokens_ms"]["p99"] > 0
    assert found["strategies"]["autoregressive"]["mean_acceptance_length"]["median"] == 1.0
    assert found["strategies"]["mirror:model"]["settings"]["strategy"] == "mirror"
    assert found["machine"]["onnxruntime"]
