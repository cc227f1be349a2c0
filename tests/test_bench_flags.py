import json
from pathlib import Path
from typing import Any

import pytest

from runtime.bench_flags import WAYS, flag_parser, parse
from runtime.bench_runs import Way
from runtime.chat_options import OPEN_SETTINGS
from runtime.errors import UsageError
from runtime.sampling import Sampling


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three prompts of two categories."""
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": number, "category": kind, "turns": ["?"]}
        for number, kind in enumerate("aab")
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_defaults_are_all_strategies_on_some_of_the_packages_prompts() -> None:
    options = parse([])
    assert options.ways == WAYS
    assert options.ways[0] == Way("autoregressive", "none")
    plan = options.plan
    assert (plan.repeats, plan.warm_up, plan.max_new_tokens) == (3, 1, 64)
    assert plan.sampling == Sampling()
    assert len(plan.prompts) == 12
    assert len({prompt.category for prompt in plan.prompts}) == 6
    assert set(options.open) == set(OPEN_SETTINGS)
    assert options.json is None
    assert not options.calibrate
    assert parse(["--calibrate"]).calibrate


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("autoregressive", [("autoregressive", "none")]),
        ("mirror", [("mirror", "model")]),
        (
            "mirror:lookup, speculative,autoregressive",
            [("mirror", "lookup"), ("speculative", "model"), ("autoregressive", "none")],
        ),
        (
            "speculative:model,speculative:lookup",
            [("speculative", "model"), ("speculative", "lookup")],
        ),
        (
            "speculative:8,mirror:lookup:1,mirror:lookup",
            [("speculative", "model", 8), ("mirror", "lookup", 1), ("mirror", "lookup")],
        ),
    ],
)
def test_strategies(file: Path, text: str, ways: list[tuple[Any, ...]]) -> None:
    options = parse(["--prompts", str(file), "--strategies", text])
    assert options.ways == tuple(Way(*way) for way in ways)


def test_a_file_is_taken_whole_unless_limited(file: Path) -> None:
    def ids(*flags: str) -> list[int]:
        plan = parse(["--prompts", str(file), *flags]).plan
        return [prompt.question_id for prompt in plan.prompts]

    assert ids() == ids("--limit", "0") == [0, 2, 1]
    assert ids("--limit", "2") == [0, 2]
    assert ids("--category", "a") == [0, 1]
    assert ids("--category", "b", "--category", "a", "--limit", "1") == [0]
    assert ids("--prompts", str(file)) == [0, 2, 1, 2, 0, 1]
    assert len(parse(["--limit", "0"]).plan.prompts) == 120


def test_shared_flags_mean_what_they_mean_in_the_chat(file: Path) -> None:
    flags = "-m m -md d --precision fp32 --num_draft_tokens 8 --context-length 99 --threads 1"
    flags += " --draft-threads 2 --draft-tokens-per-pass 3 --offline --cache-dir c"
    flags += " -t 0.7 -k 4 --seed 5 --stop END"
    flags += " --max_new_tokens 9 --repeats 2 --warm-up 0"
    options = parse(["--prompts", str(file), *flags.split()])
    assert options.model == "m"
    expected = {
        "draft_model": "d",
        "precision": "fp32",
        "num_draft_tokens": 8,
        "draft_tokens_per_pass": 3,
        "context_length": 99,
        "threads": 1,
        "draft_threads": 2,
        "cache_dir": Path("c"),
        "offline": True,
    }
    assert {name: options.open[name] for name in expected} == expected
    fixed = ["--strategies", "speculative,mirror", "--after-miss", "verify"]
    fixed += ["--num-copied-tokens", "4", "--num-siblings", "32"]
    shape = parse(["--prompts", str(file), *fixed]).open
    assert (shape["after_miss"], shape["num_copied_tokens"]) == ("verify", 4)
    assert options.plan.sampling == Sampling(temperature=0.7, top_k=4, seed=5)
    assert (options.plan.stop, options.plan.max_new_tokens) == (("END",), 9)
    assert (options.plan.repeats, options.plan.warm_up) == (2, 0)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--strategies mirror:none", "'mirror:none' is no strategy; there are autoregressive,spec"),
        ("--strategies autoregressive:model", "is no strategy"),
        ("--strategies autoregressive:4", "is no strategy"),
        ("--strategies mirror:model:0", "is no strategy"),
        ("--strategies fast", "'fast' is no strategy"),
        ("--strategies mirror,", "'' is no strategy"),
        ("--strategies mirror,mirror:model", "mirror:model stands twice"),
        ("--strategies autoregressive,mirror:lookup -md d", "--draft-model is for a draft model"),
        ("--strategies mirror:lookup --draft-tokens-per-pass 2", "--draft-tokens-per-pass is for"),
        ("--strategies mirror:model:99", "'mirror:model:99': num_draft_tokens must be a whole nu"),
        ("--strategies speculative:33", "num_draft_tokens must be a whole number, 1 to 32; it is"),
        ("--num-draft-tokens 33", "num_draft_tokens must be a whole number, 1 to 32; it is 33"),
        ("--num-siblings 33", "num_siblings must be a whole number, 0 to 32; it is 33"),
        ("--num-hypotheses 65", "num_hypotheses must be a whole number, 0 to 64; it is 65"),
        ("--strategies speculative,auto:lookup --num-hypotheses 4", "--num-hypotheses is for mir"),
        ("--num-copied-tokens 33", "num_copied_tokens must be a whole number, 0 to 32"),
        ("--num-copied-tokens 4", "num_copied_tokens is for the strategies 'speculative' and 'mi"),
        ("--strategies mirror,auto --after-miss verify", "after_miss is for the strategy 'mirror'"),
        ("--strategies auto:model:4", "auto chooses how many tokens to draft; leave the number"),
        ("--strategies auto:4", "'auto:4': auto chooses how many tokens to draft"),
        ("--calibrate --emulate x", "--calibrate times this machine, not an emulated one"),
        ("--calibrate --time-scale 2", "--calibrate times this machine, not an emulated one"),
        ("--category poems", "'poems'; there are a, b"),
        ("--limit -1", "-1 is not a whole number, 0 or more"),
        ("--repeats 0", "0 is not a whole number, 1 or more"),
        ("--warm-up x", "'x' is not a whole number, 0 or more"),
        ("--temperature -1", "temperature must be"),
        ("--prompts /nowhere.jsonl", "/nowhere.jsonl cannot be read"),
        ("--json /nowhere/result.json", "there is no folder /nowhere"),
        ("--trace /nowhere/trace.json", "--trace /nowhere/trace.json: there is no folder"),
        ("--plot /nowhere/rounds.svg", "--plot /nowhere/rounds.svg: there is no folder"),
        ("--strategies autoregressive --plot rounds.svg", "no strategy has a draft"),
        ("--draft model", "unrecognized arguments: --draft model"),
        ("Hello", "unrecognized arguments: Hello"),
    ],
)
def test_what_is_refused_before_anything_loads(file: Path, flags: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(["--prompts", str(file), *flags.split()])
    assert sentence in str(caught.value)


def test_help_teaches_strategies_columns_and_prompts() -> None:
    text = flag_parser().format_help()
    for way in WAYS:
        assert str(way) in "".join(text.split())
    for word in ("examples:", "columns:", "between tokens ms", "question_id", "Exit codes"):
        assert word in text


@pytest.mark.parametrize(
    "flag",
    [
        "--json x.json",
        "--max-new-tokens 9",
        "--strategies mirror",
        "--plot x.svg",
        "--num-hypotheses 4",
        "--after-miss verify",
    ],
)
def test_a_calibration_has_no_use_for_flags_of_answers(flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag.split()[0]} is for answers, and --calibrate mak"):
        parse(["--calibrate", *flag.split()])
