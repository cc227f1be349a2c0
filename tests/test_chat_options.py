import pytest

from runtime.chat_flags import flag_parser, well_formed
from runtime.chat_options import parse
from runtime.errors import UsageError
from runtime.sampling import Sampling


def test_defaults() -> None:
    options = parse([])
    assert (options.model, options.precision, options.draft) == ("smollm2-135m", None, None)
    assert (options.strategy, options.num_draft_tokens) == ("auto", None)
    assert (options.prompt, options.seed, options.max_new_tokens, options.stop) == (
        None, None, None, (),
    )  # fmt: skip
    assert (options.offline, options.stats, options.json) == (False, False, False)


def test_every_long_flag_may_be_spelled_with_underscores() -> None:
    values = {
        "--num-draft-tokens": "8",
        "--draft-tokens-per-pass": "3",
        "--num-siblings": "2",
        "--num-copied-tokens": "6",
        "--num-hypotheses": "12",
        "--hypothesis-sources": "masks, bonus",
        "--after-miss": "verify",
        "--repetition-penalty": "1.1",
        "--max-new-tokens": "3",
        "--context-length": "99",
        "--draft-threads": "2",
        "--system-prompt": "a_b --c_d",
        "--draft-model": "my_model",
        "--draft-device": "cpu",
        "--execution-provider": "CPU",
        "--draft-execution-provider": "OpenVINO",
        "--ep-library": "QNN=some_file",
        "--provider-option": "a_b=c_d",
        "--draft-provider-option": "a_b=c=d",
        "--cache-dir": "a_folder",
        "--time-scale": "2",
        "--draft-time-limit-s": "2",
        "--top-k": "5",
        "--top-p": "0.5",
        "--min-p": "0.1",
    }
    hyphens = [word for pair in values.items() for word in pair]
    words = [
        word
        for name, value in values.items()
        for word in ("--" + name[2:].replace("-", "_"), value)
    ]
    joined = [f"--{name[2:].replace('-', '_')}={value}" for name, value in values.items()]
    assert parse(words) == parse(joined) == parse(hyphens)
    assert parse(words).system_prompt == "a_b --c_d"
    assert parse(words).draft_model == "my_model"
    spelled = {
        name
        for action in flag_parser()._actions
        for name in action.option_strings
        if "-" in name[2:] and action.nargs != 0
    }
    assert spelled == set(values)


def test_short_flags() -> None:
    options = parse(["-m", "a", "-md", "b", "-t", "0.5", "-k", "3", "-p", "0.9"])
    assert (options.model, options.draft_model) == ("a", "b")
    assert (options.temperature, options.top_k, options.top_p) == (0.5, 3, 0.9)


@pytest.mark.parametrize(
    ("flags", "strategy"),
    [
        ("--draft none", "autoregressive"),
        ("--draft none --strategy autoregressive", "autoregressive"),
        ("--draft lookup", "auto"),
        ("--draft lookup --strategy autoregressive", "autoregressive"),
        ("--strategy speculative", "speculative"),
    ],
)
def test_strategy_by_draft(flags: str, strategy: str) -> None:
    assert parse(flags.split()).strategy == strategy


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--draft none --strategy speculative", "speculative needs a draft"),
        ("--draft none --strategy mirror", "mirror needs a draft"),
        ("--draft none -md x", "--draft-model is for a draft model"),
        ("--draft lookup -md x", "--draft-model is for a draft model"),
        ("--draft none --draft-device NPU", "--draft-device is for a draft model"),
        ("--draft lookup --draft-provider-option a=b", "--draft-provider-option is for a draft"),
        ("--provider-option a=1 --provider-option a=2", "--provider-option: a stands twice"),
        ("--provider-option a", "'a' is not KEY=VALUE"),
        ("--provider-option =1", "'=1' is not KEY=VALUE"),
        ("--ep-library QNN=", "'QNN=' is not NAME=PATH"),
        ("--temp 1", "unrecognized arguments: --temp"),
        ("--top 1", "unrecognized arguments: --top"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
        ("Hello", "unrecognized arguments: Hello"),
        ("--precision int3", "--precision"),
        ("--draft none --draft-execution-provider CPU", "--draft-execution-provider is for"),
        ("--draft lookup --draft-tokens-per-pass 2", "--draft-tokens-per-pass is for"),
        ("--draft-tokens-per-pass 0", "0 is not a whole number, 1 or more"),
        ("--strategy fast", "--strategy"),
        ("--num-hypotheses -1", "-1 is not a whole number, 0 or more"),
        ("--num-siblings -1", "-1 is not a whole number, 0 or more"),
        ("--num-copied-tokens -1", "-1 is not a whole number, 0 or more"),
        ("--after-miss wait", "--after-miss"),
        ("--num-draft-tokens 0", "0 is not a whole number, 1 or more"),
        ("--num-draft-tokens 2.5", "'2.5' is not a whole number, 1 or more"),
        ("--max-new-tokens -1", "-1 is not a whole number, 0 or more"),
        ("--threads 0", "--threads"),
        ("--draft-threads 0", "--draft-threads"),
        ("--context-length 0", "--context-length"),
        ("--seed x", "--seed: 'x' is not a whole number"),
        ("--seed -1", "seed must be"),
        (f"--seed {2**64}", "seed must be"),
        ("--temperature -1", "temperature must be"),
        ("--temperature nan", "temperature must be"),
        ("--temperature inf", "temperature must be"),
        ("--temperature hot", "'hot' is not a number"),
        ("--top-k -1", "top_k must be"),
        ("--top-p 0", "top_p must be"),
        ("--top-p 1.5", "top_p must be"),
        ("--min-p 2", "min_p must be"),
        ("--repetition-penalty 0", "repetition_penalty must be"),
        ("--stop=", "an empty text"),
    ],
)
def test_what_is_refused_before_anything_loads(flags: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(flags.split())
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"\n", "\n"),
        (r"a\tb", "a\tb"),
        (r"\\n", r"\n"),
        (r"\\\n", "\\\n"),
        (r"\x", r"\x"),
        ("\n", "\n"),
    ],
)
def test_escapes_in_stop_texts(typed: str, meant: str) -> None:
    assert parse(["--stop", typed, "--stop", "END"]).stop == (meant, "END")


@pytest.mark.parametrize(
    "prompt", ["-", "", " --num_draft_tokens is a flag", "--a_b c_d", "-5 + 2"]
)
def test_prompts_stay_as_they_are(prompt: str) -> None:
    assert parse(["--prompt", prompt]).prompt == prompt
    assert parse([f"--prompt={prompt}"]).prompt == prompt


def test_given_flags_replace_the_bundles_settings_one_by_one() -> None:
    default = Sampling(temperature=0.6, top_k=40, top_p=0.9, seed=1)
    assert parse([]).sampling(default, seed=5) == Sampling(0.6, 40, 0.9, seed=5)
    assert parse(["-t", "0", "--seed", "0"]).sampling(default, seed=5) == Sampling(0, 40, 0.9)
    assert parse(["-k", "0"]).sampling(default, seed=5) == Sampling(0.6, 0, 0.9, seed=5)


def test_bytes_in_another_encoding_become_text() -> None:
    assert well_formed("é".encode().decode("ascii", "surrogateescape")) == "é"
    assert well_formed("a\udcff") == "a\ufffd"
    assert well_formed("a\ud83d").startswith("a\ufffd")
    assert well_formed("plain 😀") == "plain 😀"


def test_help_names_every_flag_its_default_and_examples() -> None:
    text = flag_parser().format_help()
    for word in ("examples:", "--stop TEXT", "default: auto", "default: 512", "Exit codes"):
        assert word in text
